/* 32 floats as bytes with a scale, AVX-512: for blocks of q8_0 (f32_to.c) and for columns of products
 * (mul_mat_columns.c). */
#ifndef AGK_AVX512_Q8_H
#define AGK_AVX512_Q8_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "round.h"

/* 32 elements as bytes; *d is their scale. What does not fit (sources that are not finite, subnormal scales) is 0. */
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

#endif
