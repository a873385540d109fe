/* Rows of f16, bf16 and quantized blocks to f32, NEON: all types except tq1_0, q8_1 and q8_K, which have plain C only.
 *
 * Bit for bit like plain C (formats/). */
#include "bytes.h"
#include "math.h"

/* VF of 16 signed bytes, from `first` on. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    const int8x16_t s = vreinterpretq_s8_u8(q);
    const int16x8_t x = first < 8 ? vmovl_s8(vget_low_s8(s)) : vmovl_s8(vget_high_s8(s));
    return vcvtq_f32_s32(first % 8 == 0 ? vmovl_s16(vget_low_s16(x)) : vmovl_s16(vget_high_s16(x)));
}

#define V_NAME(kernel) agk_##kernel##_neon
#include "kernels/vec/dequant_32.h"
#include "dequant_iq.h"
#include "kernels/vec/dequant_k.h"

V_ROWS_32
V_ROWS_K
V_ROWS_IQ

/* -- f16, bf16, q8_0, q4_0 --------------------------------------------------------------------------------------- */

enum { BLOCK = 32 };

void agk_f16_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(dst + i, v_load_f16(x + i));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(x[i]);
}

void agk_bf16_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(dst + i, v_load_bf16(x + i));
    if (i < n) agk_bf16_to_f32_scalar(x + i, dst + i, n - i);
}

/* 16 signed bytes times d. */
AGK_INLINE void put16(float *dst, int8x16_t q, float d)
{
    const int16x8_t x[2] = {vmovl_s8(vget_low_s8(q)), vmovl_s8(vget_high_s8(q))};
    AGK_UNROLL for (int h = 0; h < 2; ++h)
    {
        v_store(dst + 8 * h, vcvtq_f32_s32(vmovl_s16(vget_low_s16(x[h]))) * v_set(d));
        v_store(dst + 8 * h + 4, vcvtq_f32_s32(vmovl_s16(vget_high_s16(x[h]))) * v_set(d));
    }
}

void agk_q8_0_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    for (int64_t i = 0; i < n / BLOCK; ++i, dst += BLOCK) {
        for (int h = 0; h < BLOCK; h += 16) put16(dst + h, vld1q_s8(x[i].qs + h), _cvtsh_ss(x[i].d));
    }
}

void agk_q4_0_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    const int8x16_t offset = vdupq_n_s8(8);
    for (int64_t i = 0; i < n / BLOCK; ++i, dst += BLOCK) {
        const uint8x16_t q = vld1q_u8(x[i].qs);
        put16(dst, vsubq_s8(vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15))), offset), _cvtsh_ss(x[i].d));
        put16(dst + 16, vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(q, 4)), offset), _cvtsh_ss(x[i].d));
    }
}
