/* Unary functions, NEON. Against lower/unary.c: within 4 ulp; gelu, gelu_quick and gelu_erf, whose
 * exponent is rounded, within 1e-6 of max(1, |x|). */
#include "math.h"

#include "kernels/vec/unary.h"

void agk_unary_f32_neon(int op, int64_t n, float *y, const float *x)
{
    v_unary(op, n, y, x);
}

void agk_unary_params_f32_neon(int op, int64_t n, float *y, const float *x, const float *p)
{
    v_unary_params(op, n, y, x, p);
}
