/* The functions of one operand in plain C, by libm. Not here: which rows are walked (lower/unary.c). */
#include <math.h>

#include "table/kernel_types.h"

/* 0.5 x (1 + tanh(u)), written so that nothing cancels for negative x; ggml's table ends at 10. */
static inline float gelu(float x)
{
    if (x <= -10.0f) return 0.0f;
    if (x >= 10.0f) return x;
    return x / (1.0f + expf(-2.0f * 0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

/* Values beyond the range of f16 count as infinite, since ggml's table is one of f16. */
static inline float gelu_quick(float x)
{
    if (fabsf(x) >= 65520.0f) x = copysignf(INFINITY, x);
    return x / (1.0f + expf(-1.702f * x));
}

/* (x + 3) / 6 within 0 and 1; NaN gives 0. */
static inline float hardsigmoid(float x)
{
    return fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
}

#define LOOP(name, expression) \
    case AGK_OP_##name: \
        for (int64_t i = 0; i < n; ++i) { \
            const float v = x[i]; \
            y[i] = (expression); \
        } \
        return;

void agk_unary_f32_scalar(int op, int64_t n, float *y, const float *x)
{
    switch (op) {
        LOOP(abs, fabsf(v))
        LOOP(sgn, v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f)
        LOOP(neg, -v)
        LOOP(step, v > 0.0f ? 1.0f : 0.0f)
        LOOP(tanh, tanhf(v))
        LOOP(elu, v > 0.0f ? v : expm1f(v))
        LOOP(relu, v > 0.0f ? v : 0.0f)
        LOOP(sigmoid, 1.0f / (1.0f + expf(-v)))
        LOOP(gelu, gelu(v))
        LOOP(gelu_quick, gelu_quick(v))
        LOOP(gelu_erf, 0.5f * v * erfcf(v * -0.70710678f))
        LOOP(silu, v / (1.0f + expf(-v)))
        LOOP(exp, expf(v))
        LOOP(expm1, expm1f(v))
        LOOP(softplus, v > 20.0f ? v : log1pf(expf(v)))
        LOOP(hardswish, v * hardsigmoid(v))
        LOOP(hardsigmoid, hardsigmoid(v))
        LOOP(floor, floorf(v))
        LOOP(ceil, ceilf(v))
        LOOP(round, roundf(v))
        LOOP(trunc, truncf(v))
        LOOP(log, logf(v))
        LOOP(sin, sinf(v))
        LOOP(cos, cosf(v))
        LOOP(sqr, v * v)
        LOOP(sqrt, sqrtf(v))
    default: return;
    }
}

/* Functions with parameters. xielu: 1 alpha_n + beta, 2 alpha_p, both after softplus, 3 beta, 4 eps. */
void agk_unary_params_f32_scalar(int op, int64_t n, float *y, const float *x, const float *p)
{
    const float p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3], p4 = p[4];
    switch (op) {
        LOOP(clamp, v < p1 ? (v > p0 ? v : p0) : (p1 > p0 ? p1 : p0)) /* NaN gives max */
        LOOP(leaky_relu, v > 0.0f ? v : v < 0.0f ? v * p0 : 0.0f)
        LOOP(xielu, v > 0.0f ? p2 * v * v + p3 * v : (expm1f(fminf(v, p4)) - v) * p1 + p3 * v)
    default: return;
    }
}

/* Blocks of 64 by way of f32. */
#define HALVES(type) \
    void agk_unary_##type##_scalar(int op, int64_t n, void *y, const void *x) \
    { \
        enum { BLOCK = 64 }; \
        float v[BLOCK]; \
        for (int64_t i = 0; i < n; i += BLOCK) { \
            const int64_t part = n - i < BLOCK ? n - i : BLOCK; \
            agk_##type##_to_f32_scalar((const uint16_t *)x + i, v, part); \
            agk_unary_f32_scalar(op, part, v, v); \
            agk_f32_to_##type##_scalar(v, (uint16_t *)y + i, part); \
        } \
    }
HALVES(f16)
HALVES(bf16)
