/* Blocks of 32 to 128 values to f32: q4_1, q5_0, q5_1, iq4_nl, mxfp4, nvfp4, q1_0, q2_0. Included after math.h.
 *
 * Not here: q4_0 and q8_0 (to_f32.c of each folder). */
#ifndef AGK_VEC_DEQUANT_32_H
#define AGK_VEC_DEQUANT_32_H

#include "formats/blocks.h"
#include "formats/quant.h"
#include "dequant.h"

AGK_INLINE void v_q4_1_to_f32(const agk_block_q4_1 *x, v_dst *dst)
{
    const float d = v_half(x->d), m = v_half(x->m);
    for (int h = 0; h < 2; ++h) v_out_with(dst + 16 * h, v_bits(v_bytes(x->qs), 4 * h, 15), d, m);
}

/* 16 values of five bits; `high` has their fifth bits. */
AGK_INLINE __m128i v_five_bits(const uint8_t *qs, int h, uint32_t high)
{
    return _mm_or_si128(v_bits(v_bytes(qs), 4 * h, 15), _mm_and_si128(v_mask(high >> 16 * h), _mm_set1_epi8(16)));
}

AGK_INLINE void v_q5_0_to_f32(const agk_block_q5_0 *x, v_dst *dst)
{
    const float d = v_half(x->d);
    uint32_t high;
    memcpy(&high, x->qh, sizeof high);
    for (int h = 0; h < 2; ++h) {
        v_out(dst + 16 * h, _mm_sub_epi8(v_five_bits(x->qs, h, high), _mm_set1_epi8(16)), d);
    }
}

AGK_INLINE void v_q5_1_to_f32(const agk_block_q5_1 *x, v_dst *dst)
{
    const float d = v_half(x->d), m = v_half(x->m);
    uint32_t high;
    memcpy(&high, x->qh, sizeof high);
    for (int h = 0; h < 2; ++h) v_out_with(dst + 16 * h, v_five_bits(x->qs, h, high), d, m);
}

/* The levels of iq4 that 16 nibbles stand for. */
AGK_INLINE __m128i v_iq4(__m128i nibbles)
{
    const __m128i levels = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return _mm_shuffle_epi8(levels, nibbles);
}

AGK_INLINE void v_iq4_nl_to_f32(const agk_block_iq4_nl *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int h = 0; h < 2; ++h) v_out(dst + 16 * h, v_iq4(v_bits(v_bytes(x->qs), 4 * h, 15)), d);
}

/* Twice the e2m1 that 16 nibbles stand for. */
AGK_INLINE __m128i v_fp4(__m128i nibbles)
{
    return _mm_shuffle_epi8(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), nibbles);
}

AGK_INLINE void v_mxfp4_to_f32(const agk_block_mxfp4 *x, v_dst *dst)
{
    const float d = agk_half_of_e8m0(x->e);
    for (int h = 0; h < 2; ++h) v_out(dst + 16 * h, v_fp4(v_bits(v_bytes(x->qs), 4 * h, 15)), d);
}

AGK_INLINE void v_nvfp4_to_f32(const agk_block_nvfp4 *x, v_dst *dst)
{
    for (int g = 0; g < 4; g += 2) { /* 8 bytes are the low nibbles, then the high ones, of 16 values */
        const __m128i low = v_bits(v_bytes(x->qs + 8 * g), 0, 15), high = v_bits(v_bytes(x->qs + 8 * g), 4, 15);
        v_out(dst + 16 * g, v_fp4(_mm_unpacklo_epi64(low, high)), agk_half_of_e4m3(x->d[g]));
        v_out(dst + 16 * g + 16, v_fp4(_mm_unpackhi_epi64(low, high)), agk_half_of_e4m3(x->d[g + 1]));
    }
}

AGK_INLINE void v_q1_0_to_f32(const agk_block_q1_0 *x, v_dst *dst)
{
    const float d = v_half(x->d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t bits = x->qs[2 * g] | (uint32_t)x->qs[2 * g + 1] << 8;
        v_out(dst + 16 * g, _mm_sub_epi8(_mm_and_si128(v_mask(bits), _mm_set1_epi8(2)), _mm_set1_epi8(1)), d);
    }
}

AGK_INLINE void v_q2_0_to_f32(const agk_block_q2_0 *x, v_dst *dst)
{
    const float d = v_half(x->d);
    const __m128i q = v_bytes(x->qs), low = v_bits(q, 0, 15), high = v_bits(q, 4, 15), one = _mm_set1_epi8(1);
    const __m128i nibbles[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
    for (int h = 0; h < 2; ++h) {
        const __m128i even = v_bits(nibbles[h], 0, 3), odd = v_bits(nibbles[h], 2, 3);
        v_out(dst + 32 * h, _mm_sub_epi8(_mm_unpacklo_epi8(even, odd), one), d);
        v_out(dst + 32 * h + 16, _mm_sub_epi8(_mm_unpackhi_epi8(even, odd), one), d);
    }
}

#define V_ROWS_32 \
    V_ROWS(q4_1_to_f32, agk_block_q4_1, 32) \
    V_ROWS(q5_0_to_f32, agk_block_q5_0, 32) \
    V_ROWS(q5_1_to_f32, agk_block_q5_1, 32) \
    V_ROWS(iq4_nl_to_f32, agk_block_iq4_nl, 32) \
    V_ROWS(mxfp4_to_f32, agk_block_mxfp4, 32) \
    V_ROWS(nvfp4_to_f32, agk_block_nvfp4, 64) \
    V_ROWS(q1_0_to_f32, agk_block_q1_0, 128) \
    V_ROWS(q2_0_to_f32, agk_block_q2_0, 64)

#endif
