/* Blocks of the codebook types to f32: iq1, iq2, iq3, 16 elements at a time. Included after math.h and after
 * bytes.h, which defines operations under the names of x86's instructions for 128 bits. */
#ifndef AGK_NEON_DEQUANT_IQ_H
#define AGK_NEON_DEQUANT_IQ_H

#include "kernels/vec/dequant_iq1.h"

/* 16 magnitudes, negative where the bit is set, times d. */
AGK_INLINE void v_put_signed(v_dst *dst, __m128i magnitude, uint32_t signs, float d)
{
    const __m128i mask = v_mask(signs);
    v_out(dst, _mm_sub_epi8(_mm_xor_si128(magnitude, mask), mask), d);
}

/* The signs of 16 values from twice 7 bits. */
AGK_INLINE uint32_t v_even_signs(uint32_t a, uint32_t b)
{
    return agk_iq_even_signs(a & 127) | (uint32_t)agk_iq_even_signs(b & 127) << 8;
}

AGK_INLINE void v_iq2_xxs_to_f32(const agk_block_iq2_xxs *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 8; ++g) {
        uint32_t w[2];
        memcpy(w, x->qs + 4 * g, sizeof w);
        const float scale = d * (0.5f + (float)(w[1] >> 28)) * 0.25f;
        for (int h = 0; h < 2; ++h) {
            const uint32_t points = w[0] >> 16 * h, signs = w[1] >> 14 * h;
            const __m128i q = v_two_points(agk_iq2_xxs_grid[points & 255], agk_iq2_xxs_grid[points >> 8 & 255]);
            v_put_signed(dst + 32 * g + 16 * h, q, v_even_signs(signs, signs >> 7), scale);
        }
    }
}

AGK_INLINE void v_iq2_xs_to_f32(const agk_block_iq2_xs *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 16; ++g) {
        const uint32_t a = x->qs[2 * g], b = x->qs[2 * g + 1];
        const float scale = d * (0.5f + (float)(x->scales[g / 2] >> 4 * (g & 1) & 15)) * 0.25f;
        const __m128i q = v_two_points(agk_iq2_xs_grid[a & 511], agk_iq2_xs_grid[b & 511]);
        v_put_signed(dst + 16 * g, q, v_even_signs(a >> 9, b >> 9), scale);
    }
}

AGK_INLINE void v_iq2_s_to_f32(const agk_block_iq2_s *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 16; ++g) {
        const unsigned high = x->qh[g / 2] >> 4 * (g & 1), k = 2u * (unsigned)g;
        const float scale = d * (0.5f + (float)(x->scales[g / 2] >> 4 * (g & 1) & 15)) * 0.25f;
        const __m128i q = v_two_points(agk_iq2_s_grid[x->qs[k] | (high & 3) << 8],
                                       agk_iq2_s_grid[x->qs[k + 1] | (high >> 2 & 3) << 8]);
        v_put_signed(dst + 16 * g, q, x->signs[k] | (uint32_t)x->signs[k + 1] << 8, scale);
    }
}

AGK_INLINE void v_iq3_xxs_to_f32(const agk_block_iq3_xxs *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 8; ++g) {
        uint32_t word;
        memcpy(&word, x->scales_and_signs + 4 * g, sizeof word);
        const float scale = d * (0.5f + (float)(word >> 28)) * 0.5f;
        for (int h = 0; h < 2; ++h, word >>= 14) {
            const uint8_t *k = x->qs + 8 * g + 4 * h;
            const __m128i q = v_four_points(agk_iq3_xxs_grid[k[0]], agk_iq3_xxs_grid[k[1]], agk_iq3_xxs_grid[k[2]],
                                            agk_iq3_xxs_grid[k[3]]);
            v_put_signed(dst + 32 * g + 16 * h, q, v_even_signs(word, word >> 7), scale);
        }
    }
}

AGK_INLINE void v_iq3_s_to_f32(const agk_block_iq3_s *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 16; ++g) {
        const float scale = d * (float)(1 + 2 * (x->scales[g / 4] >> (g & 2) * 2 & 15));
        const unsigned high = (unsigned)x->qh[g / 2] >> 4 * (g & 1);
        const uint8_t *k = x->qs + 4 * g;
        const __m128i q =
            v_four_points(agk_iq3_s_grid[k[0] | (high << 8 & 256)], agk_iq3_s_grid[k[1] | (high << 7 & 256)],
                          agk_iq3_s_grid[k[2] | (high << 6 & 256)], agk_iq3_s_grid[k[3] | (high << 5 & 256)]);
        v_put_signed(dst + 16 * g, q, x->signs[2 * g] | (uint32_t)x->signs[2 * g + 1] << 8, scale);
    }
}

AGK_INLINE void v_iq1_m_to_f32(const agk_block_iq1_m *x, v_dst *dst)
{
    uint16_t w[4];
    memcpy(w, x->scales, sizeof w);
    const float d = v_half(v_scale_iq1_m(w));
    for (int g = 0; g < 16; ++g) {
        const unsigned h = x->qh[g], a = x->qs[2 * g] | (h & 7) << 8, b = x->qs[2 * g + 1] | (h >> 4 & 7) << 8;
        v_put_shifted(dst + 16 * g, a, h & 8, b, h & 128, d * (float)(2 * (w[g / 4] >> 3 * (g % 4) & 7) + 1));
    }
}

#endif
