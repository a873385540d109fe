/* Gated units of large f32 tensors on a Zen 5, see past.h. Bit for bit what kernels/avx512/glu.c gives. */
#include "past.h"

#include "kernels/vec/unary.h"

AGK_INLINE void past(int op, int64_t n, float *y, const float *x, const float *g)
{
    int64_t i = past_head(y, n);
    if (i > 0) v_store_n(y, v_unary_1(op, v_load_n(x, i)) * v_load_n(g, i), i);
    for (; i + 2 * VF <= n; i += 2 * VF) {
        vf two[2] = {past_load(x + i), past_load(x + i + VF)};
        v_unary_2(op, two);
        _mm512_stream_ps(y + i, two[0] * past_load(g + i));
        _mm512_stream_ps(y + i + VF, two[1] * past_load(g + i + VF));
    }
    for (; i < n; i += VF) {
        const int64_t rest = n - i < VF ? n - i : VF;
        v_store_n(y + i, v_unary_1(op, v_load_n(x + i, rest)) * v_load_n(g + i, rest), rest);
    }
    _mm_sfence(); /* other threads read the result after an atomic store, which does not wait for these */
}

void agk_glu_past_f32_zen5(int op, int64_t n, float *y, const float *x, const float *g)
{
    switch (op) {
    case AGK_OP_relu: past(AGK_OP_relu, n, y, x, g); return;
    case AGK_OP_gelu: past(AGK_OP_gelu, n, y, x, g); return;
    case AGK_OP_silu: past(AGK_OP_silu, n, y, x, g); return;
    case AGK_OP_gelu_erf: past(AGK_OP_gelu_erf, n, y, x, g); return;
    default: past(AGK_OP_gelu_quick, n, y, x, g); return;
    }
}
