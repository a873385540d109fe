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

AGK_INLINE void v_unary_halves(bool bf16, int op, int64_t n, uint16_t *y, const uint16_t *x)
{
    switch (op) {
#define V_CASE(name) \
    case AGK_OP_##name: v_unary_halves_loop(bf16, AGK_OP_##name, n, y, x); return;
        V_CASE(abs)
        V_CASE(sgn)
        V_CASE(neg)
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
