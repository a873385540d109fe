/* f32 to f16 and bf16 in registers, AVX-512. As plain C bit for bit, but for f16, where a NaN keeps its payload. */
#ifndef AGK_AVX512_HALVES_H
#define AGK_AVX512_HALVES_H

#include <stdbool.h>

#include "math.h"

AGK_INLINE __m256i agk_to_f16(__m512 x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Rounded to bf16 in the upper half of each lane. In integers, since vcvtneps2bf16 takes subnormals as zero. */
AGK_INLINE __m512i agk_round_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i r = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    r = _mm512_mask_add_epi32(r, odd, r, _mm512_set1_epi32(1));
    return _mm512_mask_or_epi32(r, nan, bits, _mm512_set1_epi32(0x400000));
}

AGK_INLINE __m256i agk_to_bf16(__m512 x)
{
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(agk_round_bf16(x), 16));
}

/* The upper halves of all lanes of both. */
AGK_INLINE __m512i agk_two_to_bf16(__m512 a, __m512 b)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(agk_round_bf16(a), odd, agk_round_bf16(b));
}

/* Two vectors, next to each other. */
AGK_INLINE void v_store_halves_2(bool bf16, uint16_t *p, vf a, vf b)
{
    if (bf16) {
        _mm512_storeu_si512(p, agk_two_to_bf16(a, b));
    } else {
        _mm256_storeu_si256((__m256i *)(void *)p, agk_to_f16(a));
        _mm256_storeu_si256((__m256i *)(void *)(p + VF), agk_to_f16(b));
    }
}

/* n <= VF elements; nothing beyond p[n - 1] is touched. */
AGK_INLINE void v_store_halves_n(bool bf16, uint16_t *p, vf x, int64_t n)
{
    _mm256_mask_storeu_epi16(p, v_first(n), bf16 ? agk_to_bf16(x) : agk_to_f16(x));
}

#endif
