/* Row conversions, NEON: f16, bf16, q8_0, q4_0 to f32 and back. Not here: columns of products (mul_mat_columns.c).
 *
 * As formats/types.c and formats/quant.c bit for bit, but for f32 -> f16, where a NaN keeps its payload (as ggml's
 * CPU conversion). */
#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "bytes.h"
#include "math.h"
#include "q8.h"

enum { BLOCK = 32 };

void agk_f16_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(dst + i, v_load_f16(x + i));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(x[i]);
}

void agk_f32_to_f16_neon(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(v_load(src + i))));
    for (; i < n; ++i) y[i] = half_of(src[i]);
}

void agk_bf16_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(dst + i, v_load_bf16(x + i));
    if (i < n) agk_bf16_to_f32_scalar(x + i, dst + i, n - i);
}

void agk_f32_to_bf16_neon(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) {
        const vf v = v_load(src + i);
        const uint32x4_t x = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
        const uint32x4_t sum = vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        const uint32x4_t quiet = vorrq_u32(x, vdupq_n_u32(0x400000));
        vst1_u16(y + i, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), sum, quiet), 16));
    }
    if (i < n) agk_f32_to_bf16_scalar(src + i, y + i, n - i);
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

void agk_f32_to_q8_0_neon(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    for (int64_t i = 0; i < n / BLOCK; ++i, src += BLOCK) {
        const float d = most_of(src, BLOCK) / 127.0f;
        const vf inverse = v_set(inverse_of(d));
        for (int h = 0; h < BLOCK; h += 16) vst1q_s8(y[i].qs + h, round16(src + h, inverse, false));
        y[i].d = half_of(d);
    }
}
