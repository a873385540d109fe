/* Shared by flash_codes.c and the kernels of all heads of amd512 and zen5: queries as integers in three planes of
 * bytes, codes of 16 keys transposed in registers.
 *
 * Not here: the walk over keys. */
#ifndef AGK_AVX512_FLASH_CODES_H
#define AGK_AVX512_FLASH_CODES_H

#include "flash_narrow.h"

/* A query is rounded to integers of 24 bits, which are three signed bytes (planes). So its products with 64 codes take
 * three `vpdpbusd`, where f32 takes four products and has to widen the codes first. An f32 has 24 bits, too: the error
 * of the integers has 5e-13 of the power of results, that of f32 1e-13; integers of 16 bits would have 5e-10 (256 keys,
 * 4 rows of 128).
 *
 * 16 keys are transposed in registers, once for all rows, so that a lane is a key: nothing is summed across lanes, and
 * the scales are a vector. vpdpbusd needs unsigned codes: 128 (8) is added to those of q8_0 (q4_0), and corrected for
 * by the sum of the query.
 *
 * Values stay f32: a probability times the scale of each block would have to be converted to bytes for every key,
 * which costs as much as three products save. */
enum { PLANES = 3, TURNED = 16, DWORDS = V_BLOCK / 4, LARGEST = 0x7F7F00, OFFSETS = 0x808080 };

/* Queries of a tile as integers, stored behind the sums of values. For a row: its scale, the correction for each
 * block, and for each four elements four bytes of the lowest, the middle and the highest plane, and four unused
 * bytes. */
typedef struct codes {
    float *scale, *off;
    int32_t *planes;
} codes;

static inline codes codes_of(const agk_flash_tile *t)
{
    codes c = {.scale = agk_flash_narrow_of(t).o + t->n_rows * t->dv};
    c.off = c.scale + t->n_rows;
    c.planes = (int32_t *)(void *)(c.off + t->n_rows * (t->d / V_BLOCK));
    return c;
}

/* For each four integers: their four lowest bytes, the four above, and so on, as signed bytes that add up to them. */
AGK_INLINE __m512i planes_of(__m512i x)
{
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i offsets = _mm512_set1_epi32(OFFSETS);
    return _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_add_epi32(x, offsets), offsets), order);
}

AGK_INLINE float bias_of(int type)
{
    return type == AGK_Q8_0 ? 128.0f : 8.0f;
}

/* The sum of each plane += four codes of each lane times the plane's four signed bytes in memory. */
AGK_INLINE void add_planes(__m512i sum[PLANES], __m512i x, const int32_t *y)
{
    __asm__("vpdpbusd %4%{1to16%}, %3, %0\n\tvpdpbusd %5%{1to16%}, %3, %1\n\tvpdpbusd %6%{1to16%}, %3, %2"
            : "+&v"(sum[0]), "+&v"(sum[1]), "+&v"(sum[2])
            : "v"(x), "m"(y[0]), "m"(y[1]), "m"(y[2]));
}

/* The total of three planes as floats. The lower two are added as integers: at most 2^30. */
AGK_INLINE vf joined(const __m512i sum[PLANES])
{
    const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sum[1], 8), sum[0]);
    return v_fma(_mm512_cvtepi32_ps(sum[2]), v_set(65536.0f), _mm512_cvtepi32_ps(low));
}

/* -- keys */

AGK_INLINE void turn(__m512i x[QUAD]) /* four dwords of four keys within each quarter */
{
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
}

AGK_INLINE __m128i half_block(const char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
AGK_INLINE __m512i two_blocks(const char *a, const char *b)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)a);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256((const __m256i *)(const void *)b), 1);
}
AGK_INLINE __m512i four_halves(const char *a, const char *b, const char *c, const char *d)
{
    __m512i x = _mm512_castsi128_si512(half_block(a));
    x = _mm512_inserti32x4(x, half_block(b), 1);
    x = _mm512_inserti32x4(x, half_block(c), 2);
    return _mm512_inserti32x4(x, half_block(d), 3);
}

