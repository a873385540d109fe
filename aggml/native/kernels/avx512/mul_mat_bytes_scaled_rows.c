/* Rows of blocks of 256 that have one scale, AVX-512 (mul_mat_bytes.h): bytes that are codes times the scales of 16 or 32
 * k. So the sums of 256 k are integers (mul_mat_bytes_wide.h).
 *
 * q2_K: codes of at most 3 times at most 15; minimums remain. q3_K: -4 to 3 times -32 to 31, that is -124 to 128, so
 * the negatives fit a byte and d changes its sign. iq1: 1, 7 or 9 with either sign times an odd number of at most 15,
 * that is odd and at most 135, so half the next even number fits. tq1_0 and tq2_0 have no other scales. */
#include "kernels/mul_mat_bytes.h"
#include "math.h"

AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* always 0 */
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

AGK_INLINE __m256i times(__m128i codes, int scale)
{
    return _mm256_mullo_epi16(_mm256_cvtepi8_epi16(codes), _mm256_set1_epi16((short)scale));
}

/* 16 numbers that fit a byte, with the offset 128 of rows. */
AGK_INLINE void put_16(agk_bytes_row *y, __m256i x)
{
    const __m128i bytes = _mm_xor_si128(_mm256_cvtepi16_epi8(x), _mm_set1_epi8(-128));
    _mm_storeu_si128((__m128i *)(void *)y->q, bytes);
}

AGK_INLINE void row_of_q2_k(const agk_block_q2_k *x, agk_bytes_row *y)
{
    _Alignas(32) int16_t minimum[16];
    _mm256_store_si256((__m256i *)(void *)minimum, _mm256_cvtepi8_epi16(v_bits(v_bytes(x->scales), 4, 15)));
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const __m128i q = v_bits(v_bytes(x->qs + g / 8 * 32 + g % 2 * 16), g % 8 / 2 * 2, 3);
        put_16(y + g, times(q, x->scales[g] & 15));
        if (g % 2 == 0) memcpy(y[g].times, minimum + g, sizeof y->times);
    }
    y->d = v_half(x->d);
    y->step = v_half(x->m);
}

AGK_INLINE void row_of_q3_k(const agk_block_q3_k *x, agk_bytes_row *y)
{
    int8_t scale[16];
    _mm_storeu_si128((__m128i *)(void *)scale, _mm_sub_epi8(_mm_set1_epi8(32), v_scales_q3_k(x)));
    AGK_UNROLL for (int g = 0; g < 16; ++g) put_16(y + g, times(v_codes_q3_k(x, g), scale[g]));
    y->d = -v_half(x->d);
}

/* (x + 1) / 2 of odd numbers: d then is twice that of the numbers, which are eight times those of the type. */
AGK_INLINE void put_odd(agk_bytes_row *y, __m128i codes, unsigned scale)
{
    const __m256i all = times(codes, (int)(2 * scale + 1));
    put_16(y, _mm256_srai_epi16(_mm256_add_epi16(all, _mm256_set1_epi16(1)), 1));
}

AGK_INLINE void row_of_iq1_s(const agk_block_iq1_s *x, agk_bytes_row *y)
{
    AGK_UNROLL for (int g = 0; g < 8; ++g)
    {
        const unsigned h = x->qh[g];
        const uint8_t *k = x->qs + 4 * g;
        const bool down = h >> 15;
        put_odd(y + 2 * g, v_codes_iq1(k[0] | (h & 7) << 8, down, k[1] | (h >> 3 & 7) << 8, down), h >> 12 & 7);
        put_odd(y + 2 * g + 1, v_codes_iq1(k[2] | (h >> 6 & 7) << 8, down, k[3] | (h >> 9 & 7) << 8, down),
                h >> 12 & 7);
    }
    y->d = v_half(x->d) * 0.25f;
}

AGK_INLINE void row_of_iq1_m(const agk_block_iq1_m *x, agk_bytes_row *y)
{
    uint16_t w[4], points[32];
    memcpy(w, x->scales, sizeof w);
    agk_iq1_m_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const unsigned h = x->qh[g];
        put_odd(y + g, v_codes_iq1(points[2 * g], h & 8, points[2 * g + 1], h & 128), w[g / 4] >> 3 * (g % 4) & 7);
    }
    y->d = v_half(v_scale_iq1_m(w)) * 0.25f;
}

void agk_mm_bytes_scaled_rows_avx512(int type, bool words, const void *src, void *out, int64_t n)
{
    agk_bytes_row *y = out;
#define AGK_ROWS(TYPE, name) \
    case AGK_##TYPE: \
        for (int64_t i = 0; i < n / 256; ++i) row_of_##name((const agk_block_##name *)src + i, y + 16 * i); \
        break;
    switch (type) {
        AGK_ROWS(Q2_K, q2_k)
        AGK_ROWS(Q3_K, q3_k)
        AGK_ROWS(IQ1_S, iq1_s)
        AGK_ROWS(IQ1_M, iq1_m)
    default: agk_mm_bytes_rows_avx512(type, words, src, out, n); /* tq1_0, tq2_0 */
    }
}
