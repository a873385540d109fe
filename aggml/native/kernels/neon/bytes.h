/* 16 bytes in a vector: the operations that vec/dequant*.h use, under their names of SSE, each an instruction or two
 * of NEON. Here: these operations and no others. */
#ifndef AGK_NEON_BYTES_H
#define AGK_NEON_BYTES_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

typedef uint8x16_t __m128i;

AGK_INLINE __m128i _mm_loadu_si128(const __m128i *p)
{
    __m128i x;
    memcpy(&x, p, sizeof x);
    return x;
}
AGK_INLINE __m128i _mm_loadl_epi64(const __m128i *p)
{
    return vcombine_u8(vld1_u8((const uint8_t *)p), vdup_n_u8(0));
}

AGK_INLINE __m128i _mm_set1_epi8(int x)
{
    return vdupq_n_u8((uint8_t)x);
}
AGK_INLINE __m128i _mm_set1_epi16(short x)
{
    return vreinterpretq_u8_s16(vdupq_n_s16(x));
}
AGK_INLINE __m128i _mm_set1_epi32(int x)
{
    return vreinterpretq_u8_s32(vdupq_n_s32(x));
}
AGK_INLINE __m128i _mm_set1_epi64x(long long x)
{
    return vreinterpretq_u8_s64(vdupq_n_s64(x));
}
AGK_INLINE __m128i _mm_set_epi64x(long long high, long long low)
{
    return vreinterpretq_u8_s64(vcombine_s64(vcreate_s64((uint64_t)low), vcreate_s64((uint64_t)high)));
}
AGK_INLINE __m128i _mm_setr_epi32(int a, int b, int c, int d)
{
    const int32_t x[4] = {a, b, c, d};
    return vreinterpretq_u8_s32(vld1q_s32(x));
}
#define _mm_setr_epi8(...) vreinterpretq_u8_s8(vld1q_s8(((const int8_t[16]){__VA_ARGS__})))

AGK_INLINE __m128i _mm_and_si128(__m128i a, __m128i b)
{
    return vandq_u8(a, b);
}
AGK_INLINE __m128i _mm_or_si128(__m128i a, __m128i b)
{
    return vorrq_u8(a, b);
}
AGK_INLINE __m128i _mm_xor_si128(__m128i a, __m128i b)
{
    return veorq_u8(a, b);
}
AGK_INLINE __m128i _mm_add_epi8(__m128i a, __m128i b)
{
    return vaddq_u8(a, b);
}
AGK_INLINE __m128i _mm_sub_epi8(__m128i a, __m128i b)
{
    return vsubq_u8(a, b);
}
AGK_INLINE __m128i _mm_cmpeq_epi8(__m128i a, __m128i b)
{
    return vceqq_u8(a, b);
}

/* Written with an operator, because the count is a constant only after unrolling. */
AGK_INLINE __m128i _mm_srli_epi16(__m128i x, int by)
{
    return vreinterpretq_u8_u16(vreinterpretq_u16_u8(x) >> (uint16_t)by);
}
AGK_INLINE __m128i _mm_slli_epi16(__m128i x, int by)
{
    return vreinterpretq_u8_u16(vreinterpretq_u16_u8(x) << (uint16_t)by);
}
AGK_INLINE __m128i _mm_srlv_epi32(__m128i x, __m128i by)
{
    return vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(x), vnegq_s32(vreinterpretq_s32_u8(by))));
}

/* Only for numbers below 16. */
AGK_INLINE __m128i _mm_shuffle_epi8(__m128i table, __m128i numbers)
{
    return vqtbl1q_u8(table, numbers);
}
AGK_INLINE __m128i _mm_unpacklo_epi8(__m128i a, __m128i b)
{
    return vzip1q_u8(a, b);
}
AGK_INLINE __m128i _mm_unpackhi_epi8(__m128i a, __m128i b)
{
    return vzip2q_u8(a, b);
}
AGK_INLINE __m128i _mm_unpacklo_epi64(__m128i a, __m128i b)
{
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
AGK_INLINE __m128i _mm_unpackhi_epi64(__m128i a, __m128i b)
{
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

AGK_INLINE float _cvtsh_ss(uint16_t bits)
{
    __fp16 half;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
}

#endif
