/* Unary functions, AVX2, FMA, F16C. Against scalar/unary.c: within 4 ulp (gelu: 2e-6 relative). Reached through the table only. */
#include "math.h"

#include "../vec/unary.h"

void agk_unary_f32_avx2(int op, int64_t n, float *y, const float *x)
{
    v_unary(op, n, y, x);
}
