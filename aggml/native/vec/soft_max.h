/* soft_max of one row on vectors: the scaled and masked row with its maximum, exp with its sum, the division.
 * Included after an ISA's math.h. */
#ifndef AGK_VEC_SOFT_MAX_H
#define AGK_VEC_SOFT_MAX_H

#include <math.h>

#include "../kernel_types.h"
#include "math.h"

enum { V_NO_MASK, V_MASK_F32, V_MASK_F16 };

V_INLINE vf v_soft_max_logit(int kind, int64_t i, int64_t n, const float *x, const agk_soft_max_row *row)
{
    const vf v = (n < VF ? v_load_n(x + i, n) : v_load(x + i)) * v_set(row->scale);
    if (kind == V_NO_MASK) return v;
    const uint16_t *h = (const uint16_t *)row->mask + i;
    const float *f = (const float *)row->mask + i;
    const vf mask = kind == V_MASK_F16 ? (n < VF ? v_load_f16_n(h, n) : v_load_f16(h))
                                       : (n < VF ? v_load_n(f, n) : v_load(f));
    return v_fma(mask, v_set(row->slope), v);
}

/* Stores the logits in y; their maximum, at least the sink. */
V_INLINE float v_soft_max_logits(int kind, int64_t n, float *y, const float *x, const agk_soft_max_row *row)
{
    vf m0 = v_set(row->sink), m1 = m0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        const vf a = v_soft_max_logit(kind, i, VF, x, row), b = v_soft_max_logit(kind, i + VF, VF, x, row);
        v_store(y + i, a);
        v_store(y + i + VF, b);
        m0 = v_max(a, m0);
        m1 = v_max(b, m1);
    }
    if (i + VF <= n) {
        const vf a = v_soft_max_logit(kind, i, VF, x, row);
        v_store(y + i, a);
        m0 = v_max(a, m0);
        i += VF;
    }
    if (i < n) {
        const vf a = v_soft_max_logit(kind, i, n - i, x, row);
        v_store_n(y + i, a, n - i);
        m1 = v_max(v_fill(a, n - i, m1), m1);
    }
    return v_hmax(v_max(m0, m1));
}

static inline void v_soft_max(int64_t n, float *y, const float *x, const agk_soft_max_row *row)
{
    const float max = row->mask == NULL  ? v_soft_max_logits(V_NO_MASK, n, y, x, row)
                      : row->mask_f16    ? v_soft_max_logits(V_MASK_F16, n, y, x, row)
                                         : v_soft_max_logits(V_MASK_F32, n, y, x, row);
    const vf m = v_set(max);
    vf s0 = v_zero(), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        const vf a = v_exp(v_load(y + i) - m), b = v_exp(v_load(y + i + VF) - m);
        v_store(y + i, a);
        v_store(y + i + VF, b);
        s0 = s0 + a;
        s1 = s1 + b;
    }
    if (i + VF <= n) {
        const vf a = v_exp(v_load(y + i) - m);
        v_store(y + i, a);
        s0 = s0 + a;
        i += VF;
    }
    if (i < n) {
        const vf a = v_exp(v_load_n(y + i, n - i) - m);
        v_store_n(y + i, a, n - i);
        s1 = s1 + v_fill(a, n - i, v_zero());
    }
    const float sum = v_sum(s0 + s1) + (row->sink > -INFINITY ? expf(row->sink - max) : 0.0f);
    const vf scale = v_set(1.0f / sum);
    for (i = 0; i + VF <= n; i += VF) v_store(y + i, v_load(y + i) * scale);
    if (i < n) v_store_n(y + i, v_load_n(y + i, n - i) * scale, n - i);
}

#endif
