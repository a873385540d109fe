/* soft_max of one row of f32 in plain C, the sum in double. Not here: which rows are walked (lower/soft_max.c). */
#include <math.h>

#include "formats/quant.h"
#include "table/kernel_types.h"

void agk_soft_max_f32_scalar(int64_t n, float *y, const float *x, const agk_soft_max_row *row)
{
    const uint16_t *halves = row->mask;
    const float *floats = row->mask;
    float max = row->sink;
    for (int64_t i = 0; i < n; ++i) {
        float v = x[i] * row->scale;
        if (row->mask != NULL) v += row->slope * (row->mask_f16 ? agk_f16_to_float(halves[i]) : floats[i]);
        y[i] = v;
        max = v > max ? v : max;
    }
    double sum = row->sink > -INFINITY ? (double)expf(row->sink - max) : 0.0;
    for (int64_t i = 0; i < n; ++i) {
        y[i] = expf(y[i] - max);
        sum += (double)y[i];
    }
    const float scale = (float)(1.0 / sum);
    for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}
