/* norm, rms_norm and l2_norm, AVX-512. Against lower/norm.c (sums in double): within 1e-6 of the row's largest
 * element. */
#include "math.h"

#include "kernels/vec/norm.h"

void agk_norm_f32_avx512(int64_t n, float *y, const float *x, float eps)
{
    v_norm(n, y, x, eps);
}

void agk_rms_norm_f32_avx512(int64_t n, float *y, const float *x, float eps)
{
    v_rms_norm(n, y, x, eps);
}

void agk_l2_norm_f32_avx512(int64_t n, float *y, const float *x, float eps)
{
    v_l2_norm(n, y, x, eps);
}

double agk_row_sum_f32_avx512(bool squares, int64_t n, const float *x, float shift)
{
    return squares ? v_norm_sum(1, n, x, shift) : v_norm_sum(0, n, x, shift);
}

void agk_row_scale_f32_avx512(int64_t n, float *y, const float *x, float shift, float scale)
{
    v_norm_scale(n, y, x, shift, scale);
}
