/* Rows of the codebook types (iq1, iq2, iq3) to bf16, for products on tiles, AVX-512: bit for bit what their f32 would
 * round to, except for the sign of a NaN.
 *
 * An element is one of a few multiples of its scale. So scales are multiplied by all of these and rounded; the
 * results for two scales are 32 words in a register, which is indexed by levels. Points are gathered 16 at a time as
 * codes of 2 or 3 bits a level: all machines that have tiles gather quickly, others may not, so nothing else uses
 * this. A row of 4096 takes 400 ns for iq3_s, and 150 more to be transposed, where its floats took 960 and 290. Not
 * here: other types, which become f32 first; transposing rows (mul_mat_tiles.c). */
#include <immintrin.h>

#include "formats/blocks_iq.h"
#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/vec/iq_parts.h"

enum { WIDE = 256, GROUPS = WIDE / 32 };

/* Points as levels. A gather reads 4 bytes, of which 2 belong to the point. */
#define P(code) code,
static const uint16_t iq2_xxs_codes[256 + 1] = {
#define AGK_IQ2_XXS
#include "formats/quant_iq_grid_2.def"
};
static const uint16_t iq2_xs_codes[512 + 1] = {
#define AGK_IQ2_XS
#include "formats/quant_iq_grid_2.def"
};
static const uint16_t iq2_s_codes[1024 + 1] = {
#define AGK_IQ2_S
#include "formats/quant_iq_grid_2.def"
};
static const uint16_t iq1_codes[2048 + 1] = {
#define AGK_IQ1
#include "formats/quant_iq_grid_2.def"
};
static const uint16_t iq3_xxs_codes[256 + 1] = {
#define AGK_IQ3_XXS
#include "formats/quant_iq_grid_3.def"
};
static const uint16_t iq3_s_codes[512 + 1] = {
#define AGK_IQ3_S
#include "formats/quant_iq_grid_3.def"
};
#undef P

/* The values of levels, repeated, so that the bits of the next level do not matter. */
#define TWICE(...) __VA_ARGS__, __VA_ARGS__
#define FOURFOLD(...) TWICE(__VA_ARGS__), TWICE(__VA_ARGS__)
static const _Alignas(64) float iq2_levels[16] = {FOURFOLD(8, 25, 43, 0)};
static const _Alignas(64) float iq3_xxs_levels[16] = {TWICE(4, 12, 20, 28, 36, 44, 52, 62)};
static const _Alignas(64) float iq3_s_levels[16] = {TWICE(1, 3, 5, 7, 9, 11, 13, 15)};
static const _Alignas(64) float iq1_s_levels[2][16] = {{FOURFOLD(-7, 1, 9, 0)}, {FOURFOLD(-9, -1, 7, 0)}};
static const _Alignas(64) float iq1_m_levels[16] = {TWICE(-7, 1, 9, 0, -9, -1, 7, 0)};

AGK_INLINE float half_at(const void *p)
{
    uint16_t d;
    memcpy(&d, p, sizeof d);
    return _cvtsh_ss(d);
}

AGK_INLINE __m128i load16(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

AGK_INLINE uint32_t word_at(const void *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* --- levels ------------------------------------------------------------------------------------------------------ */

/* Codes of 16 points, in the low halves of lanes. */
AGK_INLINE __m512i gather(const uint16_t *codes, __m512i at)
{
    return _mm512_i32gather_epi32(at, (const void *)codes, 2);
}

/* Words of 32 levels, each in the low bits: of 4 points from `first` on, 2 bits each, or of 8, 3 bits each. */
AGK_INLINE __m512i of_four(__m512i codes, int first)
{
    uint16_t at[32], shift[32];
    AGK_UNROLL for (int i = 0; i < 32; ++i)
    {
        at[i] = (uint16_t)(2 * (first + i / 8));
        shift[i] = (uint16_t)(2 * (i % 8));
    }
    return _mm512_srlv_epi16(_mm512_permutexvar_epi16(_mm512_loadu_si512(at), codes), _mm512_loadu_si512(shift));
}

AGK_INLINE __m512i of_eight(__m512i codes, int first)
{
    uint16_t at[32], shift[32];
    AGK_UNROLL for (int i = 0; i < 32; ++i)
    {
        at[i] = (uint16_t)(2 * (first + i / 4));
        shift[i] = (uint16_t)(3 * (i % 4));
    }
    return _mm512_srlv_epi16(_mm512_permutexvar_epi16(_mm512_loadu_si512(at), codes), _mm512_loadu_si512(shift));
}

/* All values that elements with the first or the second scale can have: 16 words each. */
AGK_INLINE __m512i worths(const float *levels, float a, const float *other, float b)
{
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(other), _mm512_set1_ps(b)),
                                        _mm512_mul_ps(_mm512_load_ps(levels), _mm512_set1_ps(a)));
}

