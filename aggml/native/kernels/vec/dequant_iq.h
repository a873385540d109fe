/* Blocks of the codebook types to f32: iq1, iq2, iq3, x86. Included after an ISA's math.h. The numbers of points,
 * the signs and the scales of a block are computed together first (iq_parts.h), which halves its time; then 16
 * elements are two or four loads. For iq1_s this is done where the values are used, which is no slower: it is in
 * dequant_iq1.h. */
#ifndef AGK_VEC_DEQUANT_IQ_H
#define AGK_VEC_DEQUANT_IQ_H

#include "dequant_iq1.h"
#include "iq_parts.h"

/* 16 magnitudes, negative where the bit is set, times d. */
AGK_INLINE void v_put_signed(v_dst *dst, __m128i magnitude, uint32_t signs, float d)
{
#ifdef __AVX512BW__
    v_out(dst, _mm_mask_sub_epi8(magnitude, (__mmask16)signs, _mm_setzero_si128(), magnitude), d);
#else
    const __m128i mask = v_mask(signs);
    v_out(dst, _mm_sub_epi8(_mm_xor_si128(magnitude, mask), mask), d);
#endif
}

/* Scales: d * (s + 1/2) * part, d * (2 s + 1). */
AGK_INLINE void v_with_half(float to[8], float d, __m256i s, float part)
{
    const __m256 sum = _mm256_add_ps(_mm256_set1_ps(0.5f), _mm256_cvtepi32_ps(s));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(d), sum), _mm256_set1_ps(part)));
}

AGK_INLINE void v_with_one(float to[8], float d, __m256i s)
{
    const __m256i odd = _mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(odd)));
}

/* 16 of them, from nibbles. */
AGK_INLINE void v_nibbles_with_half(float to[16], float d, const uint8_t scales[8], float part)
{
    const __m128i words = _mm_cvtepu8_epi16(v_eight(scales));
    const __m128i high = _mm_and_si128(_mm_slli_epi16(words, 4), _mm_set1_epi16(0xf00));
    const __m128i bytes = _mm_or_si128(_mm_and_si128(words, _mm_set1_epi16(15)), high);
    v_with_half(to, d, _mm256_cvtepu8_epi32(bytes), part);
    v_with_half(to + 8, d, _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)), part);
}

AGK_INLINE void v_iq2_xxs_to_f32(const agk_block_iq2_xxs *x, v_dst *dst)
{
    uint16_t signs[16];
    float scales[8];
    const __m256i words = agk_iq2_xxs_words(x);
    agk_store32(signs, agk_even_signs_of_words(words));
    v_with_half(scales, v_half(x->d), _mm256_srli_epi32(words, 28), 0.25f);
    AGK_IN_MEMORY(signs);
    AGK_IN_MEMORY(scales);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const uint8_t *k = (const uint8_t *)(x->qs + 4 * (g / 2) + (g & 1));
        const __m128i q = v_two_points(agk_iq2_xxs_grid[k[0]], agk_iq2_xxs_grid[k[1]]);
        v_put_signed(dst + 16 * g, q, signs[g], scales[g / 2]);
    }
}

AGK_INLINE void v_iq2_xs_to_f32(const agk_block_iq2_xs *x, v_dst *dst)
{
    uint16_t signs[16], points[32];
    float scales[16];
    agk_store32(signs, agk_iq2_xs_signs(x));
    agk_iq2_xs_points(x, points);
    v_nibbles_with_half(scales, v_half(x->d), x->scales, 0.25f);
    AGK_IN_MEMORY(signs);
    AGK_IN_MEMORY(points);
    AGK_IN_MEMORY(scales);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const __m128i q = v_two_points(agk_iq2_xs_grid[points[2 * g]], agk_iq2_xs_grid[points[2 * g + 1]]);
        v_put_signed(dst + 16 * g, q, signs[g], scales[g]);
    }
}

AGK_INLINE void v_iq2_s_to_f32(const agk_block_iq2_s *x, v_dst *dst)
{
    uint16_t points[32];
    float scales[16];
    agk_iq2_s_points(x, points);
    v_nibbles_with_half(scales, v_half(x->d), x->scales, 0.25f);
    AGK_IN_MEMORY(points);
    AGK_IN_MEMORY(scales);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        uint16_t signs;
        memcpy(&signs, x->signs + 2 * g, sizeof signs);
        const __m128i q = v_two_points(agk_iq2_s_grid[points[2 * g]], agk_iq2_s_grid[points[2 * g + 1]]);
        v_put_signed(dst + 16 * g, q, signs, scales[g]);
    }
}

AGK_INLINE void v_iq3_xxs_to_f32(const agk_block_iq3_xxs *x, v_dst *dst)
{
    uint16_t signs[16];
    float scales[8];
    const __m256i words = agk_load32(x->scales_and_signs);
    agk_store32(signs, agk_even_signs_of_words(words));
    v_with_half(scales, v_half(x->d), _mm256_srli_epi32(words, 28), 0.5f);
    AGK_IN_MEMORY(signs);
    AGK_IN_MEMORY(scales);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const uint8_t *k = x->qs + 4 * g;
        const __m128i q = v_four_points(agk_iq3_xxs_grid[k[0]], agk_iq3_xxs_grid[k[1]], agk_iq3_xxs_grid[k[2]],
                                        agk_iq3_xxs_grid[k[3]]);
        v_put_signed(dst + 16 * g, q, signs[g], scales[g / 2]);
    }
}

AGK_INLINE void v_iq3_s_to_f32(const agk_block_iq3_s *x, v_dst *dst)
{
    uint16_t points[64];
    float scales[8];
    int32_t nibbles;
    memcpy(&nibbles, x->scales, sizeof nibbles);
    const __m256i each = _mm256_srlv_epi32(_mm256_set1_epi32(nibbles), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    v_with_one(scales, v_half(x->d), _mm256_and_si256(each, _mm256_set1_epi32(15)));
    agk_iq3_s_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_IN_MEMORY(scales);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        uint16_t signs;
        memcpy(&signs, x->signs + 2 * g, sizeof signs);
        const uint16_t *k = points + 4 * g;
        const __m128i q =
            v_four_points(agk_iq3_s_grid[k[0]], agk_iq3_s_grid[k[1]], agk_iq3_s_grid[k[2]], agk_iq3_s_grid[k[3]]);
        v_put_signed(dst + 16 * g, q, signs, scales[g / 2]);
    }
}

AGK_INLINE void v_iq1_m_to_f32(const agk_block_iq1_m *x, v_dst *dst)
{
    uint16_t w[4];
    memcpy(w, x->scales, sizeof w);
    const float d = v_half(v_scale_iq1_m(w));
    uint16_t points[32];
    agk_iq1_m_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const unsigned h = x->qh[g];
        const float scale = d * (float)(2 * (w[g / 4] >> 3 * (g % 4) & 7) + 1);
        v_put_shifted(dst + 16 * g, points[2 * g], h & 8, points[2 * g + 1], h & 128, scale);
    }
}

#endif
