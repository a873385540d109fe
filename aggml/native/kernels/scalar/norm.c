/* norm, rms_norm and l2_norm of a row in plain C, and the row functions of group_norm; sums in double.
 *
 * Not here: which rows are walked (lower/norm.c, lower/group_norm.c). */
#include <math.h>

#include "table/kernel_types.h"

void agk_norm_f32_scalar(int64_t n, float *y, const float *x, float eps)
{
    double sum = 0.0, square = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += (double)x[i];
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < n; ++i) square += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1.0 / sqrt(square / (double)n + (double)eps);
    for (int64_t i = 0; i < n; ++i) y[i] = (float)(((double)x[i] - mean) * scale);
}

void agk_norm_rms_f32_scalar(int64_t n, float *y, const float *x, float eps)
{
    double square = 0.0;
    for (int64_t i = 0; i < n; ++i) square += (double)x[i] * (double)x[i];
    const double scale = 1.0 / sqrt(square / (double)n + (double)eps);
    for (int64_t i = 0; i < n; ++i) y[i] = (float)((double)x[i] * scale);
}

void agk_norm_l2_f32_scalar(int64_t n, float *y, const float *x, float eps)
{
    double square = 0.0;
    for (int64_t i = 0; i < n; ++i) square += (double)x[i] * (double)x[i];
    const double scale = 1.0 / fmax(sqrt(square), (double)eps);
    for (int64_t i = 0; i < n; ++i) y[i] = (float)((double)x[i] * scale);
}

double agk_norm_sum_f32_scalar(bool squares, int64_t n, const float *x, float shift)
{
    double sum = 0.0;
    if (!squares) {
        for (int64_t i = 0; i < n; ++i) sum += (double)x[i];
    } else {
        for (int64_t i = 0; i < n; ++i) sum += ((double)x[i] - (double)shift) * ((double)x[i] - (double)shift);
    }
    return sum;
}

void agk_norm_scale_f32_scalar(int64_t n, float *y, const float *x, float shift, float scale)
{
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - shift) * scale;
}