/* Of each word of x the bits `mask`, then those of `also`, say which. */
AGK_INLINE __m512i pick(__m512i of, __m512i x, int mask, __m512i also)
{
    const __m512i at = _mm512_ternarylogic_epi32(x, _mm512_set1_epi16((short)mask), also, 0xea); /* x & mask | also */
    return _mm512_permutexvar_epi16(at, of);
}

AGK_INLINE __m512i pick_scale(__m512i of, __m512i x, int scale)
{
    return pick(of, x, 15, _mm512_set1_epi16((short)(16 * scale)));
}

AGK_INLINE __m512i pick_halves(__m512i of, __m512i x)
{
    return pick(of, x, 15, _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1));
}

AGK_INLINE void put(uint16_t *to, __m512i x)
{
    _mm512_storeu_si512(to, x);
}

AGK_INLINE void put_signed(uint16_t *to, __m512i x, uint32_t signs)
{
    put(to, _mm512_mask_add_epi16(x, signs, x, _mm512_set1_epi16((short)0x8000)));
}

/* --- scales ------------------------------------------------------------------------------------------------------ */

/* d * (s + 1/2) * part, d * (2 s + 1) * part: each rounded as the conversions to f32 round it. */
AGK_INLINE __m512 with_half(float d, __m512i s, float part)
{
    const __m512 sum = _mm512_add_ps(_mm512_set1_ps(0.5f), _mm512_cvtepi32_ps(s));
    return _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(d), sum), _mm512_set1_ps(part));
}

AGK_INLINE __m512 with_one(float d, __m512i s)
{
    const __m512i odd = _mm512_add_epi32(_mm512_add_epi32(s, s), _mm512_set1_epi32(1));
    return _mm512_mul_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(odd));
}

AGK_INLINE __m512i wide(__m256i x)
{
    return _mm512_zextsi256_si512(x);
}

/* 16 nibbles of 8 bytes, those of low bits first. */
AGK_INLINE __m512i nibbles(const uint8_t scales[8])
{
    const __m128i words = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)scales));
    const __m128i high = _mm_and_si128(_mm_slli_epi16(words, 4), _mm_set1_epi16(0xf00));
    return _mm512_cvtepu8_epi32(_mm_or_si128(_mm_and_si128(words, _mm_set1_epi16(15)), high));
}

/* 16 fields of `bits` bits of a word, at distances of `step` bits. */
AGK_INLINE __m512i fields(__m512i words, int step, int mask)
{
    int32_t shift[16];
    AGK_UNROLL for (int i = 0; i < 16; ++i) shift[i] = i * step % 32;
    return _mm512_and_si512(_mm512_srlv_epi32(words, _mm512_loadu_si512(shift)), _mm512_set1_epi32(mask));
}

/* Numbers of 16 points: 8 bits, and more. */
AGK_INLINE __m512i numbers(const uint8_t *low, __m512i high)
{
    return _mm512_or_si512(_mm512_cvtepu8_epi32(load16(low)), _mm512_slli_epi32(high, 8));
}

/* --- blocks ------------------------------------------------------------------------------------------------------ */

AGK_INLINE void iq2_xxs(const agk_block_iq2_xxs *x, uint16_t *to)
{
    uint32_t signs[GROUPS];
    float scales[16];
    __m512i codes[2];
    const __m512i both = _mm512_loadu_si512(x->qs);
    const __m256i points = _mm512_cvtepi64_epi32(both), words = _mm512_cvtepi64_epi32(_mm512_srli_epi64(both, 32));
    _mm256_storeu_si256((__m256i *)(void *)signs, agk_even_signs_of_words(words));
    _mm512_storeu_ps(scales, with_half(half_at(&x->d), wide(_mm256_srli_epi32(words, 28)), 0.25f));
    codes[0] = gather(iq2_xxs_codes, _mm512_cvtepu8_epi32(_mm256_castsi256_si128(points)));
    codes[1] = gather(iq2_xxs_codes, _mm512_cvtepu8_epi32(_mm256_extracti128_si256(points, 1)));
    AGK_UNROLL for (int g = 0; g < GROUPS; g += 2)
    {
        const __m512i of = worths(iq2_levels, scales[g], iq2_levels, scales[g + 1]);
        AGK_UNROLL for (int h = g; h < g + 2; ++h)
        {
            put_signed(to + 32 * h, pick_scale(of, of_four(codes[h / 4], h % 4 * 4), h - g), signs[h]);
        }
    }
}

