/* Numbers as bf16 terms (mul_mat_panels.h). All static inline: AVX-512 BF16, with or without tiles. */
#ifndef AGK_AVX512_TERMS_H
#define AGK_AVX512_TERMS_H

#include "kernels/mul_mat_panels.h"
#include "mul_mat_blocks.h"

enum { TILE = AGK_TERMS_TILE, PAIR = 2 * TILE };

/* Not zero, and below 2^-110 or not finite. */
AGK_INLINE __mmask16 cannot_split(__m512 x)
{
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    const __m512i above = _mm512_sub_epi32(magnitude, _mm512_set1_epi32(0x08800000));
    return _mm512_mask_cmpge_epu32_mask(_mm512_test_epi32_mask(magnitude, magnitude), above,
                                        _mm512_set1_epi32(0x7f800000 - 0x08800000));
}

AGK_INLINE __m512 upper(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}

/* The upper halves of 32 floats. */
AGK_INLINE __m512i upper_halves(__m512 low, __m512 high)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(_mm512_castps_si512(low), odd, _mm512_castps_si512(high));
}

/* Splits 32 floats into terms; the last term is rounded, the others are truncated. */
AGK_INLINE __mmask16 split(int terms, __m512 low, __m512 high, __m512i out[3])
{
    const __mmask16 bad = terms > 1 ? (__mmask16)(cannot_split(low) | cannot_split(high)) : 0;
    AGK_UNROLL for (int t = 0; t + 1 < terms; ++t)
    {
        out[t] = upper_halves(low, high);
        low = _mm512_sub_ps(low, upper(low));
        high = _mm512_sub_ps(high, upper(high));
    }
    out[terms - 1] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    return bad;
}

#endif
