/* The cross entropy of one row in plain C. Not here: the other reductions, which have one form (lower/reduce.c). */
#include <math.h>

#include "table/kernel_types.h"

/* Sum of label * log(soft_max(logit)). */
double agk_cross_entropy_loss_f32_scalar(int64_t n, const float *logit, const float *label)
{
    double max = -INFINITY, sum = 0.0, loss = 0.0;
    for (int64_t i = 0; i < n; ++i) max = (double)logit[i] > max ? (double)logit[i] : max;
    for (int64_t i = 0; i < n; ++i) sum += exp((double)logit[i] - max);
    const double shift = max + log(sum);
    for (int64_t i = 0; i < n; ++i) loss += (double)label[i] * ((double)logit[i] - shift);
    return loss;
}
