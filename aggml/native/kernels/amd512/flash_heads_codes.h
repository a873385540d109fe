/* Products of keys in q8_0 or q4_0 with up to eight rows, 16 keys at a time, a key in each lane: products of bytes
 * (avx512/flash_codes.h).
 *
 * Not here: keys in f16 or bf16 (flash_heads_halves.h). */
#ifndef AGK_AMD512_FLASH_HEADS_CODES_H
#define AGK_AMD512_FLASH_HEADS_CODES_H

#include "flash_heads.h"

/* A block of 16 keys: four codes of each key in a vector, and the scales. */
typedef struct turned_block {
    _Alignas(64) int32_t x[DWORDS][TURNED];
    uint64_t scales[TURNED / QUAD];
} turned_block;

/* One of the 8 steps in which a block of 16 keys is transposed. */
AGK_INLINE void turn_codes_step(int type, int s, const char *k, int64_t step, __m512i y[2][QUAD], turned_block *to)
{
    const int64_t at = type == AGK_Q8_0 ? (int64_t)offsetof(agk_block_q8_0, qs) : (int64_t)offsetof(agk_block_q4_0, qs);
    const int g = s / 2;
    if (s % 2 == 0) {
        const char *four = as_is(k + g * QUAD * step);
        const char *its[QUAD] = {four, four + step, four + 2 * step, four + 3 * step};
        to->scales[g] = four_scales(type, its, 0);
    }
    if (type == AGK_Q8_0) {
        if (s == 0 || s == 2) {
            const char *eight = k + g * 2 * QUAD * step;
#pragma GCC unroll 4
            for (int m = 0; m < QUAD; ++m) {
                y[g][m] = two_blocks(eight + m * step + at, as_is(eight + QUAD * step) + m * step + at);
            }
        } else if (s == 1 || s == 3) {
            turn(y[g]);
        } else {
            const __m512i bias = _mm512_set1_epi8((char)0x80);
            const int m = s - QUAD;
            _mm512_store_si512(to->x[m], _mm512_xor_si512(_mm512_shuffle_i32x4(y[0][m], y[1][m], 0x88), bias));
            _mm512_store_si512(to->x[m + 4], _mm512_xor_si512(_mm512_shuffle_i32x4(y[0][m], y[1][m], 0xDD), bias));
        }
    } else if (s < 2) {
#pragma GCC unroll 2
        for (int m = 2 * s; m < 2 * s + 2; ++m) {
            const char *one = k + m * step + at;
            y[0][m] = four_halves(one, one + 4 * step, as_is(one + 8 * step), as_is(one + 8 * step) + 4 * step);
        }
    } else if (s == 2) {
        turn(y[0]);
    } else if (s >= QUAD) {
        const __m512i low = _mm512_set1_epi8(0x0F);
        const int m = s - QUAD;
        _mm512_store_si512(to->x[m], _mm512_and_si512(y[0][m], low));
        _mm512_store_si512(to->x[m + 4], _mm512_and_si512(_mm512_srli_epi16(y[0][m], 4), low));
    }
}

AGK_INLINE void turn_codes(int type, const char *k, int64_t step, turned_block *to)
{
    __m512i y[2][QUAD];
#pragma GCC unroll 8
    for (int s = 0; s < DWORDS; ++s) turn_codes_step(type, s, k, step, y, to);
}

/* Adds the products of a block of 16 keys with all rows, times their scales, to s, while the block at `next` is
 * transposed to `to`. q: planes in the order in which they are read, [4 numbers][rows][3]. */
AGK_INLINE void dot_block(int type, int rows, const int32_t *q, const float *off, int64_t blocks,
                          const turned_block *keys, const char *next, int64_t step, turned_block *to, const char *ask,
                          vf s[MOST_ROWS][PAIR])
{
    __m512i sum[MOST_ROWS][PLANES], y[2][QUAD];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < DWORDS; ++i) {
        const __m512i x = _mm512_load_si512(keys->x[i]);
        turn_codes_step(type, i, next, step, y, to);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) add_planes(sum[r], x, q + (i * rows + r) * PLANES);
        ask_part(ask, TURNED * bytes_of(type, V_BLOCK), i, DWORDS);
    }
    const vf scale = v_load_f16((const uint16_t *)(const void *)keys->scales);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) s[r][0] = v_fma(joined(sum[r]) + v_set(off[r * blocks]), scale, s[r][0]);
}

#endif
