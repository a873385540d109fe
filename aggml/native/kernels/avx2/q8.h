/* 32 floats as bytes with a scale, AVX2: for blocks of q8_0 (f32_to.c) and for columns of products
 * (mul_mat_columns.c). */
#ifndef AGK_AVX2_Q8_H
#define AGK_AVX2_Q8_H

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/inline.h"

AGK_INLINE __m256 size_of(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* Halves away from zero. The largest number below 0.5 is added, so that 0.5 becomes 1 and every number below it 0. */
AGK_INLINE __m256i round_away(__m256 x)
{
    const __m256 below = _mm256_castsi256_ps(_mm256_set1_epi32(0x3effffff));
    return _mm256_cvttps_epi32(_mm256_add_ps(x, _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), below)));
}

/* Values that do not fit in a byte become 0. */
AGK_INLINE __m256 fitting(__m256 x)
{
    return _mm256_and_ps(x, _mm256_cmp_ps(size_of(x), _mm256_set1_ps(127.5f), _CMP_LT_OQ));
}

/* 32 elements as bytes; *d is their scale. Sources that are not finite and elements of subnormal scales that do not fit
 * become 0. */
AGK_INLINE __m256i quantize(const float *src, float *d)
{
    __m256 x[4], most = _mm256_setzero_ps();
    for (int v = 0; v < 4; ++v) {
        x[v] = _mm256_loadu_ps(src + 8 * v);
        most = _mm256_max_ps(size_of(x[v]), most); /* the second if the first is NaN */
    }
    const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(x[0], x[1], _CMP_UNORD_Q), _mm256_cmp_ps(x[2], x[3], _CMP_UNORD_Q));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    *d = _mm_cvtss_f32(m) / 127.0f;
    const __m256 inverse = _mm256_set1_ps(*d != 0.0f ? 1.0f / *d : 0.0f);
    __m256i q[4];
    for (int v = 0; v < 4; ++v) x[v] = _mm256_mul_ps(x[v], inverse);
    if (_mm256_movemask_ps(nan) != 0 || !(*d < 1e38f) || (*d < 1e-37f && *d != 0.0f)) {
        for (int v = 0; v < 4; ++v) x[v] = fitting(x[v]);
    }
    for (int v = 0; v < 4; ++v) q[v] = round_away(x[v]);
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The largest lane of each of four vectors; as integers, so that NaN is the largest. */
AGK_INLINE __m128i most_of_4(const __m256i m[4])
{
    const __m256i a = _mm256_max_epu32(_mm256_unpacklo_epi32(m[0], m[1]), _mm256_unpackhi_epi32(m[0], m[1]));
    const __m256i b = _mm256_max_epu32(_mm256_unpacklo_epi32(m[2], m[3]), _mm256_unpackhi_epi32(m[2], m[3]));
    const __m256i c = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return _mm_max_epu32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

/* The scales of four blocks, and 1 over them (0 for a scale of 0), as in quantize(), where the divisions and the search
 * for the largest element are made once for all four. False, and no scale is valid: a number is NaN, or a scale is
 * infinite or nearly subnormal. */
AGK_INLINE bool scale_4(const float *x, __m128 *d, float *inverse)
{
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    __m256i most[4];
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        const __m256i *from = (const __m256i *)(const void *)(x + 32 * i);
        const __m256i a = _mm256_and_si256(_mm256_loadu_si256(from), size);
        const __m256i b = _mm256_and_si256(_mm256_loadu_si256(from + 1), size);
        const __m256i c = _mm256_and_si256(_mm256_loadu_si256(from + 2), size);
        const __m256i e = _mm256_and_si256(_mm256_loadu_si256(from + 3), size);
        most[i] = _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, e));
    }
    *d = _mm_div_ps(_mm_castsi128_ps(most_of_4(most)), _mm_set1_ps(127.0f));
    const __m128 some = _mm_cmp_ps(*d, _mm_setzero_ps(), _CMP_NEQ_UQ);
    const __m128 small = _mm_and_ps(some, _mm_cmp_ps(*d, _mm_set1_ps(1e-37f), _CMP_LT_OQ));
    const __m128 large = _mm_cmp_ps(*d, _mm_set1_ps(1e38f), _CMP_NLT_UQ); /* or NaN */
    _mm_storeu_ps(inverse, _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(1.0f), *d)));
    return _mm_movemask_ps(_mm_or_ps(small, large)) == 0;
}

/* The bytes of a block whose scale is valid. */
AGK_INLINE __m256i codes(const float *x, const float *inverse)
{
    const __m256 by = _mm256_broadcast_ss(inverse);
    __m256i each[4];
    AGK_UNROLL for (int v = 0; v < 4; ++v)
    {
        each[v] = round_away(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * v), by));
    }
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(each[0], each[1]), _mm256_packs_epi32(each[2], each[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#endif
