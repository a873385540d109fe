/* Gated units, AVX2, FMA, F16C. Against scalar/glu.c: the bound of f in avx2/unary.c, times |g|, and one rounding. */
#include "math.h"

#include "../vec/glu.h"

void agk_glu_f32_avx2(int op, int64_t n, float *y, const float *x, const float *g)
{
    v_glu(op, n, y, x, g);
}
