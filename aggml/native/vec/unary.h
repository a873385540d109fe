/* The unary functions on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_UNARY_H
#define AGK_VEC_UNARY_H

#include "../kernel_types.h"
#include "math.h"

V_INLINE vf v_unary_1(int op, vf x)
{
    const vf zero = v_zero(), one = v_set(1.0f);
    switch (op) {
    case AGK_OP_abs: return v_abs(x);
    case AGK_OP_sgn: return v_select(v_lt(zero, x), one, v_select(v_lt(x, zero), v_set(-1.0f), zero));
    case AGK_OP_neg: return v_xor(x, v_set(-0.0f));
    case AGK_OP_step: return v_select(v_lt(zero, x), one, zero);
    case AGK_OP_tanh: return v_tanh(x);
    case AGK_OP_elu: return v_select(v_lt(zero, x), x, v_expm1(x));
    case AGK_OP_relu: return v_select(v_lt(zero, x), x, zero);
    case AGK_OP_sigmoid: return v_sigmoid(x);
    case AGK_OP_gelu: return v_gelu(x);
    case AGK_OP_gelu_quick: return v_gelu_quick(x);
    case AGK_OP_gelu_erf: return v_gelu_erf(x);
    case AGK_OP_silu: return v_silu(x);
    case AGK_OP_exp: return v_exp(x);
    case AGK_OP_sqr: return x * x;
    default: return v_sqrt(x);
    }
}

V_INLINE void v_unary_loop(int op, int64_t n, float *y, const float *x)
{
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + VF <= n; i += VF) v_store(y + i, v_unary_1(op, v_load(x + i)));
    if (i < n) v_store_n(y + i, v_unary_1(op, v_load_n(x + i, n - i)), n - i);
}

static inline void v_unary(int op, int64_t n, float *y, const float *x)
{
    switch (op) {
#define V_CASE(name) \
    case AGK_OP_##name: v_unary_loop(AGK_OP_##name, n, y, x); return;
        V_CASE(abs)
        V_CASE(sgn)
        V_CASE(neg)
        V_CASE(step)
        V_CASE(tanh)
        V_CASE(elu)
        V_CASE(relu)
        V_CASE(sigmoid)
        V_CASE(gelu)
        V_CASE(gelu_quick)
        V_CASE(gelu_erf)
        V_CASE(silu)
        V_CASE(exp)
        V_CASE(sqr)
        V_CASE(sqrt)
#undef V_CASE
    default: return;
    }
}

#endif
