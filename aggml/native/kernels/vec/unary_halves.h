/* Short unary functions of f16 and bf16 on vectors: numbers are widened in registers, each result is rounded once. The
 * results are bit for bit those of a conversion to f32, the function, and a conversion back. Included after an ISA's
 * math.h and halves.h.
 *
 * Not here: longer functions. With AVX2 exp, tanh and sigmoid took 1.15 to 1.4 times as long in this way, because the
 * chains of fewer vectors ran in parallel. */
#ifndef AGK_VEC_UNARY_HALVES_H
#define AGK_VEC_UNARY_HALVES_H

#include "halves.h"
#include "unary.h"

AGK_INLINE void v_unary_halves_loop(bool bf16, int op, int64_t n, uint16_t *y, const uint16_t *x)
{
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        const vf first = v_unary_1(op, v_load_halves(bf16, x + i));
        const vf second = v_unary_1(op, v_load_halves(bf16, x + i + VF));
        v_store_halves_2(bf16, y + i, first, second);
    }
    for (; i < n; i += VF) {
        const int64_t rest = n - i < VF ? n - i : VF;
        v_store_halves_n(bf16, y + i, v_unary_1(op, v_load_halves_n(bf16, x + i, rest)), rest);
    }
}

/* abs and neg: only signs change, and a signalling NaN becomes quiet, as in a conversion to f32. 4 instructions for a
 * whole register of halves, where widening and rounding take 20. */
AGK_INLINE void v_signs_halves(bool bf16, bool flip, int64_t n, uint16_t *y, const uint16_t *x)
{
    typedef uint16_t vh __attribute__((vector_size(4 * VF)));
    const uint16_t infinite = bf16 ? 0x7f80 : 0x7c00, quiet = bf16 ? 0x40 : 0x200, rest = 0x7fff;
    const uint16_t kept = flip ? 0xffff : 0x7fff, flipped = flip ? 0x8000 : 0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        vh u;
        memcpy(&u, x + i, sizeof u);
        u = ((u & kept) ^ flipped) | ((vh)((u & rest) > infinite) & quiet);
        memcpy(y + i, &u, sizeof u);
    }
    for (; i < n; ++i) {
        const uint16_t u = x[i];
        y[i] = (uint16_t)(((u & kept) ^ flipped) | ((u & rest) > infinite ? quiet : 0));
    }
}

AGK_INLINE void v_unary_halves(bool bf16, int op, int64_t n, uint16_t *y, const uint16_t *x)
{
    switch (op) {
    case AGK_OP_abs: v_signs_halves(bf16, false, n, y, x); return;
    case AGK_OP_neg: v_signs_halves(bf16, true, n, y, x); return;
#define V_CASE(name) \
    case AGK_OP_##name: v_unary_halves_loop(bf16, AGK_OP_##name, n, y, x); return;
        V_CASE(sgn)
        V_CASE(step)
        V_CASE(relu)
        V_CASE(sqr)
        V_CASE(sqrt)
        V_CASE(hardswish)
        V_CASE(hardsigmoid)
        V_CASE(floor)
        V_CASE(ceil)
        V_CASE(round)
        V_CASE(trunc)
#undef V_CASE
    default: return;
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_UNARY_HALVES_KERNELS(isa) \
    void agk_unary_f16_##isa(int op, int64_t n, void *y, const void *x) \
    { \
        v_unary_halves(false, op, n, y, x); \
    } \
    void agk_unary_bf16_##isa(int op, int64_t n, void *y, const void *x) \
    { \
        v_unary_halves(true, op, n, y, x); \
    }

#endif
