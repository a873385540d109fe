/* Blocks of 256 values with scales of 16 or 32 to f32: q2_K to q6_K, iq4_xs, tq2_0; and tq1_0 to codes only. Included
 * after math.h.
 *
 * Scales are unpacked together and multiplied by d (minimums by -m) as if they were values. */
#ifndef AGK_VEC_DEQUANT_K_H
#define AGK_VEC_DEQUANT_K_H

#include "formats/blocks.h"
#include "dequant_32.h"

AGK_INLINE void v_q2_k_to_f32(const agk_block_q2_k *x, v_dst *dst)
{
    const __m128i scales = v_bytes(x->scales);
    float scale[16], minimum[16];
    v_put(scale, v_bits(scales, 0, 15), v_half(x->d));
    v_put(minimum, v_bits(scales, 4, 15), -v_half(x->m));
#pragma GCC unroll 16
    for (int g = 0; g < 16; ++g) { /* groups 0 to 7 share 32 bytes, two groups each pair of bits */
        const __m128i q = v_bytes(x->qs + g / 8 * 32 + g % 2 * 16);
        v_out_with(dst + 16 * g, v_bits(q, g % 8 / 2 * 2, 3), scale[g], minimum[g]);
    }
}

/* The 16 scales of q3_K, with an offset of 32. */
AGK_INLINE __m128i v_scales_q3_k(const agk_block_q3_k *x)
{
    int32_t last;
    memcpy(&last, x->scales + 8, sizeof last);
    const __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)x->scales);
    const __m128i low = _mm_unpacklo_epi64(v_bits(first, 0, 15), v_bits(first, 4, 15));
    const __m128i pairs = v_bits(_mm_srlv_epi32(_mm_set1_epi32(last), _mm_setr_epi32(0, 2, 4, 6)), 0, 3);
    return _mm_or_si128(low, _mm_slli_epi16(pairs, 4));
}

/* Group g of 16 codes, -4 to 3. */
AGK_INLINE __m128i v_codes_q3_k(const agk_block_q3_k *x, int g)
{
    const __m128i q = v_bits(v_bytes(x->qs + g / 8 * 32 + g % 2 * 16), g % 8 / 2 * 2, 3);
    const __m128i high = v_if_bit(v_bytes(x->hmask + g % 2 * 16), g / 2, 4);
    return _mm_sub_epi8(_mm_or_si128(q, high), _mm_set1_epi8(4));
}

AGK_INLINE void v_q3_k_to_f32(const agk_block_q3_k *x, v_dst *dst)
{
    float scale[16];
    v_put(scale, _mm_sub_epi8(v_scales_q3_k(x), _mm_set1_epi8(32)), v_half(x->d));
#pragma GCC unroll 16
    for (int g = 0; g < 16; ++g) v_out(dst + 16 * g, v_codes_q3_k(x, g), scale[g]);
}

/* The 8 scales and 8 minimums of q4_K and q5_K, six bits each: those of groups 0 to 3 in the low bits of the first two
 * words, those of 4 to 7 in nibbles of the third and the top bits of the first two. */
AGK_INLINE void v_scales_k4(const uint8_t *packed, float d, float m, float *scale, float *minimum)
{
    const uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, high = 0x30303030;
    uint32_t w[3];
    memcpy(w, packed, sizeof w);
    const uint32_t s = (w[2] & low) | (w[0] >> 2 & high), t = (w[2] >> 4 & low) | (w[1] >> 2 & high);
    const __m128i all = _mm_setr_epi32((int)(w[0] & six), (int)s, (int)(w[1] & six), (int)t);
    v_put(scale, all, d); /* the last 8 of each are not used */
    v_put(minimum, _mm_unpackhi_epi64(all, all), -m);
}

AGK_INLINE void v_q4_k_to_f32(const agk_block_q4_k *x, v_dst *dst)
{
    float scale[16], minimum[16];
    v_scales_k4(x->scales, v_half(x->d), v_half(x->m), scale, minimum);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) { /* 32 bytes are the low nibbles, then the high ones, of two groups */
        const int g = i / 2;
        const __m128i q = v_bytes(x->qs + g / 2 * 32 + i % 2 * 16);
        v_out_with(dst + 16 * i, v_bits(q, g % 2 * 4, 15), scale[g], minimum[g]);
    }
}