/* Codes of a block of 16 keys: lane j of x[i] has elements 4 i .. 4 i + 3 of key j. */
AGK_INLINE void turned(int type, const char *const k[TURNED], int64_t at, __m512i x[DWORDS])
{
    const __m512i low = _mm512_set1_epi8(0x0F);
    if (type == AGK_Q8_0) {
        at += (int64_t)offsetof(agk_block_q8_0, qs);
        __m512i y[2][QUAD];
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 4
            for (int m = 0; m < QUAD; ++m) y[g][m] = two_blocks(k[8 * g + m] + at, k[8 * g + 4 + m] + at);
            turn(y[g]);
        }
#pragma GCC unroll 4
        for (int m = 0; m < QUAD; ++m) {
            const __m512i bias = _mm512_set1_epi8((char)0x80);
            x[m] = _mm512_xor_si512(_mm512_shuffle_i32x4(y[0][m], y[1][m], 0x88), bias);
            x[m + 4] = _mm512_xor_si512(_mm512_shuffle_i32x4(y[0][m], y[1][m], 0xDD), bias);
        }
    } else {
        at += (int64_t)offsetof(agk_block_q4_0, qs);
        __m512i y[QUAD];
#pragma GCC unroll 4
        for (int m = 0; m < QUAD; ++m) y[m] = four_halves(k[m] + at, k[4 + m] + at, k[8 + m] + at, k[12 + m] + at);
        turn(y);
#pragma GCC unroll 4
        for (int m = 0; m < QUAD; ++m) {
            x[m] = _mm512_and_si512(y[m], low);
            x[m + 4] = _mm512_and_si512(_mm512_srli_epi16(y[m], 4), low);
        }
    }
}

AGK_INLINE uint64_t four_scales(int type, const char *const k[QUAD], int64_t at)
{
    return scale_of(type, k[0] + at) | scale_of(type, k[1] + at) << 16 | scale_of(type, k[2] + at) << 32 |
           scale_of(type, k[3] + at) << 48;
}

AGK_INLINE vf turned_scales(int type, const char *const k[TURNED], int64_t at) /* of a block of 16 keys */
{
    return _mm512_cvtph_ps(_mm256_set_epi64x((int64_t)four_scales(type, k + 12, at),
                                             (int64_t)four_scales(type, k + 8, at),
                                             (int64_t)four_scales(type, k + 4, at), (int64_t)four_scales(type, k, at)));
}

/* Products of 16 keys s[row][16], times the scales of queries, to S [rows / 4][keys / 4][4 rows][4 keys] at `to`. */
AGK_INLINE void store_turned(const agk_flash_tile *t, const codes *c, const vf *s, float *to)
{
    for (int64_t r = 0; r < t->n_rows; r += ROWS, to += ROWS * AGK_FLASH_KEYS) {
        vf x[ROWS];
#pragma GCC unroll 4
        for (int h = 0; h < ROWS; ++h) {
            const int64_t row = r + h < t->n_rows ? r + h : r;
            x[h] = s[row] * v_set(c->scale[row]);
        }
        const vf a = _mm512_shuffle_f32x4(x[0], x[1], 0x44), b = _mm512_shuffle_f32x4(x[0], x[1], 0xEE);
        const vf d = _mm512_shuffle_f32x4(x[2], x[3], 0x44), e = _mm512_shuffle_f32x4(x[2], x[3], 0xEE);
        v_store(to, _mm512_shuffle_f32x4(a, d, 0x88));
        v_store(to + VF, _mm512_shuffle_f32x4(a, d, 0xDD));
        v_store(to + 2 * VF, _mm512_shuffle_f32x4(b, e, 0x88));
        v_store(to + 3 * VF, _mm512_shuffle_f32x4(b, e, 0xDD));
    }
}

#endif
