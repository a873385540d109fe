/* Gated units and the gradient of silu, AVX2, FMA, F16C. Against lower/glu.c: the bound of f in kernels/avx2/unary.c, times |g|, and one rounding. */
#include "math.h"

#include "kernels/vec/glu.h"

void agk_glu_f32_avx2(int op, int64_t n, float *y, const float *x, const float *g)
{
    v_glu(op, n, y, x, g);
}

void agk_swiglu_oai_f32_avx2(int64_t n, float *y, const float *x, const float *g, float alpha, float limit)
{
    v_swiglu_oai(n, y, x, g, alpha, limit);
}

void agk_silu_back_f32_avx2(int64_t n, float *y, const float *g, const float *x)
{
    v_silu_back(n, y, g, x);
}
