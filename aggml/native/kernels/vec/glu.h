/* f(x) * g on vectors, swiglu_oai, swiglu_clamp. Included after an ISA's math.h. */
#ifndef AGK_VEC_GLU_H
#define AGK_VEC_GLU_H

#include "unary.h"

AGK_INLINE void v_glu_loop(int op, int64_t n, float *y, const float *x, const float *g)
{
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        vf two[2] = {v_load(x + i), v_load(x + i + VF)};
        v_unary_2(op, two);
        v_store(y + i, two[0] * v_load(g + i));
        v_store(y + i + VF, two[1] * v_load(g + i + VF));
    }
    if (i + VF <= n) {
        v_store(y + i, v_unary_1(op, v_load(x + i)) * v_load(g + i));
        i += VF;
    }
    if (i < n) v_store_n(y + i, v_unary_1(op, v_load_n(x + i, n - i)) * v_load_n(g + i, n - i), n - i);
}

static inline void v_glu(int op, int64_t n, float *y, const float *x, const float *g)
{
    switch (op) {
    case AGK_OP_relu: v_glu_loop(AGK_OP_relu, n, y, x, g); return;
    case AGK_OP_gelu: v_glu_loop(AGK_OP_gelu, n, y, x, g); return;
    case AGK_OP_silu: v_glu_loop(AGK_OP_silu, n, y, x, g); return;
    case AGK_OP_gelu_erf: v_glu_loop(AGK_OP_gelu_erf, n, y, x, g); return;
    case AGK_OP_gelu_quick: v_glu_loop(AGK_OP_gelu_quick, n, y, x, g); return;
    default: return;
    }
}

/* min(x, limit) * sigmoid(alpha * min(x, limit)) * (g within +-limit, plus offset). The limit is the first operand of
 * v_min and v_max, so that NaN passes. */
static inline void v_swiglu_limited(int64_t n, float *y, const float *x, const float *g, float alpha, float limit,
                                    float offset)
{
    const vf top = v_set(limit), bottom = v_set(-limit), minus = v_set(-alpha), one = v_set(1.0f), plus = v_set(offset);
    for (int64_t i = 0; i < n; i += VF) {
        const bool whole = i + VF <= n;
        const vf v = v_min(top, whole ? v_load(x + i) : v_load_n(x + i, n - i));
        const vf w = v_max(bottom, v_min(top, whole ? v_load(g + i) : v_load_n(g + i, n - i)));
        const vf z = v / (one + v_exp(minus * v)) * (w + plus);
        if (whole)
            v_store(y + i, z);
        else
            v_store_n(y + i, z, n - i);
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_GLU_KERNELS(isa) \
    void agk_glu_f32_##isa(int op, int64_t n, float *y, const float *x, const float *g) \
    { \
        v_glu(op, n, y, x, g); \
    } \
    void agk_glu_limited_f32_##isa(int64_t n, float *y, const float *x, const float *g, float alpha, float limit, \
                                   float offset) \
    { \
        v_swiglu_limited(n, y, x, g, alpha, limit, offset); \
    }

#endif
