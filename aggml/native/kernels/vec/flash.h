/* Attention on tiles of rows, rows in the lanes: no sum across lanes, K and V are broadcast as they lie.
 *
 * Everything is kept transposed: Q^T [d][32], S^T [keys][32], O^T [dv][32]. The two products are blocks of V_R keys (or
 * values) x 2 vectors in registers; with 8 lanes and 16 registers, of 3 x 4 or 6 x 2. Logits are those of base 2: Q is
 * multiplied with log2(e) as well. Included after an ISA's math.h. Not here: kernels/vec/flash_narrow.h. */
#ifndef AGK_VEC_FLASH_H
#define AGK_VEC_FLASH_H

#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "math.h"

enum { V_T = AGK_FLASH_TILE, V_R = 8 };

#ifndef V_ADD_PRODUCT /* sum += x * y */
#define V_ADD_PRODUCT(sum, x, y) (*(sum) = v_fma(x, y, *(sum)))
#endif

#define V_LOG2E 1.44269504f

typedef struct v_flash {
    float *q, *o, *s, *m, *max, *sum;
} v_flash;

AGK_INLINE v_flash v_flash_state(const agk_flash_tile *t)
{
    v_flash f = {.q = t->state};
    f.o = f.q + V_T * t->d;
    f.s = f.o + V_T * t->dv;
    f.m = f.s + V_T * AGK_FLASH_KEYS;
    f.max = f.m + V_T * AGK_FLASH_KEYS;
    f.sum = f.max + V_T;
    return f;
}

/* Floats [n][VF] at to + i * V_T from rows at from + lane * step; lanes from n_rows on become 0. whole: all lanes have
 * a row, and n fills a vector. */
AGK_INLINE void v_gather_part(bool whole, const char *from, int64_t stride, int64_t n_rows, int64_t n, int halves,
                              float scale, float *to)
{
    vf r[VF];
#pragma GCC unroll 16
    for (int lane = 0; lane < VF; ++lane, from += stride) {
        const float *x = (const float *)(const void *)from;
        const uint16_t *h = (const uint16_t *)(const void *)from;
        if (!whole && lane >= n_rows)
            r[lane] = v_zero();
        else if (halves)
            r[lane] = whole || n >= VF ? v_load_f16(h) : v_load_f16_n(h, n);
        else
            r[lane] = (whole || n >= VF ? v_load(x) : v_load_n(x, n)) * v_set(scale);
    }
    v_transpose(r);
#pragma GCC unroll 16
    for (int k = 0; k < VF; ++k) {
        if (whole || k < n) v_store(to + k * V_T, r[k]);
    }
}

AGK_INLINE void v_gather_rows(const char *from, int64_t stride, int64_t n_rows, int64_t n, int halves, float scale,
                              float *to)
{
    for (int64_t i = 0; i < n; i += VF, from += VF * (halves ? 2 : 4), to += VF * V_T) {
        if (n_rows >= VF && n - i >= VF)
            v_gather_part(true, from, stride, VF, VF, halves, scale, to);
        else
            v_gather_part(false, from, stride, n_rows, n - i, halves, scale, to);
    }
}

static inline void v_flash_begin(const agk_flash_tile *t)
{
    const v_flash f = v_flash_state(t);
    const float scale = t->softcap > 0.0f ? t->scale / t->softcap : t->scale * V_LOG2E;
    for (int64_t first = 0; first < t->n_rows; first += VF) {
        v_gather_rows(t->q + first * t->q_step, t->q_step, t->n_rows - first, t->d, 0, scale, f.q + first);
        for (int64_t i = 0; i < t->dv; ++i) v_store(f.o + i * V_T + first, v_zero());
        v_store(f.max + first, v_set(-__builtin_inff()));
        v_store(f.sum + first, v_zero());
    }
}

