/* Codes and scales of packed weights as vectors, AVX-512: what the products in lanes (packed.h) and on tiles (amx/packed.h)
 * share. All is static inline: each unit has its own. */
#ifndef AGK_AVX512_PACKED_CODES_H
#define AGK_AVX512_PACKED_CODES_H

#include <immintrin.h>

#include "../inline.h"
#include "../kernel_types.h"
#include "../packed.h"
#include "../packed_kinds.h"

/* Bytes to prefetch ahead in each of two streams; from 1 to 3 KB it makes little difference. */
enum { AGK_PACKED_AHEAD = 2048 };

AGK_INLINE __m512i vector(const char *p, int i)
{
    return _mm512_loadu_si512(p + 64 * (size_t)i);
}

/* Each byte shifted right (left, if negative); the mask takes what comes from the neighbour. */
AGK_INLINE __m512i shifted(__m512i x, int right, int mask)
{
    const int by = right < 0 ? -right : right;
    const __m512i y = right > 0 ? _mm512_srli_epi16(x, by) : right < 0 ? _mm512_slli_epi16(x, by) : x;
    return _mm512_and_si512(y, _mm512_set1_epi8((char)mask));
}

/* Vector v of bits, one of each of 8 sub-blocks: those of this half in the low nibble. */
AGK_INLINE __m512i bits_of(const char *data, int64_t half, int v)
{
    return _mm512_srl_epi16(vector(data, v), _mm_cvtsi32_si128((int)(4 * half)));
}

/* The codes of 32 k, unsigned, in the order of k. Of 256 there are two halves of four parts; only the part is known to
 * the compiler: all eight unrolled would be 20 KB of code. */
AGK_INLINE void codes(kind t, const char *data, int64_t half, int part, __m512i w[8])
{
    if (t == Q8_0) {
        AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = vector(data, v);
    } else if (t == Q2_K) {
        const char *qs = data + 512 * half;
        AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = shifted(vector(qs, v), 2 * part, 3);
    } else if (t == Q3_K) {
        const char *qs = data + 512 + 512 * half;
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            const __m512i low = shifted(vector(qs, v), 2 * part, 3);
            w[v] = _mm512_or_si512(low, shifted(bits_of(data, half, v), part - 2, 4));
        }
    } else if (t == Q4_K) {
        const char *qs = data + 1024 * half;
        AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = shifted(vector(qs, 8 * (part / 2) + v), 4 * (part % 2), 15);
    } else if (t == Q5_K) {
        const char *qs = data + 512 + 1024 * half;
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            const __m512i low = shifted(vector(qs, 8 * (part / 2) + v), 4 * (part % 2), 15);
            w[v] = _mm512_or_si512(low, shifted(bits_of(data, half, v), part - 4, 16));
        }
    } else if (t == Q6_K) {
        const char *ql = data + 1024 * half, *qh = data + 2048 + 512 * half;
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            const __m512i low = shifted(vector(ql, 8 * (part % 2) + v), part < 2 ? 0 : 4, 15);
            w[v] = _mm512_or_si512(low, shifted(vector(qh, v), 2 * part - 4, 0x30));
        }
    } else {
        const char *qs = data + (t == Q5_0 || t == Q5_1 ? 64 : t == IQ4_XS ? 1024 * half + 256 * part : 0);
        AGK_UNROLL for (int v = 0; v < 4; ++v)
        {
            const __m512i q = vector(qs, v);
            w[v] = shifted(q, 0, 15);
            w[v + 4] = shifted(q, 4, 15);
        }
        if (t == Q5_0 || t == Q5_1) {
            const __m512i bits = vector(data, 0);
            AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = _mm512_or_si512(w[v], shifted(bits, v - 4, 16));
        }
        if (t == IQ4_NL || t == IQ4_XS || t == MXFP4) { /* levels + 128 */
            const __m128i levels =
                t == MXFP4 ? _mm_setr_epi8((char)128, (char)129, (char)130, (char)131, (char)132, (char)134, (char)136,
                                           (char)140, (char)128, 127, 126, 125, 124, 122, 120, 116)
                           : _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153, (char)166,
                                           (char)181, (char)197, (char)217, (char)241);
            const __m512i table = _mm512_broadcast_i32x4(levels);
            AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = _mm512_shuffle_epi8(table, w[v]);
        }
    }
}

AGK_INLINE __m512 halves(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

AGK_INLINE __m128i bytes(const char *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

AGK_INLINE __m512 unsigned_floats(__m128i x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
}

AGK_INLINE __m512 signed_floats(__m128i x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}

/* Half of 2^(e - 127): the bits of 2^(e - 128), which is subnormal below e = 2. */
AGK_INLINE __m512 half_of_e8m0(__m128i e)
{
    const __m512i x = _mm512_cvtepu8_epi32(e),
                  normal = _mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), x);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(x, _mm512_set1_epi32(2)), small));
}

/* The scales of sub-block j and what multiplies the sums of the columns: one each, two where scales are per 16. */
AGK_INLINE void scales_of(kind t, const char *block, int64_t j, __m512 d, __m512 m, __m512 scale[2], __m512 minimum[2])
{
    scale[0] = d;
    minimum[0] = m;
    if (t == Q2_K) {
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            const __m128i x = bytes(block + 64 + 16 * (2 * j + h));
            scale[h] = _mm512_mul_ps(d, unsigned_floats(_mm_and_si128(x, _mm_set1_epi8(15))));
            minimum[h] = _mm512_mul_ps(m, unsigned_floats(_mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15))));
        }
    } else if (t == Q3_K || t == Q6_K) {
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            scale[h] = _mm512_mul_ps(d, signed_floats(bytes(block + 32 + 16 * (2 * j + h))));
        }
    } else if (t == Q4_K || t == Q5_K) {
        scale[0] = _mm512_mul_ps(d, unsigned_floats(bytes(block + 64 + 16 * j)));
        minimum[0] = _mm512_mul_ps(m, unsigned_floats(bytes(block + 192 + 16 * j)));
    } else if (t == IQ4_XS) {
        scale[0] = _mm512_mul_ps(d, signed_floats(bytes(block + 32 + 16 * j)));
    }
}

AGK_INLINE __m512i four(const char *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

AGK_INLINE __m512 one(const char *p)
{
    return _mm512_castsi512_ps(four(p));
}

#endif