/* Signs and scales of 16 each. */
AGK_INLINE void put_iq2(uint16_t *to, const __m512i codes[2], const float *scales, const void *signs)
{
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const __m512i of = worths(iq2_levels, scales[2 * g], iq2_levels, scales[2 * g + 1]);
        put_signed(to + 32 * g, pick_halves(of, of_four(codes[g / 4], g % 4 * 4)),
                   word_at((const char *)signs + 4 * g));
    }
}

AGK_INLINE void iq2_xs(const agk_block_iq2_xs *x, uint16_t *to)
{
    uint32_t signs[GROUPS];
    float scales[16];
    __m512i codes[2];
    const __m512i both = _mm512_loadu_si512(x->qs), points = _mm512_and_si512(both, _mm512_set1_epi16(511));
    _mm256_storeu_si256((__m256i *)(void *)signs, agk_even_signs(_mm512_cvtepi16_epi8(_mm512_srli_epi16(both, 9))));
    _mm512_storeu_ps(scales, with_half(half_at(&x->d), nibbles(x->scales), 0.25f));
    codes[0] = gather(iq2_xs_codes, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(points)));
    codes[1] = gather(iq2_xs_codes, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(points, 1)));
    put_iq2(to, codes, scales, signs);
}

AGK_INLINE void iq2_s(const agk_block_iq2_s *x, uint16_t *to)
{
    float scales[16];
    __m512i codes[2];
    _mm512_storeu_ps(scales, with_half(half_at(&x->d), nibbles(x->scales), 0.25f));
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        const __m512i high = fields(_mm512_set1_epi32((int32_t)word_at(x->qh + 4 * i)), 2, 3);
        codes[i] = gather(iq2_s_codes, numbers(x->qs + 16 * i, high));
    }
    put_iq2(to, codes, scales, x->signs);
}

AGK_INLINE void put_iq3(uint16_t *to, const __m512i codes[4], const float *levels, const float *scales,
                        const void *signs)
{
    AGK_UNROLL for (int g = 0; g < GROUPS; g += 2)
    {
        const __m512i of = worths(levels, scales[g], levels, scales[g + 1]);
        AGK_UNROLL for (int h = g; h < g + 2; ++h)
        {
            put_signed(to + 32 * h, pick_scale(of, of_eight(codes[h / 2], h % 2 * 8), h - g),
                       word_at((const char *)signs + 4 * h));
        }
    }
}

AGK_INLINE void iq3_xxs(const agk_block_iq3_xxs *x, uint16_t *to)
{
    uint32_t signs[GROUPS];
    float scales[16];
    __m512i codes[4];
    const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)x->scales_and_signs);
    _mm256_storeu_si256((__m256i *)(void *)signs, agk_even_signs_of_words(words));
    _mm512_storeu_ps(scales, with_half(half_at(&x->d), wide(_mm256_srli_epi32(words, 28)), 0.5f));
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        codes[i] = gather(iq3_xxs_codes, _mm512_cvtepu8_epi32(load16(x->qs + 16 * i)));
    }
    put_iq3(to, codes, iq3_xxs_levels, scales, signs);
}

AGK_INLINE void iq3_s(const agk_block_iq3_s *x, uint16_t *to)
{
    float scales[16];
    __m512i codes[4];
    const __m512i s = fields(_mm512_set1_epi32((int32_t)word_at(x->scales)), 4, 15);
    _mm512_storeu_ps(scales, with_one(half_at(&x->d), s));
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        const __m512i high = fields(_mm512_set1_epi32(x->qh[2 * i] | x->qh[2 * i + 1] << 8), 1, 1);
        codes[i] = gather(iq3_s_codes, numbers(x->qs + 16 * i, high));
    }
    put_iq3(to, codes, iq3_s_levels, scales, x->signs);
}