/* out[r][32] (+)= sum over i < n of a[i][32] * b[r * across + i * along], for r < rows. */
AGK_INLINE void v_flash_product(int nv, int rows, int add, int64_t n, const float *a, const float *b, int64_t across,
                                int64_t along, float *out)
{
    vf acc[8][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < nv; ++h) acc[r][h] = add ? v_load(out + r * V_T + h * VF) : v_zero();
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; ++i) {
        vf x[2];
#pragma GCC unroll 2
        for (int h = 0; h < nv; ++h) x[h] = v_load(a + i * V_T + h * VF);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            vf y = v_set(b[r * across + i * along]);
            if (nv == 2) v_keep(&y);
#pragma GCC unroll 2
            for (int h = 0; h < nv; ++h) acc[r][h] = v_fma(x[h], y, acc[r][h]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < nv; ++h) v_store(out + r * V_T + h * VF, acc[r][h]);
    }
}

/* The same with 16 registers, 12 of them for sums. Of 4 vectors, one is in a register, beside all broadcasts: 7 loads
 * for 12 products. With 8 sums (4 x 2), products waited for sums: 0.74 to 0.77 instead of 0.81 to 0.87 of the peak. */
AGK_INLINE void v_flash_product_16(int nv, int rows, int add, int64_t n, const float *a, const float *b, int64_t across,
                                   int64_t along, float *out)
{
    vf acc[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) acc[r][h] = add ? v_load(out + r * V_T + h * VF) : v_zero();
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; ++i) {
        vf x[4], y[8];
#pragma GCC unroll 4
        for (int h = 0; h < nv && nv <= 2; ++h) x[h] = v_load(a + i * V_T + h * VF);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            y[r] = v_set(b[r * across + i * along]);
#pragma GCC unroll 2
            for (int h = 0; h < nv && nv <= 2; ++h) V_ADD_PRODUCT(&acc[r][h], x[h], y[r]);
        }
#pragma GCC unroll 4
        for (int h = 0; h < nv && nv > 2; ++h) {
            const vf one = v_load(a + i * V_T + h * VF);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) V_ADD_PRODUCT(&acc[r][h], one, y[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) v_store(out + r * V_T + h * VF, acc[r][h]);
    }
}

/* Prefetches rows from .. to - 1. All rows of a block in one burst would wait for buffers, so a few are prefetched
 * with each product. */
static inline void v_flash_ask(const agk_flash_ahead *ahead, int64_t from, int64_t to)
{
    if (ahead->bytes == 0) return;
    for (int64_t j = from; j < to; ++j) {
        for (int64_t i = 0; i < ahead->bytes; i += 64) __builtin_prefetch(ahead->rows + j * ahead->stride + i, 0, 2);
    }
}

/* The same for any number of rows. Meanwhile `keys` rows are prefetched. */
AGK_INLINE void v_flash_products(int nv, int add, int64_t rows, int64_t n, const float *a, const float *b,
                                 int64_t across, int64_t along, float *out, const agk_flash_ahead *ahead, int64_t keys)
{
    int64_t r = 0;
    if (VF == 8) {
        const int each = nv == 4 ? 3 : nv == 2 ? 6 : 8;
        for (; r + each <= rows; r += each) {
            v_flash_ask(ahead, r * keys / rows, (r + each) * keys / rows);
            v_flash_product_16(nv, each, add, n, a, b + r * across, across, along, out + r * V_T);
        }
        for (; r + 2 <= rows; r += 2)
            v_flash_product_16(nv, 2, add, n, a, b + r * across, across, along, out + r * V_T);
        if (r < rows) v_flash_product_16(nv, 1, add, n, a, b + r * across, across, along, out + r * V_T);
        return;
    }
    for (; r + V_R <= rows; r += V_R) {
        v_flash_ask(ahead, r * keys / rows, (r + V_R) * keys / rows);
        v_flash_product(nv, V_R, add, n, a, b + r * across, across, along, out + r * V_T);
    }
    for (; r + 2 <= rows; r += 2) v_flash_product(nv, 2, add, n, a, b + r * across, across, along, out + r * V_T);
    if (r < rows) v_flash_product(nv, 1, add, n, a, b + r * across, across, along, out + r * V_T);
}

