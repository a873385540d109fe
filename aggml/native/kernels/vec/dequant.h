/* Rows of quantized blocks to f32: the parts that the types share. Included after an ISA's math.h.
 *
 * Blocks are unpacked 16 bytes at a time, which one or two vectors of floats widen. All products and sums are those
 * of the scalar conversions, bit for bit; only the sign of a NaN may differ. The including file defines
 * V_NAME(kernel), the name of its variant. */
#ifndef AGK_VEC_DEQUANT_H
#define AGK_VEC_DEQUANT_H

#include "table/kernel_types.h"

/* Defines a kernel for rows from the function for one block: v_<kernel>(x, dst). */
#define V_ROWS(kernel, block, size) \
    void V_NAME(kernel)(const void *src, float *dst, int64_t n) \
    { \
        const block *x = src; \
        for (; n >= (size); n -= (size), dst += (size), ++x) v_##kernel(x, dst); \
    }

AGK_INLINE __m128i v_bytes(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

AGK_INLINE float v_half(uint16_t bits)
{
    return _cvtsh_ss(bits);
}

/* dst[i] = q[i] * d for 16 signed bytes. */
AGK_INLINE void v_put(float *dst, __m128i q, float d)
{
    for (int i = 0; i < 16; i += VF) v_store(dst + i, v_widen(q, i) * v_set(d));
}

/* dst[i] = q[i] * d + m */
AGK_INLINE void v_put_with(float *dst, __m128i q, float d, float m)
{
    for (int i = 0; i < 16; i += VF) v_store(dst + i, v_widen(q, i) * v_set(d) + v_set(m));
}

/* The output of 16 elements: floats, unless the including file needs the codes and scales themselves. It then defines
 * V_OUT, v_out, v_out_with and v_dst, of which 16 are as wide as what v_out stores. */
#ifndef V_OUT
typedef float v_dst;

AGK_INLINE void v_out(float *dst, __m128i q, float d)
{
    v_put(dst, q, d);
}

AGK_INLINE void v_out_with(float *dst, __m128i q, float d, float m)
{
    v_put_with(dst, q, d, m);
}
#endif

/* q[i] >> shift & mask */
AGK_INLINE __m128i v_bits(__m128i q, int shift, int mask)
{
    return _mm_and_si128(_mm_srli_epi16(q, shift), _mm_set1_epi8((char)mask));
}

/* `then`, a power of two, where bit `bit` of q[i] is set, else 0. */
AGK_INLINE __m128i v_if_bit(__m128i q, int bit, int then)
{
    const int up = __builtin_ctz((unsigned)then) - bit;
    return _mm_and_si128(up > 0 ? _mm_slli_epi16(q, up) : _mm_srli_epi16(q, -up), _mm_set1_epi8((char)then));
}

/* All bits of byte i set where bit i of `bits` is set, else 0. */
AGK_INLINE __m128i v_mask(uint32_t bits)
{
#if defined __AVX512BW__ && defined __AVX512VL__
    return _mm_movm_epi8((__mmask16)bits);
#else
    const __m128i each = _mm_set1_epi64x((long long)0x8040201008040201u);
    const __m128i spread = _mm_shuffle_epi8(_mm_set1_epi16((short)bits), _mm_set_epi64x(0x0101010101010101, 0));
    return _mm_cmpeq_epi8(_mm_and_si128(spread, each), each);
#endif
}

/* Points of the codebook types: 16 of their magnitudes, from two of 8 or four of 4. */

AGK_INLINE __m128i v_eight(const void *p)
{
    return _mm_loadl_epi64((const __m128i *)p);
}

AGK_INLINE __m128i v_two_points(const void *a, const void *b)
{
    return _mm_unpacklo_epi64(v_eight(a), v_eight(b));
}

AGK_INLINE __m128i v_four_points(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    int32_t word[4];
    memcpy(&word[0], a, 4);
    memcpy(&word[1], b, 4);
    memcpy(&word[2], c, 4);
    memcpy(&word[3], d, 4);
    return _mm_setr_epi32(word[0], word[1], word[2], word[3]);
}

#endif