/* d / 8 times levels that are 8 times a point and its shift. */
AGK_INLINE void iq1_s(const agk_block_iq1_s *x, uint16_t *to)
{
    float scales[16];
    __m512i codes[2];
    const __m512i heads = wide(_mm256_cvtepu16_epi32(load16(x->qh)));
    const __m512i s = _mm512_and_si512(_mm512_srli_epi32(heads, 12), _mm512_set1_epi32(7));
    _mm512_storeu_ps(scales, _mm512_mul_ps(with_one(half_at(&x->d), s), _mm512_set1_ps(0.125f)));
    const __m512i shifts = _mm512_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9);
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        const __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        const __m512i each = _mm512_permutexvar_epi32(_mm512_add_epi32(at, _mm512_set1_epi32(4 * i)), heads);
        const __m512i high = _mm512_and_si512(_mm512_srlv_epi32(each, shifts), _mm512_set1_epi32(7));
        codes[i] = gather(iq1_codes, numbers(x->qs + 16 * i, high));
    }
    AGK_UNROLL for (int g = 0; g < GROUPS; g += 2)
    {
        const __m512i of =
            worths(iq1_s_levels[x->qh[g] >> 15], scales[g], iq1_s_levels[x->qh[g + 1] >> 15], scales[g + 1]);
        AGK_UNROLL for (int h = g; h < g + 2; ++h)
        {
            put(to + 32 * h, pick_scale(of, of_four(codes[h / 4], h % 4 * 4), h - g));
        }
    }
}

AGK_INLINE void iq1_m(const agk_block_iq1_m *x, uint16_t *to)
{
    uint16_t w[4];
    float scales[16];
    __m512i codes[2];
    memcpy(w, x->scales, sizeof w);
    const float d = _cvtsh_ss((uint16_t)(w[0] >> 12 | (w[1] >> 8 & 0xf0) | (w[2] >> 4 & 0xf00) | (w[3] & 0xf000)));
    const __m128i words = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)x->scales));
    const __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i each = _mm512_permutexvar_epi32(at, _mm512_zextsi128_si512(words));
    const __m512i shifts = _mm512_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9);
    const __m512i s = _mm512_and_si512(_mm512_srlv_epi32(each, shifts), _mm512_set1_epi32(7));
    _mm512_storeu_ps(scales, _mm512_mul_ps(with_one(d, s), _mm512_set1_ps(0.125f)));
    __m512i down[2]; /* bit 2 of lanes whose point is shifted down */
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        const __m256i first = _mm256_set1_epi32((int32_t)word_at(x->qh + 8 * i)),
                      second = _mm256_set1_epi32((int32_t)word_at(x->qh + 8 * i + 4));
        const __m512i heads = fields(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), 4, 15);
        codes[i] = gather(iq1_codes, numbers(x->qs + 16 * i, _mm512_and_si512(heads, _mm512_set1_epi32(7))));
        down[i] = _mm512_and_si512(_mm512_srli_epi32(heads, 1), _mm512_set1_epi32(4));
    }
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        uint16_t of_point[32];
        AGK_UNROLL for (int i = 0; i < 32; ++i) of_point[i] = (uint16_t)(2 * (g % 4 * 4 + i / 8));
        const __m512i halves = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
        const __m512i which = _mm512_permutexvar_epi16(_mm512_loadu_si512(of_point), down[g / 4]);
        const __m512i of = worths(iq1_m_levels, scales[2 * g], iq1_m_levels, scales[2 * g + 1]);
        put(to + 32 * g, pick(of, of_four(codes[g / 4], g % 4 * 4), 3, _mm512_or_si512(which, halves)));
    }
}

#define ROW(name) \
    static void row_##name(const void *src, uint16_t *to, int64_t n) \
    { \
        const agk_block_##name *x = src; \
        for (; n >= WIDE; n -= WIDE, to += WIDE, ++x) name(x, to); \
    }
ROW(iq2_xxs)
ROW(iq2_xs)
ROW(iq2_s)
ROW(iq3_xxs)
ROW(iq3_s)
ROW(iq1_s)
ROW(iq1_m)

void agk_mm_tiles_rows_iq_avx512(int type, const void *src, void *out, int64_t n)
{
    switch (type) {
    case AGK_IQ2_XXS: row_iq2_xxs(src, out, n); break;
    case AGK_IQ2_XS: row_iq2_xs(src, out, n); break;
    case AGK_IQ2_S: row_iq2_s(src, out, n); break;
    case AGK_IQ3_XXS: row_iq3_xxs(src, out, n); break;
    case AGK_IQ3_S: row_iq3_s(src, out, n); break;
    case AGK_IQ1_S: row_iq1_s(src, out, n); break;
    case AGK_IQ1_M: row_iq1_m(src, out, n); break;
    default: break;
    }
}
