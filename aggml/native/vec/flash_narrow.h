/* Attention of a few rows (decoding): lanes along the width, each row by itself over a block of keys that lies in L1.
 * Included after an ISA's math.h. Not here: tiles with rows in the lanes (vec/flash_attn_ext.h). */
#ifndef AGK_VEC_FLASH_NARROW_H
#define AGK_VEC_FLASH_NARROW_H

#include "../flash.h"
#include "math.h"

enum { V_NARROW = AGK_FLASH_NARROW };

/* State: O [rows][dv], S [keys], mask [keys], max and sum of each row. */
typedef struct v_narrow_state {
    float *o, *s, *m, *max, *sum;
} v_narrow_state;

V_INLINE v_narrow_state v_narrow_of(const agk_flash_tile *t)
{
    v_narrow_state f = {.s = t->state};
    f.m = f.s + AGK_FLASH_KEYS;
    f.max = f.m + AGK_FLASH_KEYS;
    f.sum = f.max + V_NARROW;
    f.o = f.sum + V_NARROW;
    return f;
}

static inline void v_flash_begin_narrow(const agk_flash_tile *t)
{
    const v_narrow_state f = v_narrow_of(t);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        f.max[r] = -__builtin_inff();
        f.sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < t->n_rows * t->dv; ++i) f.o[i] = 0.0f;
}

V_INLINE vf v_part(const float *p, int64_t n)
{
    return n < VF ? v_load_n(p, n) : v_load(p);
}

/* s[j] = q . k[j], four keys at a time: four chains of products, one sum across lanes for all. */
V_INLINE void v_narrow_dots(int64_t n, int64_t d, const float *q, const float *k, float *s)
{
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        const float *row = k + j * d;
        vf acc[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        int64_t i = 0;
        for (; i + VF <= d; i += VF) {
            const vf x = v_load(q + i);
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) acc[r] = v_fma(x, v_load(row + r * d + i), acc[r]);
        }
        if (i < d) {
            const vf x = v_load_n(q + i, d - i);
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) acc[r] = v_fma(x, v_load_n(row + r * d + i, d - i), acc[r]);
        }
        v_sum4(acc, s + j);
    }
    for (; j < n; ++j) {
        vf acc = v_zero();
        for (int64_t i = 0; i < d; i += VF) acc = v_fma(v_part(q + i, d - i), v_part(k + j * d + i, d - i), acc);
        s[j] = v_sum(acc);
    }
}

/* o = o * shrink + sum of p[j] * v[j], nv vectors at once. */
V_INLINE void v_narrow_values(int nv, int64_t n, int64_t dv, const float *p, const float *v, float shrink, float *o)
{
    vf acc[4];
#pragma GCC unroll 4
    for (int h = 0; h < nv; ++h) acc[h] = v_load(o + h * VF) * v_set(shrink);
    for (int64_t j = 0; j < n; ++j) {
        const vf x = v_set(p[j]);
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) acc[h] = v_fma(x, v_load(v + j * dv + h * VF), acc[h]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < nv; ++h) v_store(o + h * VF, acc[h]);
}

V_INLINE void v_narrow_row(const agk_flash_tile *t, const v_narrow_state *f, int64_t r, int64_t first, int64_t n,
                           const float *k, const float *v)
{
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale), cap = v_set(t->softcap);
    const vf low = v_set(-__builtin_inff()), slope = v_set(t->slope[r]);
    vf max = v_set(f->max[r]);
    v_narrow_dots(n, t->d, (const float *)(const void *)(t->q + r * t->q_step), k, f->s);
    for (int64_t j = 0; j < n; j += VF) { /* S has room for whole vectors */
        vf s = v_load(f->s + j) * scale;
        if (t->softcap > 0.0f) s = cap * v_tanh(s);
        if (t->mask_kind != AGK_FLASH_NO_MASK) {
            const uint16_t *mask = (const uint16_t *)(const void *)(t->mask + r * t->mask_step) + first;
            const vf m = n - j < VF ? v_load_f16_n(mask + j, n - j) : v_load_f16(mask + j);
            s = v_select(v_eq(m, low), low, v_fma(m, slope, s));
        }
        if (n - j < VF) s = v_fill(s, n - j, low);
        v_store(f->s + j, s);
        max = v_max(s, max);
    }
    const float top = v_hmax(max), safe = top > -__builtin_inff() ? top : 0.0f;
    float shrink = 1.0f;
    if (top > f->max[r]) {
        float lanes[VF];
        v_store(lanes, v_exp(v_set(f->max[r] - safe)));
        shrink = lanes[0];
        f->max[r] = top;
    }
    vf sum = v_zero();
    for (int64_t j = 0; j < n; j += VF) {
        const vf p = v_exp(v_load(f->s + j) - v_set(safe));
        v_store(f->s + j, p);
        sum = sum + p;
    }
    f->sum[r] = f->sum[r] * shrink + v_sum(sum);
    float *o = f->o + r * t->dv;
    int64_t i = 0;
    for (; i + 4 * VF <= t->dv; i += 4 * VF) v_narrow_values(4, n, t->dv, f->s, v + i, shrink, o + i);
    for (; i + VF <= t->dv; i += VF) v_narrow_values(1, n, t->dv, f->s, v + i, shrink, o + i);
    if (i < t->dv) {
        vf acc = v_load_n(o + i, t->dv - i) * v_set(shrink);
        for (int64_t j = 0; j < n; ++j) acc = v_fma(v_set(f->s[j]), v_load_n(v + j * t->dv + i, t->dv - i), acc);
        v_store_n(o + i, acc, t->dv - i);
    }
}

static inline void v_flash_block_narrow(const agk_flash_tile *t, int64_t first, int64_t n, const float *k, const float *v)
{
    const v_narrow_state f = v_narrow_of(t);
    for (int64_t r = 0; r < t->n_rows; ++r) v_narrow_row(t, &f, r, first, n, k, v);
}

static inline void v_flash_end_narrow(const agk_flash_tile *t)
{
    const v_narrow_state f = v_narrow_of(t);
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

#endif
