/* iq1 to f32 on any vectors that dequant.h has, and the list of all codebook types. The dequant_iq.h of x86 and of
 * NEON include this; each reads points and signs in its own way. */
#ifndef AGK_VEC_DEQUANT_IQ1_H
#define AGK_VEC_DEQUANT_IQ1_H

#include "formats/blocks_iq.h"
#include "formats/quant_iq_grid.h"
#include "dequant.h"

/* 16 times 8 * (point + shift). */
AGK_INLINE __m128i v_codes_iq1(unsigned a, bool a_down, unsigned b, bool b_down)
{
    const __m128i once = v_two_points(agk_iq1_grid[a], agk_iq1_grid[b]), twice = _mm_add_epi8(once, once);
    const __m128i fourfold = _mm_add_epi8(twice, twice), shift_a = _mm_set1_epi8(a_down ? -1 : 1);
    const __m128i shift = _mm_unpacklo_epi64(shift_a, _mm_set1_epi8(b_down ? -1 : 1));
    return _mm_add_epi8(_mm_add_epi8(fourfold, fourfold), shift);
}

/* 16 values d * (point + shift), computed as d / 8 * (8 * point + 8 * shift): d is so large that d / 8 is exact. */
AGK_INLINE void v_put_shifted(v_dst *dst, unsigned a, bool a_down, unsigned b, bool b_down, float d)
{
    v_out(dst, v_codes_iq1(a, a_down, b, b_down), d * 0.125f);
}

/* The scale of a block of iq1_m: the highest bits of its four words. */
AGK_INLINE uint16_t v_scale_iq1_m(const uint16_t w[4])
{
    return (uint16_t)(w[0] >> 12 | (w[1] >> 8 & 0xf0) | (w[2] >> 4 & 0xf00) | (w[3] & 0xf000));
}

AGK_INLINE void v_iq1_s_to_f32(const agk_block_iq1_s *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 8; ++g) {
        const unsigned h = x->qh[g];
        const float scale = d * (float)(2 * (h >> 12 & 7) + 1);
        const uint8_t *k = x->qs + 4 * g;
        v_put_shifted(dst + 32 * g, k[0] | (h & 7) << 8, h >> 15, k[1] | (h >> 3 & 7) << 8, h >> 15, scale);
        v_put_shifted(dst + 32 * g + 16, k[2] | (h >> 6 & 7) << 8, h >> 15, k[3] | (h >> 9 & 7) << 8, h >> 15, scale);
    }
}

#define V_ROWS_IQ \
    V_ROWS(iq2_xxs_to_f32, agk_block_iq2_xxs, 256) \
    V_ROWS(iq2_xs_to_f32, agk_block_iq2_xs, 256) \
    V_ROWS(iq2_s_to_f32, agk_block_iq2_s, 256) \
    V_ROWS(iq3_xxs_to_f32, agk_block_iq3_xxs, 256) \
    V_ROWS(iq3_s_to_f32, agk_block_iq3_s, 256) \
    V_ROWS(iq1_s_to_f32, agk_block_iq1_s, 256) \
    V_ROWS(iq1_m_to_f32, agk_block_iq1_m, 256)

#endif
