/* rope, AVX2, FMA, F16C. Against lower/rope.c: sines and cosines within 2e-7. */
#include "math.h"

#include "kernels/vec/rope.h"

void agk_rope_table_avx2(int64_t n, double position, const double *freq, float magnitude, float *cosine, float *sine)
{
    v_rope_table(n, position, freq, magnitude, cosine, sine);
}

void agk_rope_rotate_avx2(bool neox, int64_t half, float *y, const float *x, const float *cosine, const float *sine)
{
    v_rope_rotate(neox, half, y, x, cosine, sine);
}
