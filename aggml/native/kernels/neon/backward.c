/* Gradients and losses row by row, neon: sums of lanes over 1024 elements, these in double; against lower/backward.c and
 * lower/reduce.c within 1e-6 of the row's largest element. */
#include "math.h"

#include "kernels/vec/backward.h"

void agk_rms_norm_back_f32_neon(int64_t n, float *out, const float *grad, const float *x, float eps)
{
    v_rms_norm_back(n, out, grad, x, eps);
}

void agk_soft_max_back_f32_neon(int64_t n, float *out, const float *grad, const float *y, float scale)
{
    v_soft_max_back(n, out, grad, y, scale);
}

double agk_entropy_f32_neon(int64_t n, const float *logit, const float *label)
{
    return v_entropy(n, logit, label);
}

void agk_entropy_back_f32_neon(int64_t n, float *out, const float *logit, const float *label, double times)
{
    v_entropy_back(n, out, logit, label, times);
}
