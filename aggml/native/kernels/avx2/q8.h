/* 32 floats as bytes with a scale, AVX2: for blocks of q8_0 (f32_to.c) and for columns of products
 * (mul_mat_columns.c). */
#ifndef AGK_AVX2_Q8_H
#define AGK_AVX2_Q8_H

#include <immintrin.h>

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

#endif
