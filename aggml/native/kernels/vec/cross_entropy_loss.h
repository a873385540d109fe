/* The cross entropy of a row on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_CROSS_ENTROPY_LOSS_H
#define AGK_VEC_CROSS_ENTROPY_LOSS_H

#include "math.h"
#include "norm.h"

AGK_INLINE float v_most(int64_t n, const float *x)
{
    const vf low = v_set(-__builtin_inff());
    vf most[2] = {low, low};
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        most[0] = v_max(v_load(x + i), most[0]);
        most[1] = v_max(v_load(x + i + VF), most[1]);
    }
    for (; i + VF <= n; i += VF) most[0] = v_max(v_load(x + i), most[0]);
    if (i < n) most[0] = v_max(v_fill(v_load_n(x + i, n - i), n - i, low), most[0]);
    return v_hmax(v_max(most[0], most[1]));
}

/* Sum of e^(x[i] - shift). */
AGK_INLINE double v_exp_sum(int64_t n, const float *x, float shift)
{
    const vf s = v_set(shift), none = v_set(-__builtin_inff());
    double total = 0.0;
    for (int64_t part = 0; part < n; part += V_NORM_PART) {
        const int64_t end = n - part < V_NORM_PART ? n : part + V_NORM_PART;
        vf sum[2] = {v_zero(), v_zero()};
        int64_t i = part;
        for (; i + 2 * VF <= end; i += 2 * VF) {
            sum[0] = sum[0] + v_exp(v_load(x + i) - s);
            sum[1] = sum[1] + v_exp(v_load(x + i + VF) - s);
        }
        for (; i + VF <= end; i += VF) sum[0] = sum[0] + v_exp(v_load(x + i) - s);
        if (i < end) sum[1] = sum[1] + v_exp(v_fill(v_load_n(x + i, end - i) - s, end - i, none));
        total += (double)v_sum(sum[0] + sum[1]);
    }
    return total;
}

/* Sum of label * log(soft_max(logit)). */
static inline double v_entropy(int64_t n, const float *logit, const float *label)
{
    const float most = v_most(n, logit);
    const double shift = (double)most + log(v_exp_sum(n, logit, most));
    double loss = 0.0;
    for (int64_t i = 0; i < n; i += 8) {
        double sum[8] = {0};
        const int64_t end = n - i < 8 ? n - i : 8;
        for (int64_t k = 0; k < end; ++k) sum[k] = (double)label[i + k] * ((double)logit[i + k] - shift);
        loss += ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
    }
    return loss;
}

/* The kernels of this file, named for an instruction set. */
#define V_CROSS_ENTROPY_LOSS_KERNELS(isa) \
    double agk_cross_entropy_loss_f32_##isa(int64_t n, const float *logit, const float *label) \
    { \
        return v_entropy(n, logit, label); \
    }

#endif
