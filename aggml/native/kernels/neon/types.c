/* Row conversions, NEON: f16, bf16, q8_0, q4_0 to f32 and back, and the columns of quantized products.
 *
 * As formats/types.c and formats/quant.c bit for bit, but for f32 -> f16, where a NaN keeps its payload (as ggml's
 * CPU conversion). */
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "bytes.h"
#include "math.h"

enum { BLOCK = AGK_MM_BLOCK };

void agk_f16_to_f32_neon(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) v_store(dst + i, v_load_f16(x + i));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(x[i]);
}

static inline uint16_t half_of(float x)
{
    const __fp16 half = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
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

/* The largest magnitude of n floats, NaN left out. */
AGK_INLINE float most_of(const float *x, int n)
{
    vf most[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (int e = 0; e < n; e += 16) {
        AGK_UNROLL for (int v = 0; v < 4; ++v) most[v] = v_max(v_abs(v_load(x + e + 4 * v)), most[v]);
    }
    return v_hmax(v_max(v_max(most[0], most[1]), v_max(most[2], most[3])));
}

/* 16 floats as bytes; what does not fit (sources that are not finite, subnormal scales) is 0. Halves go away from zero, or to
 * even. */
AGK_INLINE int8x16_t round16(const float *x, vf inverse, bool even)
{
    int32x4_t q[4];
    AGK_UNROLL for (int v = 0; v < 4; ++v)
    {
        const vf y = v_load(x + 4 * v) * inverse;
        const int32x4_t whole = even ? vcvtnq_s32_f32(y) : vcvtaq_s32_f32(y);
        q[v] = vandq_s32(whole, vreinterpretq_s32_u32(v_lt(v_abs(y), v_set(127.5f))));
    }
    const int16x8_t low = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]))));
}

static inline float inverse_of(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
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

/* -128 times the sums of fours. */
AGK_INLINE int32x4_t start_of(int8x16_t q)
{
    return vnegq_s32(vshlq_n_s32(vpaddlq_s16(vpaddlq_s8(q)), 7));
}

void agk_mm_col_q8_neon(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 2 * BLOCK, ++y) {
        for (int half = 0; half < 2; ++half) {
            const bool there = i + half * BLOCK < n;
            const float d = there ? most_of(x + i + half * BLOCK, BLOCK) / 127.0f : 0.0f;
            const vf inverse = v_set(inverse_of(d));
            y->d[half] = _cvtsh_ss(half_of(d)); /* as in a block of ggml's */
            for (int e = half * BLOCK; e < (half + 1) * BLOCK; e += 16) {
                const int8x16_t q = there ? round16(x + i + e, inverse, false) : vdupq_n_s8(0);
                vst1q_s8(y->q + e, q);
                vst1q_s32(y->start + e / 4, start_of(q));
            }
        }
    }
}

void agk_mm_col_q8_wide_neon(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 256, x += 256) {
        const float d = most_of(x, 256) / 127.0f;
        const vf inverse = v_set(inverse_of(d));
        for (int e = 0; e < 256; e += 64, ++y) {
            y->d[0] = y->d[1] = d;
            for (int j = 0; j < 64; j += 16) {
                const int8x16_t q = round16(x + e + j, inverse, true);
                vst1q_s8(y->q + j, q);
                vst1q_s32(y->start + j / 4, start_of(q));
            }
        }
    }
}
