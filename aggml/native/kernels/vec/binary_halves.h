/* add, sub, mul and div of f16 and bf16 on vectors: operands are widened in registers, each result is rounded once.
 * Included after an ISA's math.h and halves.h. */
#ifndef AGK_VEC_BINARY_HALVES_H
#define AGK_VEC_BINARY_HALVES_H

#include "binary.h"
#include "halves.h"

AGK_INLINE void v_binary_halves_loop(bool bf16, int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    for (int64_t row = 0; row < rows; ++row) {
        uint16_t *y = (uint16_t *)(void *)(r->y + row * r->step_y);
        const uint16_t *a = (const uint16_t *)(const void *)(r->a + row * r->step_a);
        const uint16_t *b = (const uint16_t *)(const void *)(r->b + row * r->step_b);
        int64_t i = 0;
#pragma GCC unroll 2
        for (; i + 2 * VF <= n; i += 2 * VF) {
            const vf first = v_binary_1(op, v_load_halves(bf16, a + i), v_load_halves(bf16, b + i));
            const vf second = v_binary_1(op, v_load_halves(bf16, a + i + VF), v_load_halves(bf16, b + i + VF));
            v_store_halves_2(bf16, y + i, first, second);
        }
        for (; i < n; i += VF) {
            const int64_t rest = n - i < VF ? n - i : VF;
            const vf x = v_binary_1(op, v_load_halves_n(bf16, a + i, rest), v_load_halves_n(bf16, b + i, rest));
            v_store_halves_n(bf16, y + i, x, rest);
        }
    }
}

AGK_INLINE void v_binary_halves(bool bf16, int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    switch (op) {
    case AGK_OP_add: v_binary_halves_loop(bf16, AGK_OP_add, n, rows, r); return;
    case AGK_OP_sub: v_binary_halves_loop(bf16, AGK_OP_sub, n, rows, r); return;
    case AGK_OP_mul: v_binary_halves_loop(bf16, AGK_OP_mul, n, rows, r); return;
    default: v_binary_halves_loop(bf16, AGK_OP_div, n, rows, r); return;
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_BINARY_HALVES_KERNELS(isa) \
    void agk_binary_f16_##isa(int op, int64_t n, int64_t rows, const agk_binary_rows *r) \
    { \
        v_binary_halves(false, op, n, rows, r); \
    } \
    void agk_binary_bf16_##isa(int op, int64_t n, int64_t rows, const agk_binary_rows *r) \
    { \
        v_binary_halves(true, op, n, rows, r); \
    }

#endif
