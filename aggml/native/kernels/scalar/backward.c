/* Gradients of silu, rms_norm, soft_max and the cross entropy in plain C, sums in double.
 *
 * out may be any of the operands. Not here: which rows are walked (lower/backward.c). */
#include <math.h>

#include "table/kernel_types.h"

void agk_backward_silu_f32_scalar(int64_t n, float *y, const float *g, const float *x)
{
    for (int64_t i = 0; i < n; ++i) {
        const float s = 1.0f / (1.0f + expf(-x[i]));
        y[i] = g[i] * s * (1.0f + x[i] * (1.0f - s));
    }
}

/* y = x / sqrt(mean(x^2) + eps) */
void agk_backward_rms_norm_f32_scalar(int64_t n, float *out, const float *grad, const float *x, float eps)
{
    double square = 0.0, dot = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        square += (double)x[i] * (double)x[i];
        dot += (double)x[i] * (double)grad[i];
    }
    const double mean = square / (double)n + (double)eps;
    const double scale = 1.0 / sqrt(mean), along = -dot / (mean * (double)n);
    for (int64_t i = 0; i < n; ++i) out[i] = (float)(((double)x[i] * along + (double)grad[i]) * scale);
}

/* y = soft_max(scale * x) */
void agk_backward_soft_max_f32_scalar(int64_t n, float *out, const float *grad, const float *y, float scale)
{
    double dot = 0.0;
    for (int64_t i = 0; i < n; ++i) dot += (double)y[i] * (double)grad[i];
    for (int64_t i = 0; i < n; ++i) out[i] = (float)((((double)grad[i] - dot) * (double)y[i]) * (double)scale);
}

/* The gradient where labels add up to 1: soft_max(logit) - label, times the incoming gradient of the row. */
void agk_backward_entropy_f32_scalar(int64_t n, float *out, const float *logit, const float *label, double times)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < n; ++i) max = (double)logit[i] > max ? (double)logit[i] : max;
    for (int64_t i = 0; i < n; ++i) sum += exp((double)logit[i] - max);
    for (int64_t i = 0; i < n; ++i) out[i] = (float)((exp((double)logit[i] - max) / sum - (double)label[i]) * times);
}