/* S with softcap and mask; its maximum over the keys, at least `max`. */
AGK_INLINE vf v_flash_logits(int form, const agk_flash_tile *t, int64_t lane, int64_t n, float *s, const float *m,
                             vf max)
{
    const vf slope = v_load(t->slope + lane) * v_set(V_LOG2E), low = v_set(-__builtin_inff());
    const vf cap = v_set(t->softcap * V_LOG2E);
    const int capped = t->softcap > 0.0f;
    for (int64_t j = 0; j < n; ++j) {
        vf v = v_load(s + j * V_T);
        if (capped) v = cap * v_tanh(v);
        if (form != AGK_FLASH_NO_MASK) {
            const vf mask = form == AGK_FLASH_SAME_MASK ? v_set(m[j]) : v_load(m + j * V_T);
            /* a masked key counts nothing, even if it is NaN */
            v = v_select(v_eq(mask, low), low, v_fma(mask, slope, v));
        }
        if (capped || form != AGK_FLASH_NO_MASK) v_store(s + j * V_T, v);
        max = v_max(v, max);
    }
    return max;
}

/* The maximum alone. */
AGK_INLINE vf v_flash_max(int64_t n, const float *s, vf max)
{
    vf top[4] = {max, max, max, max};
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) top[k] = v_max(v_load(s + (j + k) * V_T), top[k]);
    }
    for (; j < n; ++j) max = v_max(v_load(s + j * V_T), max);
    return v_max(max, v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
}

