/* add, sub, mul, div of f32, f16 and bf16, and scale, AVX-512. Bit for bit what plain C gives
 * (kernels/scalar/binary.c). */
#include "math.h"

#include "halves.h"
#include "kernels/vec/binary.h"

V_BINARY_KERNELS(avx512)

AGK_INLINE vf read(bool bf16, const uint16_t *p)
{
    return bf16 ? v_load_bf16(p) : v_load_f16(p);
}

AGK_INLINE vf read_n(bool bf16, const uint16_t *p, int64_t n)
{
    return bf16 ? v_load_bf16_n(p, n) : v_load_f16_n(p, n);
}

AGK_INLINE void loop(bool bf16, int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    for (int64_t row = 0; row < rows; ++row) {
        uint16_t *y = (uint16_t *)(void *)(r->y + row * r->step_y);
        const uint16_t *a = (const uint16_t *)(const void *)(r->a + row * r->step_a);
        const uint16_t *b = (const uint16_t *)(const void *)(r->b + row * r->step_b);
        int64_t i = 0;
#pragma GCC unroll 2
        for (; i + 2 * VF <= n; i += 2 * VF) {
            const vf first = v_binary_1(op, read(bf16, a + i), read(bf16, b + i));
            const vf second = v_binary_1(op, read(bf16, a + i + VF), read(bf16, b + i + VF));
            if (bf16) {
                _mm512_storeu_si512(y + i, agk_two_to_bf16(first, second));
            } else {
                _mm256_storeu_si256((__m256i *)(void *)(y + i), agk_to_f16(first));
                _mm256_storeu_si256((__m256i *)(void *)(y + i + VF), agk_to_f16(second));
            }
        }
        for (; i < n; i += VF) {
            const int64_t rest = n - i < VF ? n - i : VF;
            const vf x = v_binary_1(op, read_n(bf16, a + i, rest), read_n(bf16, b + i, rest));
            _mm256_mask_storeu_epi16(y + i, v_first(rest), bf16 ? agk_to_bf16(x) : agk_to_f16(x));
        }
    }
}

#define HALVES(type, bf16) \
    void agk_binary_##type##_avx512(int op, int64_t n, int64_t rows, const agk_binary_rows *r) \
    { \
        switch (op) { \
        case AGK_OP_add: loop(bf16, AGK_OP_add, n, rows, r); return; \
        case AGK_OP_sub: loop(bf16, AGK_OP_sub, n, rows, r); return; \
        case AGK_OP_mul: loop(bf16, AGK_OP_mul, n, rows, r); return; \
        default: loop(bf16, AGK_OP_div, n, rows, r); return; \
        } \
    }
HALVES(f16, false)
HALVES(bf16, true)
