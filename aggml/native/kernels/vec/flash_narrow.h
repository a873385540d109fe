/* Attention of a few rows (decoding): lanes along the width, K and V read once, as they lie, for up to V_NR rows.
 *
 * f32, f16, bf16, q8_0 and q4_0 are widened in registers. While a block of keys is computed, lines of the next block
 * are prefetched, as many as are read. Included after an ISA's math.h. Not here: tiles with rows in the lanes
 * (kernels/vec/flash.h), the walk over heads and blocks (lower/attention/flash_decode.c). */
#ifndef AGK_VEC_FLASH_NARROW_H
#define AGK_VEC_FLASH_NARROW_H

#include "formats/blocks.h"
#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "math.h"

enum {
    V_NR = 4,                 /* rows that are computed together */
    V_WIDE = VF == 8 ? 2 : 4, /* vectors of values: V_NR times as many sums are in registers */
    V_BLOCK = 32,             /* elements of a quantized block */
};

static inline void v_flash_begin_narrow(const agk_flash_tile *t)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        f.max[r] = -__builtin_inff();
        f.sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < t->n_rows * t->dv; ++i) f.o[i] = 0.0f;
}

AGK_INLINE int v_in_blocks(int type)
{
    return type == AGK_Q8_0 || type == AGK_Q4_0;
}

/* The address of element i of a row; for a quantized type, of its block. */
AGK_INLINE const char *v_at(int type, const char *row, int64_t i)
{
    if (type == AGK_Q8_0) return row + i / V_BLOCK * (int64_t)sizeof(agk_block_q8_0);
    if (type == AGK_Q4_0) return row + i / V_BLOCK * (int64_t)sizeof(agk_block_q4_0);
    return row + i * (type == AGK_F32 ? 4 : 2);
}

/* n elements, beginning `i` elements behind `at`; n >= VF: a whole vector. For quantized types only whole vectors. */
AGK_INLINE vf v_part(int type, const char *at, int i, int64_t n)
{
    const uint16_t *halves = (const uint16_t *)(const void *)at + i;
    const float *floats = (const float *)(const void *)at + i;
    if (type == AGK_Q8_0) {
        const agk_block_q8_0 *x = (const agk_block_q8_0 *)(const void *)at + i / V_BLOCK;
        return v_load_i8(x->qs + i % V_BLOCK) * v_set(_cvtsh_ss(x->d));
    }
    if (type == AGK_Q4_0) {
        const agk_block_q4_0 *x = (const agk_block_q4_0 *)(const void *)at + i / V_BLOCK;
        const vf codes = v_load_u4(x->qs + i % (V_BLOCK / 2), i % V_BLOCK >= V_BLOCK / 2);
        return (codes - v_set(8.0f)) * v_set(_cvtsh_ss(x->d));
    }
    if (type == AGK_F16) {
        if (n >= VF) return v_load_f16(halves);
        return v_load_f16_n(halves, n);
    }
    if (type == AGK_BF16) {
        if (n >= VF) return v_load_bf16(halves);
        return v_load_bf16_n(halves, n);
    }
    if (n >= VF) return v_load(floats);
    return v_load_n(floats, n);
}

AGK_INLINE void v_ask_for(const char *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

AGK_INLINE void v_narrow_dots_add(int type, int rows, int keys, const agk_flash_tile *t, int64_t i, int within,
                                  int64_t n, const char *q, const char *k, vf acc[V_NR][4])
{
    vf x[4];
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j) x[j] = v_part(type, v_at(type, k + j * t->k_step, i), within, n);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        const vf y = v_part(AGK_F32, v_at(AGK_F32, q + r * t->q_step, i), within, n);
#pragma GCC unroll 4
        for (int j = 0; j < keys; ++j) acc[r][j] = v_fma(x[j], y, acc[r][j]);
    }
}

