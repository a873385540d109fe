/* soft_max of one row on vectors: the largest logit, exp with its sum, the division.
 * Included after an ISA's math.h. */
#ifndef AGK_VEC_SOFT_MAX_H
#define AGK_VEC_SOFT_MAX_H

#include <math.h>

#include "table/kernel_types.h"
#include "math.h"

enum { V_NO_MASK, V_MASK_F32, V_MASK_F16 };

AGK_INLINE vf v_soft_max_logit(int mask_form, int64_t i, int64_t n, const float *x, const agk_soft_max_row *row)
{
    vf v, mask;
    if (n < VF)
        v = v_load_n(x + i, n);
    else
        v = v_load(x + i);
    v = v * v_set(row->scale);
    if (mask_form == V_NO_MASK) return v;
    const uint16_t *halves = (const uint16_t *)row->mask + i;
    const float *floats = (const float *)row->mask + i;
    if (mask_form == V_MASK_F16 && n < VF)
        mask = v_load_f16_n(halves, n);
    else if (mask_form == V_MASK_F16)
        mask = v_load_f16(halves);
    else if (n < VF)
        mask = v_load_n(floats, n);
    else
        mask = v_load(floats);
    return v_fma(mask, v_set(row->slope), v);
}

/* The largest logit of a row, at least the sink. */
AGK_INLINE float v_soft_max_top(int mask_form, int64_t n, const float *x, const agk_soft_max_row *row)
{
    vf m0 = v_set(row->sink), m1 = m0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        m0 = v_max(v_soft_max_logit(mask_form, i, VF, x, row), m0);
        m1 = v_max(v_soft_max_logit(mask_form, i + VF, VF, x, row), m1);
    }
    if (i + VF <= n) {
        m0 = v_max(v_soft_max_logit(mask_form, i, VF, x, row), m0);
        i += VF;
    }
    if (i < n) m1 = v_max(v_fill(v_soft_max_logit(mask_form, i, n - i, x, row), n - i, m1), m1);
    return v_hmax(v_max(m0, m1));
}

/* exp(logit - top), and their sum. The logits are computed a second time, which is cheaper than storing and loading
 * them. */
AGK_INLINE float v_soft_max_exp(int mask_form, int64_t n, float *y, const float *x, const agk_soft_max_row *row,
                                float top)
{
    const vf m = v_set(top);
    vf s0 = v_zero(), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        const vf a = v_exp(v_soft_max_logit(mask_form, i, VF, x, row) - m);
        const vf b = v_exp(v_soft_max_logit(mask_form, i + VF, VF, x, row) - m);
        v_store(y + i, a);
        v_store(y + i + VF, b);
        s0 = s0 + a;
        s1 = s1 + b;
    }
    if (i + VF <= n) {
        const vf a = v_exp(v_soft_max_logit(mask_form, i, VF, x, row) - m);
        v_store(y + i, a);
        s0 = s0 + a;
        i += VF;
    }
    if (i < n) {
        const vf a = v_exp(v_soft_max_logit(mask_form, i, n - i, x, row) - m);
        v_store_n(y + i, a, n - i);
        s1 = s1 + v_fill(a, n - i, v_zero());
    }
    return v_sum(s0 + s1);
}

AGK_INLINE void v_soft_max_masked(int mask_form, int64_t n, float *y, const float *x, const agk_soft_max_row *in)
{
    const agk_soft_max_row row = *in; /* a copy: stores to y cannot change it */
    const float top = v_soft_max_top(mask_form, n, x, &row);
    float sum = v_soft_max_exp(mask_form, n, y, x, &row, top);
    if (row.sink > -INFINITY) sum += expf(row.sink - top);
    const vf scale = v_set(1.0f / sum);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(y + i, v_load(y + i) * scale);
    if (i < n) v_store_n(y + i, v_load_n(y + i, n - i) * scale, n - i);
}

static inline void v_soft_max(int64_t n, float *y, const float *x, const agk_soft_max_row *row)
{
    if (row->mask == NULL)
        v_soft_max_masked(V_NO_MASK, n, y, x, row);
    else if (row->mask_f16)
        v_soft_max_masked(V_MASK_F16, n, y, x, row);
    else
        v_soft_max_masked(V_MASK_F32, n, y, x, row);
}

/* The kernels of this file, named for an instruction set. */
#define V_SOFT_MAX_KERNELS(isa) \
    void agk_soft_max_f32_##isa(int64_t n, float *y, const float *x, const agk_soft_max_row *row) \
    { \
        v_soft_max(n, y, x, row); \
    }

#endif
