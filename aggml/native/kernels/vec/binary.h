/* add, sub, mul, div and scale on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_BINARY_H
#define AGK_VEC_BINARY_H

#include "table/kernel_types.h"

AGK_INLINE vf v_binary_1(int op, vf a, vf b)
{
    switch (op) {
    case AGK_OP_add: return a + b;
    case AGK_OP_sub: return a - b;
    case AGK_OP_mul: return a * b;
    default: return a / b;
    }
}

AGK_INLINE void v_binary_loop(int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    for (int64_t row = 0; row < rows; ++row) {
        float *y = (float *)(void *)(r->y + row * r->step_y);
        const float *a = (const float *)(const void *)(r->a + row * r->step_a);
        const float *b = (const float *)(const void *)(r->b + row * r->step_b);
        int64_t i = 0;
        if (r->one_b) {
            const vf w = v_set(*b);
#pragma GCC unroll 4
            for (; i + VF <= n; i += VF) v_store(y + i, v_binary_1(op, v_load(a + i), w));
            if (i < n) v_store_n(y + i, v_binary_1(op, v_load_n(a + i, n - i), w), n - i);
        } else {
#pragma GCC unroll 4
            for (; i + VF <= n; i += VF) v_store(y + i, v_binary_1(op, v_load(a + i), v_load(b + i)));
            if (i < n) {
                v_store_n(y + i, v_binary_1(op, v_load_n(a + i, n - i), v_load_n(b + i, n - i)), n - i);
            }
        }
    }
}

static inline void v_binary(int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    switch (op) {
    case AGK_OP_add: v_binary_loop(AGK_OP_add, n, rows, r); return;
    case AGK_OP_sub: v_binary_loop(AGK_OP_sub, n, rows, r); return;
    case AGK_OP_mul: v_binary_loop(AGK_OP_mul, n, rows, r); return;
    default: v_binary_loop(AGK_OP_div, n, rows, r); return;
    }
}

static inline void v_scale(int64_t n, float *y, const float *x, float scale, float bias)
{
    const vf s = v_set(scale), b = v_set(bias);
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + VF <= n; i += VF) v_store(y + i, v_load(x + i) * s + b);
    if (i < n) v_store_n(y + i, v_load_n(x + i, n - i) * s + b, n - i);
}

/* The kernels of this file, named for an instruction set. */
#define V_BINARY_KERNELS(isa) \
    void agk_binary_f32_##isa(int op, int64_t n, int64_t rows, const agk_binary_rows *r) \
    { \
        v_binary(op, n, rows, r); \
    } \
    void agk_binary_scale_f32_##isa(int64_t n, float *y, const float *x, float scale, float bias) \
    { \
        v_scale(n, y, x, scale, bias); \
    }

#endif
