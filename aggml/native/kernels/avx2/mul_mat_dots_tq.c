/* mul_mat of the ternary types with few columns, AVX2: how their blocks are unpacked.
 *
 * Not here: the products (mul_mat_dots_apart.h), other types (mul_mat_dots_iq.c, mul_mat_dots_q.c). */
#include "mul_mat_dots_apart.h"

AGK_INLINE void tq2_0(const void *block, apart *to)
{
    const agk_block_tq2_0 *x = block;
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const __m256i q = _mm256_srli_epi16(load(x->qs + 32 * (g / 4)), 2 * (g % 4));
        store(to->magnitude + 32 * g, _mm256_and_si256(q, _mm256_set1_epi8(3)));
    }
    to->unit = half_at(&x->d);
}

/* The first digit of base 3 of fractions of 256, 128 less than they are: 0, 1 or 2. The rest comes to the front by
 * tripling, with or without these 128. */
AGK_INLINE __m256i first_digit(__m256i x)
{
    const __m256i one = _mm256_cmpgt_epi8(x, _mm256_set1_epi8(85 - 128));
    return _mm256_abs_epi8(_mm256_add_epi8(one, _mm256_cmpgt_epi8(x, _mm256_set1_epi8(170 - 128))));
}

AGK_INLINE __m256i tripled(__m256i x)
{
    return _mm256_add_epi8(x, _mm256_add_epi8(x, x));
}

/* 32 bytes of five digits, the first of all first; then 16; then 4 of four. */
AGK_INLINE void tq1_0(const void *block, apart *to)
{
    const agk_block_tq1_0 *x = block;
    const __m256i less = _mm256_set1_epi8(-128);
    __m256i q = _mm256_xor_si256(load(x->qs), less);
    const __m128i middle = _mm_loadu_si128((const __m128i *)(const void *)(x->qs + 32));
    __m256i twice = _mm256_xor_si256(_mm256_broadcastsi128_si256(middle), less); /* the next digit in the high half */
    twice = _mm256_blend_epi32(twice, tripled(twice), 0xf0);
    AGK_UNROLL for (int g = 0; g < 5; ++g, q = tripled(q)) store(to->magnitude + 32 * g, first_digit(q));
    AGK_UNROLL for (int g = 5; g < 8; ++g, twice = tripled(tripled(twice)))
        store(to->magnitude + 32 * g, first_digit(twice));
    int32_t last;
    memcpy(&last, x->qh, sizeof last);
    __m256i four = _mm256_xor_si256(_mm256_set1_epi32(last), less);
    four = _mm256_blend_epi32(four, tripled(four), 0xaa);
    four = _mm256_blend_epi32(four, tripled(tripled(four)), 0xcc);
    _mm_storeu_si128((__m128i *)(void *)(to->magnitude + 240), _mm256_castsi256_si128(first_digit(four)));
    to->unit = half_at(&x->d);
}

DOT(tq1_0, true)
DOT(tq2_0, true)