AGK_INLINE void v_q5_k_to_f32(const agk_block_q5_k *x, v_dst *dst)
{
    float scale[16], minimum[16];
    v_scales_k4(x->scales, v_half(x->d), v_half(x->m), scale, minimum);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
        const int g = i / 2;
        const __m128i q = v_bits(v_bytes(x->qs + g / 2 * 32 + i % 2 * 16), g % 2 * 4, 15);
        const __m128i high = v_if_bit(v_bytes(x->qh + i % 2 * 16), g, 16);
        v_out_with(dst + 16 * i, _mm_or_si128(q, high), scale[g], minimum[g]);
    }
}

AGK_INLINE void v_q6_k_to_f32(const agk_block_q6_k *x, v_dst *dst)
{
    float scale[16];
    v_put(scale, v_bytes(x->scales), v_half(x->d));
#pragma GCC unroll 16
    for (int g = 0; g < 16; ++g) { /* 8 groups: 64 bytes of ql, low nibbles first, and 32 of qh, four times two bits */
        const int at = g % 8;
        const __m128i low = v_bits(v_bytes(x->ql + g / 8 * 64 + at % 4 * 16), at / 4 * 4, 15);
        const __m128i high = v_bits(v_bytes(x->qh + g / 8 * 32 + at % 2 * 16), at / 2 * 2, 3);
        const __m128i q = _mm_or_si128(low, _mm_slli_epi16(high, 4));
        v_out(dst + 16 * g, _mm_sub_epi8(q, _mm_set1_epi8(32)), scale[g]);
    }
}

AGK_INLINE void v_iq4_xs_to_f32(const agk_block_iq4_xs *x, v_dst *dst)
{
    const float d = v_half(x->d);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
        const int low = x->scales_l[g / 2] >> (g % 2 * 4) & 15, high = x->scales_h >> (2 * g) & 3;
        const float scale = d * (float)((low | high << 4) - 32);
        for (int h = 0; h < 2; ++h) {
            v_out(dst + 32 * g + 16 * h, v_iq4(v_bits(v_bytes(x->qs + 16 * g), 4 * h, 15)), scale);
        }
    }
}

AGK_INLINE void v_tq2_0_to_f32(const agk_block_tq2_0 *x, v_dst *dst)
{
    const float d = v_half(x->d);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
        const __m128i q = v_bits(v_bytes(x->qs + i / 8 * 32 + i % 2 * 16), i % 8 / 2 * 2, 3);
        v_out(dst + 16 * i, _mm_sub_epi8(q, _mm_set1_epi8(1)), d);
    }
}

#ifdef __AVX2__ /* NEON has its own, kernels/neon/mul_mat_bytes_rows.c */

/* Digits of base 3, the first of x in each byte as a fraction of 256; -1, 0 or 1. */
AGK_INLINE __m128i v_digits(__m128i x, __m256i power)
{
    const __m256i wide = _mm256_mullo_epi16(_mm256_cvtepu8_epi16(x), power);
    const __m256i rest = _mm256_and_si256(wide, _mm256_set1_epi16(255));
    const __m256i digit = _mm256_srli_epi16(_mm256_add_epi16(rest, _mm256_slli_epi16(rest, 1)), 8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(digit), _mm256_extracti128_si256(digit, 1));
    return _mm_sub_epi8(bytes, _mm_set1_epi8(1));
}

/* 32 bytes of five digits, the first of all first; then 16; then 4 of four. */
AGK_INLINE void v_tq1_0_to_f32(const agk_block_tq1_0 *x, v_dst *dst)
{
    const float d = v_half(x->d);
    short power = 1;
    for (int n = 0; n < 5; ++n, power = (short)(3 * power)) {
        const __m256i all = _mm256_set1_epi16(power);
        v_out(dst + 32 * n, v_digits(v_bytes(x->qs), all), d);
        v_out(dst + 32 * n + 16, v_digits(v_bytes(x->qs + 16), all), d);
        v_out(dst + 160 + 16 * n, v_digits(v_bytes(x->qs + 32), all), d);
    }
    int32_t last;
    memcpy(&last, x->qh, sizeof last);
    const __m256i powers = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    v_out(dst + 240, v_digits(_mm_set1_epi32(last), powers), d);
}

#endif

#define V_ROWS_K \
    V_ROWS(q2_k_to_f32, agk_block_q2_k, 256) \
    V_ROWS(q3_k_to_f32, agk_block_q3_k, 256) \
    V_ROWS(q4_k_to_f32, agk_block_q4_k, 256) \
    V_ROWS(q5_k_to_f32, agk_block_q5_k, 256) \
    V_ROWS(q6_k_to_f32, agk_block_q6_k, 256) \
    V_ROWS(iq4_xs_to_f32, agk_block_iq4_xs, 256) \
    V_ROWS(tq2_0_to_f32, agk_block_tq2_0, 256)

#endif
