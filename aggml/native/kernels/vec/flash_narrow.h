/* Attention of a few rows (decoding): lanes along the width, K and V read once, as they lie, for up to V_NR rows.
 * Included after an ISA's math.h. Not here: tiles with rows in the lanes (kernels/vec/flash.h). */
#ifndef AGK_VEC_FLASH_NARROW_H
#define AGK_VEC_FLASH_NARROW_H

#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "math.h"

enum { V_NARROW = AGK_FLASH_NARROW, V_NR = VF == 8 ? 2 : 4 }; /* V_NR x 4 sums in registers */

static inline void v_flash_begin_narrow(const agk_flash_tile *t)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t->state);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        f.max[r] = -__builtin_inff();
        f.sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < t->n_rows * t->dv; ++i) f.o[i] = 0.0f;
}

/* n elements of a row from i on; n >= VF: a whole vector. */
AGK_INLINE vf v_row_part(int type, const char *row, int64_t i, int64_t n)
{
    const uint16_t *halves = (const uint16_t *)(const void *)row + i;
    const float *floats = (const float *)(const void *)row + i;
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

AGK_INLINE void v_narrow_dots_add(int type, int rows, int keys, const agk_flash_tile *t, int64_t i, int64_t n,
                                  const char *q, const char *k, vf acc[V_NR][4])
{
    vf x[4];
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j) x[j] = v_row_part(type, k + j * t->k_step, i, n);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        const vf y = v_row_part(AGK_F32, q + r * t->q_step, i, n);
#pragma GCC unroll 4
        for (int j = 0; j < keys; ++j) acc[r][j] = v_fma(x[j], y, acc[r][j]);
    }
}

/* s[r][j] = q[r] . k[j], four keys at a time: one sum across lanes for all four. */
AGK_INLINE void v_narrow_dots(int type, int rows, const agk_flash_tile *t, int64_t n, const char *q, const char *k,
                              float *s)
{
    int64_t j = 0;
    for (; j < n; j += j + 4 <= n ? 4 : 1) {
        const int four = j + 4 <= n;
        const char *from = k + j * t->k_step;
        vf acc[V_NR][4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int h = 0; h < 4; ++h) acc[r][h] = v_zero();
        }
        if (four) {
            int64_t i = 0;
            for (; i + VF <= t->d; i += VF) v_narrow_dots_add(type, rows, 4, t, i, VF, q, from, acc);
            if (i < t->d) v_narrow_dots_add(type, rows, 4, t, i, t->d - i, q, from, acc);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) v_sum4(acc[r], s + r * AGK_FLASH_KEYS + j);
        } else {
            for (int64_t i = 0; i < t->d; i += VF) v_narrow_dots_add(type, rows, 1, t, i, t->d - i, q, from, acc);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) s[r * AGK_FLASH_KEYS + j] = v_sum(acc[r][0]);
        }
    }
}

/* o[r] = o[r] * shrink[r] + sum of p[r][j] * v[j], `nv` vectors from element i on; n < VF: a part of one. */
AGK_INLINE void v_narrow_values(int type, int rows, int nv, const agk_flash_tile *t, int64_t i, int64_t n,
                                int64_t n_keys, const float *p, const char *v, const float *shrink, float *o)
{
    vf acc[V_NR][8];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int h = 0; h < nv; ++h) {
            acc[r][h] = v_row_part(AGK_F32, (const char *)(o + r * t->dv), i + h * VF, n) * v_set(shrink[r]);
        }
    }
    for (int64_t j = 0; j < n_keys; ++j) {
        vf x[8];
#pragma GCC unroll 8
        for (int h = 0; h < nv; ++h) x[h] = v_row_part(type, v + j * t->v_step, i + h * VF, n);
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

/* From products to exp(logit - maximum) in s, and the new maximum, sum and shrinkage of row r. */
AGK_INLINE void v_narrow_soft_max(const agk_flash_tile *t, const agk_flash_narrow *f, int64_t r, int64_t first,
                                  int64_t n, float *row)
{
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale), cap = v_set(t->softcap);
    const vf low = v_set(-__builtin_inff()), slope = v_set(t->slope[r]);
    vf max = v_set(f->max[r]);
    for (int64_t j = 0; j < n; j += VF) { /* S has room for whole vectors */
        vf s = v_load(row + j) * scale;
        if (t->softcap > 0.0f) s = cap * v_tanh(s);
        if (t->mask_kind != AGK_FLASH_NO_MASK) {
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

AGK_INLINE void v_narrow_values_all(int type, int rows, const agk_flash_tile *t, int64_t n, const float *p,
                                    const char *v, const float *shrink, float *o)
{
    enum { WIDE = VF == 8 ? 2 : 4 };
    int64_t i = 0;
    for (; i + WIDE * VF <= t->dv; i += WIDE * VF) v_narrow_values(type, rows, WIDE, t, i, VF, n, p, v, shrink, o);
    for (; i < t->dv; i += VF) v_narrow_values(type, rows, 1, t, i, t->dv - i, n, p, v, shrink, o);
}

AGK_INLINE void v_narrow_rows(int rows, const agk_flash_tile *t, const agk_flash_narrow *f, int64_t r, int64_t first,
                              int64_t n, const char *k, const char *v)
{
    float *s = f->s + r * AGK_FLASH_KEYS, *o = f->o + r * t->dv;
    const float *shrink = f->shrink + r;
    const char *q = t->q + r * t->q_step;
    if (t->k_type == AGK_F16)
        v_narrow_dots(AGK_F16, rows, t, n, q, k, s);
    else if (t->k_type == AGK_BF16)
        v_narrow_dots(AGK_BF16, rows, t, n, q, k, s);
    else
        v_narrow_dots(AGK_F32, rows, t, n, q, k, s);
    for (int h = 0; h < rows; ++h) v_narrow_soft_max(t, f, r + h, first, n, s + h * AGK_FLASH_KEYS);
    if (t->v_type == AGK_F16)
        v_narrow_values_all(AGK_F16, rows, t, n, s, v, shrink, o);
    else if (t->v_type == AGK_BF16)
        v_narrow_values_all(AGK_BF16, rows, t, n, s, v, shrink, o);
    else
        v_narrow_values_all(AGK_F32, rows, t, n, s, v, shrink, o);
}

static inline void v_flash_block_narrow(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t->state);
    int64_t r = 0;
    for (; r + V_NR <= t->n_rows; r += V_NR) v_narrow_rows(V_NR, t, &f, r, first, n, k, v);
    if (V_NR > 3 && r + 3 == t->n_rows) { /* keys and values are read and widened once, not twice */
        v_narrow_rows(3, t, &f, r, first, n, k, v);
        return;
    }
    for (; r + 2 <= t->n_rows; r += 2) v_narrow_rows(2, t, &f, r, first, n, k, v);
    for (; r < t->n_rows; ++r) v_narrow_rows(1, t, &f, r, first, n, k, v);
}

static inline void v_flash_end_narrow(const agk_flash_tile *t)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t->state);
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