/* s[r][j] = q[r] . k[j] for four keys, for two or for one; sums across lanes are done four at a time. */
AGK_INLINE void v_narrow_dots(int type, int rows, int keys, const agk_flash_tile *t, const char *q, const char *k,
                              float *s)
{
    vf acc[V_NR][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < keys; ++j) acc[r][j] = v_zero();
    }
    int64_t i = 0;
    if (v_in_blocks(type)) {
        for (; i < t->d; i += V_BLOCK) {
#pragma GCC unroll 8
            for (int h = 0; h < V_BLOCK; h += VF) v_narrow_dots_add(type, rows, keys, t, i, h, VF, q, k, acc);
        }
    } else {
        for (; i + VF <= t->d; i += VF) v_narrow_dots_add(type, rows, keys, t, i, 0, VF, q, k, acc);
        if (i < t->d) v_narrow_dots_add(type, rows, keys, t, i, 0, t->d - i, q, k, acc);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        if (keys == 4)
            v_sum4(acc[r], s + r * AGK_FLASH_KEYS);
        else if (keys == 1)
            s[r * AGK_FLASH_KEYS] = v_sum(acc[r][0]);
    }
#pragma GCC unroll 2
    for (int j = 0; keys == 2 && j < 2; ++j) {
        vf of_rows[V_NR];
        float sums[V_NR];
#pragma GCC unroll 4
        for (int r = 0; r < V_NR; ++r) of_rows[r] = r < rows ? acc[r][j] : v_zero();
        v_sum4(of_rows, sums);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) s[r * AGK_FLASH_KEYS + j] = sums[r];
    }
}

/* `most` rows at a time. */
AGK_INLINE void v_narrow_dots_rows(int type, int most, int keys, const agk_flash_tile *t, const char *k, float *s)
{
    int64_t r = 0;
    for (; r + most <= t->n_rows; r += most) {
        v_narrow_dots(type, most, keys, t, t->q + r * t->q_step, k, s + r * AGK_FLASH_KEYS);
    }
    const char *q = t->q + r * t->q_step;
    float *rest = s + r * AGK_FLASH_KEYS;
    const int64_t left = t->n_rows - r;
    if (most > 3 && left == 3)
        v_narrow_dots(type, 3, keys, t, q, k, rest);
    else if (most > 2 && left == 2)
        v_narrow_dots(type, 2, keys, t, q, k, rest);
    else if (left == 1)
        v_narrow_dots(type, 1, keys, t, q, k, rest);
}

AGK_INLINE void v_narrow_dots_all(int type, int most, int keys, const agk_flash_tile *t, int64_t n, const char *k,
                                  float *s)
{
    int64_t j = 0;
    for (; j + keys <= n; j += keys) {
        for (int64_t h = j; h < j + keys; ++h) v_ask_for(t->k_ahead.rows + h * t->k_ahead.stride, t->k_ahead.bytes);
        v_narrow_dots_rows(type, most, keys, t, k + j * t->k_step, s + j);
    }
    for (; j < n; ++j) v_narrow_dots_rows(type, most, 1, t, k + j * t->k_step, s + j);
}

/* Sums of 4 rows x 4 keys would fill the 16 registers of AVX2. So it computes 2 x 4, or, for types whose codes are
 * widened, 4 x 2: they are then widened half as often. */
AGK_INLINE void v_narrow_dots_typed(int type, const agk_flash_tile *t, int64_t n, const char *k, float *s)
{
    if (VF != 8)
        v_narrow_dots_all(type, 4, 4, t, n, k, s);
    else if (v_in_blocks(type) && t->n_rows > 2)
        v_narrow_dots_all(type, 4, 2, t, n, k, s);
    else
        v_narrow_dots_all(type, 2, 4, t, n, k, s);
}

