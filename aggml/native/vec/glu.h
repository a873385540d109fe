/* f(x) * g on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_GLU_H
#define AGK_VEC_GLU_H

#include "unary.h"

V_INLINE void v_glu_loop(int op, int64_t n, float *y, const float *x, const float *g)
{
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + VF <= n; i += VF) v_store(y + i, v_unary_1(op, v_load(x + i)) * v_load(g + i));
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

#endif
