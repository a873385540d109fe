/* 32 floats as bytes with a scale, AVX-512: for blocks of q8_0 (f32_to.c) and for columns of products
 * (mul_mat_columns.c). */
#ifndef AGK_AVX512_Q8_H
#define AGK_AVX512_Q8_H

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/inline.h"
#include "round.h"

/* 32 elements as bytes; *d is their scale. Values that do not fit (sources that are not finite, subnormal scales)
 * become 0. */
AGK_INLINE __m256i quantize(const float *x, float *d)
{
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16), zero = _mm512_setzero_ps();
    /* max(x, 0) is 0 if x is NaN */
    const __m512 sizes = _mm512_max_ps(_mm512_max_ps(_mm512_abs_ps(a), zero), _mm512_max_ps(_mm512_abs_ps(b), zero));
    *d = _mm512_reduce_max_ps(sizes) / 127.0f;
    const __m512 inverse = _mm512_set1_ps(*d != 0.0f ? 1.0f / *d : 0.0f);
    const __m128i low = _mm512_cvtepi32_epi8(agk_round_fitting(_mm512_mul_ps(a, inverse)));
    const __m128i high = _mm512_cvtepi32_epi8(agk_round_fitting(_mm512_mul_ps(b, inverse)));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Lane i of `of`, broadcast to all lanes. */
AGK_INLINE __m512 agk_spread(__m128 of, int i)
{
    return _mm512_permutexvar_ps(_mm512_set1_epi32(i), _mm512_castps128_ps512(of));
}

AGK_INLINE __m512i agk_round_away(__m512 x) /* as agk_round_fitting, for values that fit */
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000u), half = _mm512_set1_epi32(0x3effffff);
    const __m512i add = _mm512_ternarylogic_epi32(half, _mm512_castps_si512(x), sign, 0xf8);
    return _mm512_cvttps_epi32(_mm512_add_ps(x, _mm512_castsi512_ps(add)));
}

/* The largest lane of each of four vectors. */
AGK_INLINE __m128 agk_most_of_4(const __m512 m[4])
{
    const __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(m[0], m[1]), _mm512_unpackhi_ps(m[0], m[1]));
    const __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(m[2], m[3]), _mm512_unpackhi_ps(m[2], m[3]));
    const __m512 c = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* Four blocks with the same results as quantize(), in 0.6 of its instructions: 128 bytes in their order, four
 * scales. False, and no result is valid: a number is NaN, or a scale is infinite or nearly subnormal. */
AGK_INLINE bool quantize_4(const float *x, __m512i q[2], __m128 *d)
{
    __m512 a[4], b[4], most[4];
    __mmask16 nan = 0;
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        a[i] = _mm512_loadu_ps(x + 32 * i);
        b[i] = _mm512_loadu_ps(x + 32 * i + 16);
        nan = _kor_mask16(nan, _mm512_cmp_ps_mask(a[i], b[i], _CMP_UNORD_Q));
        most[i] = _mm512_max_ps(_mm512_abs_ps(a[i]), _mm512_abs_ps(b[i]));
    }
    *d = _mm_div_ps(agk_most_of_4(most), _mm_set1_ps(127.0f));
    const __mmask8 some = _mm_cmp_ps_mask(*d, _mm_setzero_ps(), _CMP_NEQ_OQ);
    const __mmask8 small = _mm_mask_cmp_ps_mask(some, *d, _mm_set1_ps(1e-37f), _CMP_LT_OQ);
    const __mmask8 large = _mm_cmp_ps_mask(*d, _mm_set1_ps(1e38f), _CMP_NLT_UQ);
    if ((nan | small | large) != 0) return false;
    const __m128 inverse = _mm_maskz_div_ps(some, _mm_set1_ps(1.0f), *d);
    __m512i words[4];
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        const __m512 by = agk_spread(inverse, i);
        words[i] = _mm512_packs_epi32(agk_round_away(_mm512_mul_ps(a[i], by)), agk_round_away(_mm512_mul_ps(b[i], by)));
    }
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    q[0] = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
    q[1] = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[2], words[3]));
    return true;
}

#endif