/* o[r] = o[r] * shrink[r] + sum of p[r][j] * v[j], for `nv` vectors from element i on; n < VF: a part of one vector. */
AGK_INLINE void v_narrow_values(int type, int rows, int nv, const agk_flash_tile *t, int64_t i, int64_t n,
                                int64_t n_keys, const float *p, const char *v, agk_flash_ahead ahead,
                                const float *shrink, float *o)
{
    const int within = v_in_blocks(type) ? (int)(i % V_BLOCK) : 0;
    vf acc[V_NR][V_WIDE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int h = 0; h < nv; ++h) {
            acc[r][h] = v_part(AGK_F32, (const char *)(o + r * t->dv + i), h * VF, n) * v_set(shrink[r]);
        }
    }
    const char *from = v_at(type, v, i);
    for (int64_t j = 0; j < n_keys; ++j, from += t->v_step) {
        v_ask_for(ahead.rows + j * ahead.stride, ahead.bytes);
        vf x[V_WIDE];
#pragma GCC unroll 8
        for (int h = 0; h < nv; ++h) x[h] = v_part(type, from, within + h * VF, n);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const vf y = v_set(p[r * AGK_FLASH_KEYS + j]);
#pragma GCC unroll 8
            for (int h = 0; h < nv; ++h) acc[r][h] = v_fma(x[h], y, acc[r][h]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        float *to = o + r * t->dv + i;
#pragma GCC unroll 8
        for (int h = 0; h < nv; ++h) {
            if (n >= VF)
                v_store(to + h * VF, acc[r][h]);
            else
                v_store_n(to, acc[r][h], n);
        }
    }
}

/* From products to exp(logit - maximum) in s, and the new maximum, sum and factor of row r. */
AGK_INLINE void v_narrow_soft_max(const agk_flash_tile *t, const agk_flash_narrow *f, int64_t r, int64_t first,
                                  int64_t n, float *row)
{
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale), cap = v_set(t->softcap);
    const vf low = v_set(-__builtin_inff()), slope = v_set(t->slope[r]);
    vf max = v_set(f->max[r]);
    for (int64_t j = 0; j < n; j += VF) { /* S has room for whole vectors */
        vf s = v_load(row + j) * scale;
        if (t->softcap > 0.0f) s = cap * v_tanh(s);
        if (t->mask_form != AGK_FLASH_NO_MASK) {
            const uint16_t *mask = (const uint16_t *)(const void *)(t->mask + r * t->mask_step) + first;
            vf m;
            if (n - j < VF)
                m = v_load_f16_n(mask + j, n - j);
            else
                m = v_load_f16(mask + j);
            s = v_select(v_eq(m, low), low, v_fma(m, slope, s));
        }
        if (n - j < VF) s = v_fill(s, n - j, low);
        v_store(row + j, s);
        max = v_max(s, max);
    }
    const float top = v_hmax(max), safe = top > -__builtin_inff() ? top : 0.0f;
    f->shrink[r] = 1.0f;
    if (top > f->max[r]) {
        float lanes[VF];
        v_store(lanes, v_exp(v_set(f->max[r] - safe)));
        f->shrink[r] = lanes[0];
        f->max[r] = top;
    }
    vf sum = v_zero();
    for (int64_t j = 0; j < n; j += VF) {
        const vf p = v_exp(v_load(row + j) - v_set(safe));
        v_store(row + j, p);
        sum = sum + p;
    }
    f->sum[r] = f->sum[r] * f->shrink[r] + v_sum(sum);
}

/* What is prefetched while elements i .. i + n - 1 of a row are computed: their share of the lines, so that no pass
 * prefetches many. */
AGK_INLINE agk_flash_ahead v_share(int type, agk_flash_ahead ahead, int64_t i, int64_t n)
{
    const int64_t from = v_at(type, NULL, i) - (const char *)NULL, end = v_at(type, NULL, i + n) - (const char *)NULL;
    const int64_t first = (from + 63) / 64 * 64, last = end < ahead.bytes ? end : ahead.bytes;
    ahead.rows += first;
    ahead.bytes = first < last ? last - first : 0;
    return ahead;
}

