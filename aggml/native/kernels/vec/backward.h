/* Gradients on vectors: of whole rows, and of silu. Included after an ISA's math.h. */
#ifndef AGK_VEC_BACKWARD_H
#define AGK_VEC_BACKWARD_H

#include "math.h"
#include "norm.h"
#include "cross_entropy_loss.h"

/* Sum of x[i] * y[i], added up in the same way as in v_norm_sum. */
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

/* The gradient of a short row may be very small compared with its terms, so rows shorter than a vector keep doubles. */
static inline void v_rms_norm_back(int64_t n, float *out, const float *grad, const float *x, float eps)
{
    if (n < VF) {
        agk_backward_rms_norm_f32_scalar(n, out, grad, x, eps);
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
        agk_backward_soft_max_f32_scalar(n, out, grad, y, scale);
        return;
    }
    const vf dot = v_set((float)v_dot(n, y, grad)), s = v_set(scale);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(out + i, (v_load(grad + i) - dot) * v_load(y + i) * s);
    if (i < n) v_store_n(out + i, (v_load_n(grad + i, n - i) - dot) * v_load_n(y + i, n - i) * s, n - i);
}

static inline void v_entropy_back(int64_t n, float *out, const float *logit, const float *label, double times)
{
    if (n < VF) {
        agk_backward_entropy_f32_scalar(n, out, logit, label, times);
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

/* The gradient of silu: g s (1 + x (1 - s)), s = sigmoid(x). */
static inline void v_silu_back(int64_t n, float *y, const float *g, const float *x)
{
    const vf one = v_set(1.0f);
    for (int64_t i = 0; i < n; i += VF) {
        const bool whole = i + VF <= n;
        const vf v = whole ? v_load(x + i) : v_load_n(x + i, n - i);
        const vf w = whole ? v_load(g + i) : v_load_n(g + i, n - i);
        const vf s = v_sigmoid(v), z = w * s * v_fma(v, one - s, one);
        if (whole)
            v_store(y + i, z);
        else
            v_store_n(y + i, z, n - i);
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_BACKWARD_KERNELS(isa) \
    void agk_backward_silu_f32_##isa(int64_t n, float *y, const float *g, const float *x) \
    { \
        v_silu_back(n, y, g, x); \
    } \
    void agk_backward_rms_norm_f32_##isa(int64_t n, float *out, const float *grad, const float *x, float eps) \
    { \
        v_rms_norm_back(n, out, grad, x, eps); \
    } \
    void agk_backward_soft_max_f32_##isa(int64_t n, float *out, const float *grad, const float *y, float scale) \
    { \
        v_soft_max_back(n, out, grad, y, scale); \
    } \
    void agk_backward_entropy_f32_##isa(int64_t n, float *out, const float *logit, const float *label, double times) \
    { \
        v_entropy_back(n, out, logit, label, times); \
    }

#endif
