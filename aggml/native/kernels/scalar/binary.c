/* add, sub, mul, div of f32, f16 and bf16, and scale of f32, in plain C.
 *
 * Not here: which rows are walked (lower/binary.c). */
#include "table/kernel_types.h"

#define EACH(expression) \
    for (int64_t i = 0; i < n; ++i) { \
        const float v = a[i], w = one_b ? *b : b[i]; \
        y[i] = (expression); \
    } \
    break

void agk_binary_f32_scalar(int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    const bool one_b = r->one_b;
    for (int64_t row = 0; row < rows; ++row) {
        float *y = (float *)(void *)(r->y + row * r->step_y);
        const float *a = (const float *)(const void *)(r->a + row * r->step_a);
        const float *b = (const float *)(const void *)(r->b + row * r->step_b);
        switch (op) {
        case AGK_OP_add: EACH(v + w);
        case AGK_OP_sub: EACH(v - w);
        case AGK_OP_mul: EACH(v * w);
        default: EACH(v / w);
        }
    }
}

void agk_binary_scale_f32_scalar(int64_t n, float *y, const float *x, float scale, float bias)
{
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale + bias;
}

/* Blocks of 64 by way of f32. */
#define HALVES(type) \
    void agk_binary_##type##_scalar(int op, int64_t n, int64_t rows, const agk_binary_rows *r) \
    { \
        enum { BLOCK = 64 }; \
        float a[BLOCK], b[BLOCK]; \
        for (int64_t row = 0; row < rows; ++row) { \
            for (int64_t i = 0; i < n; i += BLOCK) { \
                const int64_t part = n - i < BLOCK ? n - i : BLOCK; \
                const agk_binary_rows x = {.y = (char *)a, .a = (const char *)a, .b = (const char *)b}; \
                agk_##type##_to_f32_scalar(r->a + row * r->step_a + 2 * i, a, part); \
                agk_##type##_to_f32_scalar(r->b + row * r->step_b + 2 * i, b, part); \
                agk_binary_f32_scalar(op, part, 1, &x); \
                agk_f32_to_##type##_scalar(a, r->y + row * r->step_y + 2 * i, part); \
            } \
        } \
    }
HALVES(f16)
HALVES(bf16)
