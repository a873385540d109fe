/* Columns of b as bytes with scales (agk_mm_col_q8), AVX-512: for dots, blocks, bytes and packed weights. */
#include <immintrin.h>

#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "q8.h"

enum { BLOCK = AGK_MM_BLOCK };

/* 64 bytes with their scales, and the corrections for products with bytes that have an offset. */
AGK_INLINE void put_col(agk_mm_col_q8 *y, __m512i q)
{
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), q);
    _mm512_storeu_si512(y->q, q);
    _mm512_storeu_si512(y->start, _mm512_madd_epi16(pairs, _mm512_set1_epi16(-128)));
}

AGK_INLINE __m128 round_scales(__m128 d)
{
    return _mm512_castps512_ps128(agk_col_scales(_mm512_zextps128_ps512(d)));
}

void agk_mm_columns_q8_avx512(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n;) {
        __m512i both[2];
        __m128 scales;
        if (i + 4 * BLOCK <= n && quantize_4(x + i, both, &scales)) {
            scales = round_scales(scales);
            put_col(&y[0], both[0]);
            put_col(&y[1], both[1]);
            _mm_storel_pi((__m64 *)(void *)y[0].d, scales);
            _mm_storeh_pi((__m64 *)(void *)y[1].d, scales);
            i += 4 * BLOCK;
            y += 2;
            continue;
        }
        float d[2] = {0.0f, 0.0f};
        const __m256i first = quantize(x + i, &d[0]);
        const __m256i second = i + BLOCK < n ? quantize(x + i + BLOCK, &d[1]) : _mm256_setzero_si256();
        put_col(y, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
        _mm_storel_pi((__m64 *)(void *)y->d, round_scales(_mm_setr_ps(d[0], d[1], 0.0f, 0.0f)));
        i += 2 * BLOCK;
        ++y;
    }
}

/* 256 elements with one scale; values that are not finite become 0. */
void agk_mm_columns_q8_wide_avx512(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    const __m512i ones = _mm512_set1_epi16(-128);
    for (int64_t i = 0; i < n; i += 256, x += 256) {
        __m512 most = _mm512_setzero_ps();
        AGK_UNROLL for (int e = 0; e < 256; e += 16)
        {
            /* gives the second operand if one is NaN */
            most = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x + e)), most);
        }
        const float d = _mm512_reduce_max_ps(most) / 127.0f;
        const __m512 inverse = _mm512_set1_ps(d != 0.0f ? 1.0f / d : 0.0f);
        AGK_UNROLL for (int e = 0; e < 256; e += 64, ++y)
        {
            AGK_UNROLL for (int j = 0; j < 64; j += 16)
            {
                const __m512 q = _mm512_mul_ps(_mm512_loadu_ps(x + e + j), inverse);
                const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(q), _mm512_set1_ps(127.5f), _CMP_LT_OQ);
                const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(fits, q));
                _mm_storeu_si128((__m128i *)(void *)(y->q + j), bytes);
            }
            const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), _mm512_loadu_si512(y->q));
            _mm512_storeu_si512(y->start, _mm512_madd_epi16(pairs, ones));
            y->d[0] = y->d[1] = d;
        }
    }
}
