/* Unpacks blocks of the codebook types: numbers of points and signs, in vectors of 256 bits. Everything is static
 * inline: nothing here may be shared with files of another instruction set. Not here: the points themselves
 * (formats/quant_iq_grid.h), scales. */
#ifndef AGK_VEC_IQ_PARTS_H
#define AGK_VEC_IQ_PARTS_H

#include <immintrin.h>
#include <string.h>

#include "formats/blocks_iq.h"
#include "kernels/inline.h"

/* Makes the compiler load the value from memory, not piece by piece from the registers that it came from. */
#define AGK_IN_MEMORY(x) __asm__ volatile("" : "+m"(x))

AGK_INLINE __m256i agk_load32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

AGK_INLINE void agk_store32(void *p, __m256i x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}

/* --- signs: a bit for each of 256 elements */

/* 7 bits in each byte, and an eighth that makes the number of set bits even. */
AGK_INLINE __m256i agk_even_signs(__m256i seven)
{
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low = _mm256_and_si256(seven, _mm256_set1_epi8(15));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(seven, 4), _mm256_set1_epi8(15));
    return _mm256_or_si256(seven, _mm256_xor_si256(_mm256_shuffle_epi8(odd, low), _mm256_shuffle_epi8(odd, high)));
}

/* Four times 7 bits in each of 8 words. */
AGK_INLINE __m256i agk_even_signs_of_words(__m256i w)
{
    const __m256i first = _mm256_and_si256(w, _mm256_set1_epi32(0x7f));
    const __m256i second = _mm256_and_si256(_mm256_slli_epi32(w, 1), _mm256_set1_epi32(0x7f00));
    const __m256i third = _mm256_and_si256(_mm256_slli_epi32(w, 2), _mm256_set1_epi32(0x7f0000));
    const __m256i fourth = _mm256_and_si256(_mm256_slli_epi32(w, 3), _mm256_set1_epi32(0x7f000000));
    return agk_even_signs(_mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth)));
}

/* The words of signs and scale of the 8 groups. */
AGK_INLINE __m256i agk_iq2_xxs_words(const agk_block_iq2_xxs *x)
{
    const __m256 low = _mm256_castsi256_ps(agk_load32(x->qs)), high = _mm256_castsi256_ps(agk_load32(x->qs + 16));
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)), 0xd8);
}

AGK_INLINE __m256i agk_iq2_xs_signs(const agk_block_iq2_xs *x)
{
    const __m256i low = _mm256_srli_epi16(agk_load32(x->qs), 9), high = _mm256_srli_epi16(agk_load32(x->qs + 16), 9);
    return agk_even_signs(_mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8));
}

/* --- numbers of points */

/* The numbers of 16 points: 8 bits each, and high bits, which a multiplication and `mask` move to their place. */
AGK_INLINE void agk_iq_points(uint16_t *to, const uint8_t *low, __m256i high, __m256i times, int mask)
{
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)low));
    const __m256i bits = _mm256_and_si256(_mm256_mullo_epi16(high, times), _mm256_set1_epi16((short)mask));
    agk_store32(to, _mm256_or_si256(words, bits));
}

/* Bytes `at` of 8, each 8 of 16 words, 4 or 2 in turn. */
AGK_INLINE __m256i agk_spread_bytes(const void *eight, int each, int at)
{
    int64_t x;
    memcpy(&x, eight, sizeof x);
    const int step = 8 / each; /* in a half */
    uint8_t order[32];
    AGK_UNROLL for (int i = 0; i < 16; ++i)
    {
        order[2 * i] = (uint8_t)(at + i / 8 * step + i % 8 / each);
        order[2 * i + 1] = 0x80;
    }
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(x), agk_load32(order));
}

AGK_INLINE void agk_iq2_xs_points(const agk_block_iq2_xs *x, uint16_t to[32])
{
    agk_store32(to, _mm256_and_si256(agk_load32(x->qs), _mm256_set1_epi16(511)));
    agk_store32(to + 16, _mm256_and_si256(agk_load32(x->qs + 16), _mm256_set1_epi16(511)));
}

AGK_INLINE void agk_iq2_s_points(const agk_block_iq2_s *x, uint16_t to[32])
{
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        agk_iq_points(to + 16 * i, x->qs + 16 * i, agk_spread_bytes(x->qh, 4, 4 * i),
                      _mm256_set1_epi64x(0x0004001000400100), 0x300);
    }
}

AGK_INLINE void agk_iq3_s_points(const agk_block_iq3_s *x, uint16_t to[64])
{
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        agk_iq_points(to + 16 * i, x->qs + 16 * i, agk_spread_bytes(x->qh, 8, 2 * i),
                      _mm256_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2, 256, 128, 64, 32, 16, 8, 4, 2), 256);
    }
}

AGK_INLINE void agk_iq1_s_points(const agk_block_iq1_s *x, uint16_t to[32])
{
    const __m128i heads = _mm_loadu_si128((const __m128i *)(const void *)x->qh);
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        const __m256i twice = _mm256_broadcastsi128_si256(i == 0 ? heads : _mm_unpackhi_epi64(heads, heads));
        const __m256i each = _mm256_shuffle_epi8(
            twice, _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706));
        const __m256i high = _mm256_blend_epi16(each, _mm256_srli_epi16(each, 1), 0x88); /* each fourth */
        agk_iq_points(to + 16 * i, x->qs + 16 * i, high, _mm256_set1_epi64x(0x0001000400200100), 0x700);
    }
}

AGK_INLINE void agk_iq1_m_points(const agk_block_iq1_m *x, uint16_t to[32])
{
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        agk_iq_points(to + 16 * i, x->qs + 16 * i, agk_spread_bytes(x->qh + 8 * i, 2, 0), _mm256_set1_epi32(0x00100100),
                      0x700);
    }
}

#endif
