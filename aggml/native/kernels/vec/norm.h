/* norm, rms_norm and l2_norm on vectors: sums of VF x 4 lanes in f32 over 1024 elements, these in double.
 * Included after an ISA's math.h. */
#ifndef AGK_VEC_NORM_H
#define AGK_VEC_NORM_H

#include <math.h>

#include "table/kernel_types.h"

enum { V_NORM_PART = 1024 };

/* sum + (v - shift)^2, or sum + v. */
AGK_INLINE vf v_norm_add(int squares, vf sum, vf v, vf shift)
{
    if (!squares) return sum + v;
    return v_fma(v - shift, v - shift, sum);
}

/* Sum of (x[i] - shift)^2, or of x[i]. A lane adds at most 34 terms before the double takes over. */
AGK_INLINE double v_norm_sum(int squares, int64_t n, const float *x, float shift)
{
    const vf s = v_set(shift);
    double total = 0.0;
    for (int64_t part = 0; part < n; part += V_NORM_PART) {
        const int64_t end = n - part < V_NORM_PART ? n : part + V_NORM_PART;
        vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        int64_t i = part;
        for (; i + 4 * VF <= end; i += 4 * VF) {
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) sum[k] = v_norm_add(squares, sum[k], v_load(x + i + k * VF), s);
        }
        for (; i + VF <= end; i += VF) sum[0] = v_norm_add(squares, sum[0], v_load(x + i), s);
        if (i < end) { /* the missing lanes are set to the shift, or to 0 */
            const vf v = v_fill(v_load_n(x + i, end - i), end - i, s);
            sum[1] = v_norm_add(squares, sum[1], v, s);
        }
        total += (double)v_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return total;
}

AGK_INLINE void v_norm_scale(int64_t n, float *y, const float *x, float shift, float scale)
{
    const vf m = v_set(shift), s = v_set(scale);
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + VF <= n; i += VF) v_store(y + i, (v_load(x + i) - m) * s);
    if (i < n) v_store_n(y + i, (v_load_n(x + i, n - i) - m) * s, n - i);
}

static inline void v_norm(int64_t n, float *y, const float *x, float eps)
{
    const float mean = (float)(v_norm_sum(0, n, x, 0.0f) / (double)n);
    const double variance = v_norm_sum(1, n, x, mean) / (double)n;
    v_norm_scale(n, y, x, mean, (float)(1.0 / sqrt(variance + (double)eps)));
}

static inline void v_rms_norm(int64_t n, float *y, const float *x, float eps)
{
    const double square = v_norm_sum(1, n, x, 0.0f) / (double)n;
    v_norm_scale(n, y, x, 0.0f, (float)(1.0 / sqrt(square + (double)eps)));
}

static inline void v_l2_norm(int64_t n, float *y, const float *x, float eps)
{
    const double square = v_norm_sum(1, n, x, 0.0f);
    v_norm_scale(n, y, x, 0.0f, (float)(1.0 / fmax(sqrt(square), (double)eps)));
}

/* The kernels of this file, named for an instruction set. */
#define V_NORM_KERNELS(isa) \
    void agk_norm_f32_##isa(int64_t n, float *y, const float *x, float eps) \
    { \
        v_norm(n, y, x, eps); \
    } \
    void agk_norm_rms_f32_##isa(int64_t n, float *y, const float *x, float eps) \
    { \
        v_rms_norm(n, y, x, eps); \
    } \
    void agk_norm_l2_f32_##isa(int64_t n, float *y, const float *x, float eps) \
    { \
        v_l2_norm(n, y, x, eps); \
    } \
    double agk_norm_sum_f32_##isa(bool squares, int64_t n, const float *x, float shift) \
    { \
        return squares ? v_norm_sum(1, n, x, shift) : v_norm_sum(0, n, x, shift); \
    } \
    void agk_norm_scale_f32_##isa(int64_t n, float *y, const float *x, float shift, float scale) \
    { \
        v_norm_scale(n, y, x, shift, scale); \
    }

#endif
