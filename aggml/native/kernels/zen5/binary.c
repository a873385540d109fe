/* add, sub, mul, div of large f32 tensors on a Zen 5, see past.h. Bit for bit what plain C gives. */
#include "past.h"

#include "kernels/vec/binary.h"

AGK_INLINE void past(int op, int64_t n, float *y, const float *a, const float *b)
{
    int64_t i = past_head(y, n);
    if (i > 0) v_store_n(y, v_binary_1(op, v_load_n(a, i), v_load_n(b, i)), i);
#pragma GCC unroll 4
    for (; i + VF <= n; i += VF) _mm512_stream_ps(y + i, v_binary_1(op, past_load(a + i), past_load(b + i)));
    if (i < n) v_store_n(y + i, v_binary_1(op, v_load_n(a + i, n - i), v_load_n(b + i, n - i)), n - i);
    _mm_sfence(); /* other threads read the result after an atomic store, which does not wait for these */
}

void agk_binary_past_f32_zen5(int op, int64_t n, float *y, const float *a, const float *b)
{
    switch (op) {
    case AGK_OP_add: past(AGK_OP_add, n, y, a, b); return;
    case AGK_OP_sub: past(AGK_OP_sub, n, y, a, b); return;
    case AGK_OP_mul: past(AGK_OP_mul, n, y, a, b); return;
    default: past(AGK_OP_div, n, y, a, b); return;
    }
}