/* 2^(S - max) in place; the sums of its lanes. */
AGK_INLINE vf v_flash_exp(int64_t n, float *s, vf max)
{
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            const vf p = v_exp2_down(v_load(s + (j + k) * V_T) - max);
            v_store(s + (j + k) * V_T, p);
            sum[k] = sum[k] + p;
        }
    }
    for (; j < n; ++j) {
        const vf p = v_exp2_down(v_load(s + j * V_T) - max);
        v_store(s + j * V_T, p);
        sum[0] = sum[0] + p;
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The logits of one vector of rows over a block of keys, and the maximum that is subtracted from them. Where a
 * maximum grew, O and the sums are scaled down. */
AGK_INLINE vf v_flash_top(const agk_flash_tile *t, const v_flash *f, int64_t lane, int64_t n, float *s)
{
    const vf old = v_load(f->max + lane), low = v_set(-__builtin_inff());
    const float *m = t->mask_form == AGK_FLASH_FULL_MASK ? f->m + lane : f->m;
    vf max;
    if (t->mask_form == AGK_FLASH_FULL_MASK)
        max = v_flash_logits(AGK_FLASH_FULL_MASK, t, lane, n, s, m, old);
    else if (t->mask_form == AGK_FLASH_SAME_MASK)
        max = v_flash_logits(AGK_FLASH_SAME_MASK, t, lane, n, s, m, old);
    else if (t->softcap > 0.0f)
        max = v_flash_logits(AGK_FLASH_NO_MASK, t, lane, n, s, m, old);
    else
        max = v_flash_max(n, s, old);
    /* for a row that has seen no key so far: 2^(-inf - 0) = 0 */
    const vf safe = v_select(v_eq(max, low), v_zero(), max);
    if (v_any(v_lt(old, max))) {
        const vf shrink = v_exp2_down(old - safe);
        v_store(f->sum + lane, v_load(f->sum + lane) * shrink);
        if (v_any(v_lt(low, old))) {
            for (int64_t i = 0; i < t->dv; ++i) v_store(f->o + i * V_T + lane, v_load(f->o + i * V_T + lane) * shrink);
        }
        v_store(f->max + lane, max);
    }
    return safe;
}

AGK_INLINE void v_flash_soft_max(const agk_flash_tile *t, const v_flash *f, int64_t lane, int64_t n)
{
    float *s = f->s + lane;
    const vf safe = v_flash_top(t, f, lane, n, s), sum = v_flash_exp(n, s, safe);
    v_store(f->sum + lane, v_load(f->sum + lane) + sum);
}

AGK_INLINE void v_flash_vectors(int nv, const agk_flash_tile *t, const v_flash *f, int64_t lane, int64_t n,
                                const float *k, const float *v)
{
    const int64_t keys = lane == 0 ? n : 0;
    v_flash_products(nv, 0, n, t->d, f->q + lane, k, t->d, 1, f->s + lane, &t->k_ahead, keys);
    for (int h = 0; h < nv; ++h) v_flash_soft_max(t, f, lane + h * VF, n);
    v_flash_products(nv, 1, t->dv, n, f->s + lane, v, 1, t->dv, f->o + lane, &t->v_ahead, keys);
}

/* The mask of a block of keys, [keys] or [keys][32]. */
AGK_INLINE void v_flash_mask(const agk_flash_tile *t, const v_flash *f, int64_t first, int64_t n)
{
    if (t->mask_form == AGK_FLASH_SAME_MASK) {
        const uint16_t *mask = (const uint16_t *)(const void *)t->mask + first;
        int64_t j = 0;
        for (; j + VF <= n; j += VF) v_store(f->m + j, v_load_f16(mask + j));
        if (j < n) v_store(f->m + j, v_load_f16_n(mask + j, n - j));
    } else if (t->mask_form == AGK_FLASH_FULL_MASK) {
        for (int64_t lane = 0; lane < t->n_rows; lane += VF) {
            v_gather_rows(t->mask + lane * t->mask_step + 2 * first, t->mask_step, t->n_rows - lane, n, 1, 1.0f,
                          f->m + lane);
        }
    }
}

static inline void v_flash_block(const agk_flash_tile *t, int64_t first, int64_t n, const float *k, const float *v)
{
    const v_flash f = v_flash_state(t);
    v_flash_mask(t, &f, first, n);
    int64_t lane = 0;
    for (; VF == 8 && t->n_rows - lane > 3 * VF; lane += 4 * VF) v_flash_vectors(4, t, &f, lane, n, k, v);
    for (; t->n_rows - lane > VF; lane += 2 * VF) v_flash_vectors(2, t, &f, lane, n, k, v);
    if (lane < t->n_rows) v_flash_vectors(1, t, &f, lane, n, k, v);
}

static inline void v_flash_end(const agk_flash_tile *t)
{
    const v_flash f = v_flash_state(t);
    for (int64_t lane = 0; lane < t->n_rows; lane += VF) {
        const vf max = v_load(f.max + lane), sum = v_load(f.sum + lane), sink = v_load(t->sink + lane) * v_set(V_LOG2E);
        const vf top = v_max(max, sink), low = v_set(-__builtin_inff());
        const vf safe = v_select(v_eq(top, low), v_zero(), top), shrink = v_exp2_down(max - safe);
        const vf total = v_fma(sum, shrink, v_exp2_down(sink - safe));
        const vf scale = v_select(v_eq(sum, v_zero()), v_zero(), shrink / total);
        for (int64_t i = 0; i < t->dv; i += VF) {
            const int64_t part = t->dv - i;
            vf r[VF];
#pragma GCC unroll 16
            for (int k = 0; k < VF; ++k) {
                r[k] = v_zero();
                if (k < part) r[k] = v_load(f.o + (i + k) * V_T + lane) * scale;
            }
            v_transpose(r);
#pragma GCC unroll 16
            for (int k = 0; k < VF; ++k) {
                float *out = (float *)(void *)(t->out + (lane + k) * t->out_step) + i;
                if (lane + k >= t->n_rows) continue;
                if (part >= VF)
                    v_store(out, r[k]);
                else
                    v_store_n(out, r[k], part);
            }
        }
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_FLASH_KERNELS(isa) \
    void agk_flash_begin_##isa(const agk_flash_tile *t) \
    { \
        v_flash_begin(t); \
    } \
    void agk_flash_block_##isa(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v) \
    { \
        v_flash_block(t, first, n, k, v); \
    } \
    void agk_flash_end_##isa(const agk_flash_tile *t) \
    { \
        v_flash_end(t); \
    }

#endif
