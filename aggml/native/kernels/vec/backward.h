/* Gradients and losses of whole rows on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_BACKWARD_H
#define AGK_VEC_BACKWARD_H

#include "math.h"
#include "norm.h"

/* Sum of x[i] * y[i], as v_norm_sum adds up. */
AGK_INLINE double v_dot(int64_t n, const float *x, const float *y)
{
    double total = 0.0;
    for (int64_t part = 0; part < n; part += V_NORM_PART) {
        const int64_t end = n - part < V_NORM_PART ? n : part + V_NORM_PART;
        vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        int64_t i = part;
        for (; i + 4 * VF <= end; i += 4 * VF) {
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) sum[k] = v_fma(v_load(x + i + k * VF), v_load(y + i + k * VF), sum[k]);
        }
        for (; i + VF <= end; i += VF) sum[0] = v_fma(v_load(x + i), v_load(y + i), sum[0]);
        if (i < end) sum[1] = v_fma(v_load_n(x + i, end - i), v_load_n(y + i, end - i), sum[1]);
        total += (double)v_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return total;
}

/* Of a few elements what is left of the gradient may be very small beside it: these keep doubles. */
static inline void v_rms_norm_back(int64_t n, float *out, const float *grad, const float *x, float eps)
{
    if (n < VF) {
        agk_rms_norm_back_f32_scalar(n, out, grad, x, eps);
        return;
    }
    const double mean = v_norm_sum(1, n, x, 0.0f) / (double)n + (double)eps;
    const vf scale = v_set((float)(1.0 / sqrt(mean))), along = v_set((float)(-v_dot(n, x, grad) / (mean * (double)n)));
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(out + i, v_fma(v_load(x + i), along, v_load(grad + i)) * scale);
    if (i < n) v_store_n(out + i, v_fma(v_load_n(x + i, n - i), along, v_load_n(grad + i, n - i)) * scale, n - i);
}

static inline void v_soft_max_back(int64_t n, float *out, const float *grad, const float *y, float scale)
{
    if (n < VF) {
        agk_soft_max_back_f32_scalar(n, out, grad, y, scale);
        return;
    }
    const vf dot = v_set((float)v_dot(n, y, grad)), s = v_set(scale);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(out + i, (v_load(grad + i) - dot) * v_load(y + i) * s);
    if (i < n) v_store_n(out + i, (v_load_n(grad + i, n - i) - dot) * v_load_n(y + i, n - i) * s, n - i);
}

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

static inline void v_entropy_back(int64_t n, float *out, const float *logit, const float *label, double times)
{
    if (n < VF) {
        agk_entropy_back_f32_scalar(n, out, logit, label, times);
        return;
    }
    const float most = v_most(n, logit);
    const vf s = v_set(most), part = v_set((float)(1.0 / v_exp_sum(n, logit, most))), t = v_set((float)times);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(out + i, (v_exp(v_load(logit + i) - s) * part - v_load(label + i)) * t);
    if (i < n) {
        v_store_n(out + i, (v_exp(v_load_n(logit + i, n - i) - s) * part - v_load_n(label + i, n - i)) * t, n - i);
    }
}

#endif
