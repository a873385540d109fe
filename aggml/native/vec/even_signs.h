/* The signs of the codebook types that keep 7 of 8, vectors of 256 bits. All static inline: nothing of this may be shared with
 * units of another instruction set. */
#ifndef AGK_VEC_EVEN_SIGNS_H
#define AGK_VEC_EVEN_SIGNS_H

#include <immintrin.h>

#include "../inline.h"

/* 7 bits in each byte, and an eighth that makes their number even. */
AGK_INLINE __m256i agk_even_signs(__m256i seven)
{
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low = _mm256_and_si256(seven, _mm256_set1_epi8(15));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(seven, 4), _mm256_set1_epi8(15));
    return _mm256_or_si256(seven, _mm256_xor_si256(_mm256_shuffle_epi8(odd, low), _mm256_shuffle_epi8(odd, high)));
}

/* Four times 7 bits in each of 8 words. */
AGK_INLINE __m256i agk_even_signs_of_words(__m256i w)
{
    const __m256i first = _mm256_and_si256(w, _mm256_set1_epi32(0x7f));
    const __m256i second = _mm256_and_si256(_mm256_slli_epi32(w, 1), _mm256_set1_epi32(0x7f00));
    const __m256i third = _mm256_and_si256(_mm256_slli_epi32(w, 2), _mm256_set1_epi32(0x7f0000));
    const __m256i fourth = _mm256_and_si256(_mm256_slli_epi32(w, 3), _mm256_set1_epi32(0x7f000000));
    return agk_even_signs(_mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth)));
}

#endif