/* All elements of some rows. */
AGK_INLINE void v_narrow_values_rows(int type, int rows, const agk_flash_tile *t, int64_t n, const float *p,
                                     const char *v, agk_flash_ahead ahead, const float *shrink, float *o)
{
    enum { EACH = V_WIDE * VF };
    int64_t i = 0;
    for (; i + EACH <= t->dv; i += EACH) {
        v_narrow_values(type, rows, V_WIDE, t, i, VF, n, p, v, v_share(type, ahead, i, EACH), shrink, o);
    }
    for (; i < t->dv; i += VF) {
        v_narrow_values(type, rows, 1, t, i, t->dv - i, n, p, v, v_share(type, ahead, i, VF), shrink, o);
    }
}

AGK_INLINE void v_narrow_values_all(int type, const agk_flash_tile *t, const agk_flash_narrow *f, int64_t n,
                                    const char *v)
{
    const agk_flash_ahead none = {.rows = v};
    int64_t r = 0;
    for (; r < t->n_rows; r += V_NR) {
        const float *p = f->s + r * AGK_FLASH_KEYS, *shrink = f->shrink + r;
        float *o = f->o + r * t->dv;
        const agk_flash_ahead ahead = r == 0 ? t->v_ahead : none;
        const int64_t left = t->n_rows - r;
        if (left >= V_NR)
            v_narrow_values_rows(type, V_NR, t, n, p, v, ahead, shrink, o);
        else if (left == 3)
            v_narrow_values_rows(type, 3, t, n, p, v, ahead, shrink, o);
        else if (left == 2)
            v_narrow_values_rows(type, 2, t, n, p, v, ahead, shrink, o);
        else
            v_narrow_values_rows(type, 1, t, n, p, v, ahead, shrink, o);
    }
}

static inline void v_flash_block_narrow(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    switch (t->k_type) {
    case AGK_F16: v_narrow_dots_typed(AGK_F16, t, n, k, f.s); break;
    case AGK_BF16: v_narrow_dots_typed(AGK_BF16, t, n, k, f.s); break;
    case AGK_Q8_0: v_narrow_dots_typed(AGK_Q8_0, t, n, k, f.s); break;
    case AGK_Q4_0: v_narrow_dots_typed(AGK_Q4_0, t, n, k, f.s); break;
    default: v_narrow_dots_typed(AGK_F32, t, n, k, f.s); break;
    }
    for (int64_t r = 0; r < t->n_rows; ++r) v_narrow_soft_max(t, &f, r, first, n, f.s + r * AGK_FLASH_KEYS);
    switch (t->v_type) {
    case AGK_F16: v_narrow_values_all(AGK_F16, t, &f, n, v); break;
    case AGK_BF16: v_narrow_values_all(AGK_BF16, t, &f, n, v); break;
    case AGK_Q8_0: v_narrow_values_all(AGK_Q8_0, t, &f, n, v); break;
    case AGK_Q4_0: v_narrow_values_all(AGK_Q4_0, t, &f, n, v); break;
    default: v_narrow_values_all(AGK_F32, t, &f, n, v); break;
    }
}

static inline void v_flash_end_narrow(const agk_flash_tile *t)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        float *out = (float *)(void *)(t->out + r * t->out_step);
        const float max = f.max[r], sink = t->sink[r], top = sink > max ? sink : max;
        const float safe = top > -__builtin_inff() ? top : 0.0f;
        float lanes[VF];
        v_store(lanes, v_exp(v_fill(v_set(max), 1, v_set(sink)) - v_set(safe)));
        const float total = f.sum[r] * lanes[0] + lanes[1];
        const bool none = f.sum[r] <= 0.0f && f.sum[r] >= 0.0f;
        const float scale = none ? 0.0f : lanes[0] / total;
        for (int64_t i = 0; i < t->dv; ++i) out[i] = f.o[r * t->dv + i] * scale;
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_FLASH_NARROW_KERNELS(isa) \
    void agk_flash_narrow_begin_##isa(const agk_flash_tile *t) \
    { \
        v_flash_begin_narrow(t); \
    } \
    void agk_flash_narrow_block_##isa(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v) \
    { \
        v_flash_block_narrow(t, first, n, k, v); \
    } \
    void agk_flash_narrow_end_##isa(const agk_flash_tile *t) \
    { \
        v_flash_end_narrow(t); \
    }

#endif
