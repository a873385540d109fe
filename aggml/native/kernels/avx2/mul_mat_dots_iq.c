/* mul_mat of the codebook types with few columns, AVX2: how their blocks are unpacked.
 *
 * Not here: the products (mul_mat_dots_apart.h), ternary types (mul_mat_dots_tq.c), others
 * (mul_mat_dots_q.c), many columns (mul_mat_shorts.c). */
#include "formats/blocks_iq.h"
#include "formats/quant_iq_grid.h"
#include "kernels/vec/iq_parts.h"
#include "mul_mat_dots_apart.h"

/* --- parts ------------------------------------------------------------------------------------------------------- */

AGK_INLINE __m128i load8(const void *p)
{
    return _mm_loadl_epi64((const __m128i *)p);
}

AGK_INLINE __m256i both(__m128i low, __m128i high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Scales 2 i of eight pairs in the low half, 2 i + 1 in the high one, become factors 2 s + 1. */
AGK_INLINE void put_factors(apart *to, __m256i s)
{
    const __m256i f = _mm256_add_epi16(_mm256_add_epi16(s, s), _mm256_set1_epi16(1));
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        store(to->factor[g], _mm256_shuffle_epi8(f, _mm256_set1_epi16((short)(2 * g | (2 * g + 1) << 8))));
    }
}

/* A scale of 4 bits for each 16. */
AGK_INLINE void put_nibble_factors(apart *to, const uint8_t scales[8])
{
    const __m128i words = _mm_cvtepu8_epi16(load8(scales));
    put_factors(to, both(_mm_and_si128(words, _mm_set1_epi16(15)), _mm_srli_epi16(words, 4)));
}

/* Eight scales in 32-bit lanes. */
AGK_INLINE void put_wide_factors(apart *to, __m256i s)
{
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    put_factors(to, both(words, words));
}

/* 32 magnitudes, negative where the bit is set. */
AGK_INLINE void put_signed(apart *to, int g, __m256i magnitude, const void *signs)
{
    int32_t word;
    memcpy(&word, signs, sizeof word);
    const __m256i each = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const __m256i spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32(word), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i mask = _mm256_cmpeq_epi8(_mm256_and_si256(spread, each), each);
    store(to->magnitude + 32 * g, magnitude);
    store(to->sign + 32 * g, _mm256_or_si256(mask, _mm256_set1_epi8(1)));
}

AGK_INLINE __m256i four_points(const void *a, const void *b, const void *c, const void *d)
{
    return both(_mm_unpacklo_epi64(load8(a), load8(b)), _mm_unpacklo_epi64(load8(c), load8(d)));
}

AGK_INLINE __m128i four_small_points(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    int32_t word[4];
    memcpy(&word[0], a, 4);
    memcpy(&word[1], b, 4);
    memcpy(&word[2], c, 4);
    memcpy(&word[3], d, 4);
    return _mm_setr_epi32(word[0], word[1], word[2], word[3]);
}

/* --- blocks ------------------------------------------------------------------------------------------------------ */

AGK_INLINE void iq2_xxs(const void *block, apart *to)
{
    const agk_block_iq2_xxs *x = block;
    uint32_t signs[GROUPS];
    const __m256i words = agk_iq2_xxs_words(x);
    store(signs, agk_even_signs_of_words(words));
    put_wide_factors(to, _mm256_srli_epi32(words, 28));
    AGK_IN_MEMORY(signs);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint8_t *k = (const uint8_t *)(x->qs + 4 * g);
        put_signed(
            to, g,
            four_points(agk_iq2_xxs_grid[k[0]], agk_iq2_xxs_grid[k[1]], agk_iq2_xxs_grid[k[2]], agk_iq2_xxs_grid[k[3]]),
            &signs[g]);
    }
    to->unit = 0.125f * half_at(&x->d);
}

AGK_INLINE void iq2_xs(const void *block, apart *to)
{
    const agk_block_iq2_xs *x = block;
    uint32_t signs[GROUPS];
    store(signs, agk_iq2_xs_signs(x));
    put_nibble_factors(to, x->scales);
    uint16_t points[32];
    agk_iq2_xs_points(x, points);
    AGK_IN_MEMORY(signs);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint16_t *k = points + 4 * g;
        put_signed(
            to, g,
            four_points(agk_iq2_xs_grid[k[0]], agk_iq2_xs_grid[k[1]], agk_iq2_xs_grid[k[2]], agk_iq2_xs_grid[k[3]]),
            &signs[g]);
    }
    to->unit = 0.125f * half_at(&x->d);
}

AGK_INLINE void iq2_s(const void *block, apart *to)
{
    const agk_block_iq2_s *x = block;
    put_nibble_factors(to, x->scales);
    uint16_t points[32];
    agk_iq2_s_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint16_t *k = points + 4 * g;
        put_signed(to, g,
                   four_points(agk_iq2_s_grid[k[0]], agk_iq2_s_grid[k[1]], agk_iq2_s_grid[k[2]], agk_iq2_s_grid[k[3]]),
                   x->signs + 4 * g);
    }
    to->unit = 0.125f * half_at(&x->d);
}

AGK_INLINE void iq3_xxs(const void *block, apart *to)
{
    const agk_block_iq3_xxs *x = block;
    uint32_t signs[GROUPS];
    const __m256i words = load(x->scales_and_signs);
    store(signs, agk_even_signs_of_words(words));
    put_wide_factors(to, _mm256_srli_epi32(words, 28));
    AGK_IN_MEMORY(signs);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint8_t *k = x->qs + 8 * g;
        put_signed(to, g,
                   both(four_small_points(agk_iq3_xxs_grid[k[0]], agk_iq3_xxs_grid[k[1]], agk_iq3_xxs_grid[k[2]],
                                          agk_iq3_xxs_grid[k[3]]),
                        four_small_points(agk_iq3_xxs_grid[k[4]], agk_iq3_xxs_grid[k[5]], agk_iq3_xxs_grid[k[6]],
                                          agk_iq3_xxs_grid[k[7]])),
                   &signs[g]);
    }
    to->unit = 0.25f * half_at(&x->d);
}

AGK_INLINE void iq3_s(const void *block, apart *to)
{
    const agk_block_iq3_s *x = block;
    int32_t scales;
    memcpy(&scales, x->scales, sizeof scales);
    const __m256i nibbles =
        _mm256_srlv_epi32(_mm256_set1_epi32(scales), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    put_wide_factors(to, _mm256_and_si256(nibbles, _mm256_set1_epi32(15)));
    uint16_t points[64];
    agk_iq3_s_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint16_t *k = points + 8 * g;
        put_signed(to, g,
                   both(four_small_points(agk_iq3_s_grid[k[0]], agk_iq3_s_grid[k[1]], agk_iq3_s_grid[k[2]],
                                          agk_iq3_s_grid[k[3]]),
                        four_small_points(agk_iq3_s_grid[k[4]], agk_iq3_s_grid[k[5]], agk_iq3_s_grid[k[6]],
                                          agk_iq3_s_grid[k[7]])),
                   x->signs + 4 * g);
    }
    to->unit = half_at(&x->d);
}

/* 8 times points of -1, 0, 1, and their shifts: -1 or 1. */
AGK_INLINE void put_shifted(apart *to, int g, __m256i points, __m256i shift)
{
    const __m256i eight = _mm256_and_si256(_mm256_slli_epi16(points, 3), _mm256_set1_epi8(-8));
    const __m256i q = _mm256_add_epi8(eight, shift);
    store(to->sign + 32 * g, q);
    store(to->magnitude + 32 * g, _mm256_abs_epi8(q));
}

AGK_INLINE void iq1_s(const void *block, apart *to)
{
    const agk_block_iq1_s *x = block;
    const __m128i heads = _mm_loadu_si128((const __m128i *)(const void *)x->qh);
    const __m128i scales = _mm_and_si128(_mm_srli_epi16(heads, 12), _mm_set1_epi16(7));
    put_factors(to, both(scales, scales));
    uint16_t points[32];
    agk_iq1_s_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint16_t *k = points + 4 * g;
        put_shifted(to, g, four_points(agk_iq1_grid[k[0]], agk_iq1_grid[k[1]], agk_iq1_grid[k[2]], agk_iq1_grid[k[3]]),
                    _mm256_set1_epi8((char)(1 - (x->qh[g] >> 15 << 1))));
    }
    to->unit = 0.125f * half_at(&x->d);
}

AGK_INLINE void iq1_m(const void *block, apart *to)
{
    const agk_block_iq1_m *x = block;
    uint16_t w[4];
    memcpy(w, x->scales, sizeof w);
    const __m128i words = _mm_cvtepu16_epi32(load8(x->scales)), three = _mm_set1_epi32(7);
    const __m128i a = _mm_and_si128(words, three), b = _mm_and_si128(_mm_srli_epi32(words, 3), three);
    const __m128i c = _mm_and_si128(_mm_srli_epi32(words, 6), three),
                  d = _mm_and_si128(_mm_srli_epi32(words, 9), three);
    put_factors(to, both(_mm_or_si128(a, _mm_slli_epi32(c, 16)), _mm_or_si128(b, _mm_slli_epi32(d, 16))));
    const __m256i down = _mm256_setr_epi64x(0x0808080808080808, (int64_t)0x8080808080808080, 0x0808080808080808,
                                            (int64_t)0x8080808080808080);
    uint16_t points[32];
    agk_iq1_m_points(x, points);
    AGK_IN_MEMORY(points);
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const uint16_t *k = points + 4 * g;
        const __m256i heads = both(_mm_set1_epi8((char)x->qh[2 * g]), _mm_set1_epi8((char)x->qh[2 * g + 1]));
        const __m256i is_down = _mm256_cmpeq_epi8(_mm256_and_si256(heads, down), down);
        put_shifted(to, g, four_points(agk_iq1_grid[k[0]], agk_iq1_grid[k[1]], agk_iq1_grid[k[2]], agk_iq1_grid[k[3]]),
                    _mm256_or_si256(is_down, _mm256_set1_epi8(1)));
    }
    const uint16_t bits = (uint16_t)(w[0] >> 12 | (w[1] >> 8 & 0xf0) | (w[2] >> 4 & 0xf00) | (w[3] & 0xf000));
    to->unit = 0.125f * _cvtsh_ss(bits);
}

DOT(iq2_xxs, false)
DOT(iq2_xs, false)
DOT(iq2_s, false)
DOT(iq3_xxs, false)
DOT(iq3_s, false)
DOT(iq1_s, false)
DOT(iq1_m, false)
