/* Products of keys in f16 or bf16: with five to eight rows 32 keys at a time, a key in each lane; with fewer rows four
 * keys at a time, numbers of a key in the lanes.
 *
 * Not here: quantized keys (flash_heads_codes.h). */
#ifndef AGK_AMD512_FLASH_HEADS_HALVES_H
#define AGK_AMD512_FLASH_HEADS_HALVES_H

#include "flash_heads.h"

enum { UNIT = 32, EIGHT = 8 };

/* 32 keys: [numbers of a row][32 keys]. */
typedef struct halves {
    _Alignas(64) uint16_t x[MOST_WIDE][UNIT];
} halves;

AGK_INLINE __m128i eight(const char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* 8 numbers of keys 0, 8, 16 and 24, a quarter each: loads, no shuffles. */
AGK_INLINE __m512i four_keys(const char *k, int64_t step)
{
    __m512i x = _mm512_castsi128_si512(eight(k));
    x = _mm512_mask_broadcast_i32x4(x, 0x00F0, eight(k + 8 * step));
    x = _mm512_mask_broadcast_i32x4(x, 0x0F00, eight(k + 16 * step));
    return _mm512_mask_broadcast_i32x4(x, 0xF000, eight(k + 24 * step));
}

/* One of the 8 steps in which 8 numbers of 32 keys are transposed, within quarters. */
AGK_INLINE void turn_step(int s, const char *k, int64_t step, __m512i y[EIGHT], uint16_t (*to)[UNIT])
{
    if (s == 2 || s == 5) { /* four keys */
        __m512i *z = y + (s == 5 ? 4 : 0);
        const __m512i a = z[0], b = z[1], c = z[2], d = z[3];
        z[0] = _mm512_unpacklo_epi32(a, c);
        z[1] = _mm512_unpackhi_epi32(a, c);
        z[2] = _mm512_unpacklo_epi32(b, d);
        z[3] = _mm512_unpackhi_epi32(b, d);
    } else if (s < 6) { /* two keys */
        const int i = s < 2 ? 2 * s : 2 * s - 2;
        const __m512i a = four_keys(k + i * step, step), b = four_keys(k + (i + 1) * step, step);
        y[i] = _mm512_unpacklo_epi16(a, b);
        y[i + 1] = _mm512_unpackhi_epi16(a, b);
    } else { /* all eight */
#pragma GCC unroll 2
        for (int i = s == 6 ? 0 : 2, last = i + 2; i < last; ++i) {
            _mm512_store_si512(to[2 * i], _mm512_unpacklo_epi64(y[i], y[i + 4]));
            _mm512_store_si512(to[2 * i + 1], _mm512_unpackhi_epi64(y[i], y[i + 4]));
        }
    }
}

static void turn_halves(int64_t d, const char *k, int64_t step, halves *to)
{
    for (int64_t e = 0; e < d; e += EIGHT, k += 2 * EIGHT) {
        __m512i y[EIGHT];
#pragma GCC unroll 8
        for (int s = 0; s < EIGHT; ++s) turn_step(s, k, step, y, to->x + e);
    }
}

/* Products of 32 keys with all rows, while the 32 keys at `next` are transposed to `to`. */
AGK_INLINE void dot_halves(int type, int rows, int64_t d, const float *q, const halves *keys, const char *next,
                           int64_t step, halves *to, const char *ask, vf acc[MOST_ROWS][PAIR])
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) acc[r][0] = acc[r][1] = v_zero();
#pragma GCC unroll 1
    for (int64_t e = 0; e < d; e += EIGHT, q += EIGHT * rows, next += 2 * EIGHT, ask += 2 * EIGHT * UNIT) {
        __m512i y[EIGHT];
#pragma GCC unroll 8
        for (int s = 0; s < EIGHT; ++s) {
            const char *x = (const char *)keys->x[e + s];
            const vf a = v_part(type, x, 0, VF), b = v_part(type, x, VF, VF);
            turn_step(s, next, step, y, to->x + e);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                add_times(&acc[r][0], a, q + s * rows + r);
                add_times(&acc[r][1], b, q + s * rows + r);
            }
            ask_part(ask, 2 * EIGHT * UNIT, s, EIGHT);
        }
    }
}

/* Products of four keys with up to four rows: a quarter for each row, a lane for each key. Transposing would take more
 * than sums over lanes do: 4 rows of 128 from L2 34 ns a key. q: [d / 16][rows][16]. */
AGK_INLINE vf dot_quad(int type, int rows, int64_t d, const float *q, const char *k, int64_t step, const char *ask)
{
    vf acc[ROWS][QUAD];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) acc[r][j] = v_zero();
    }
#pragma GCC unroll 1
    for (int64_t i = 0; i < d; i += VF, q += rows * VF, k += 2 * VF, ask += QUAD * 2 * VF) {
        vf x[QUAD];
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) x[j] = v_part(type, k + j * step, 0, VF);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            vf y = v_load(q + r * VF);
            v_keep(&y); /* one load of 64 bytes, not one for each product */
#pragma GCC unroll 4
            for (int j = 0; j < QUAD; ++j) acc[r][j] = v_fma(x[j], y, acc[r][j]);
        }
        ask_part(ask, QUAD * 2 * VF, 0, 1);
    }
    vf sums[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sums[r] = r < rows ? lanes(acc[r][0], acc[r][1], acc[r][2], acc[r][3]) : v_zero();
    return quarters(sums[0], sums[1], sums[2], sums[3]);
}

/* Products of 16 keys. */
AGK_INLINE void dot_quads(int type, int rows, int64_t d, const float *q, const char *k, int64_t step, const char *ask,
                          vf x[MOST_ROWS][PAIR])
{
    vf y[QUAD];
#pragma GCC unroll 4
    for (int j = 0; j < QUAD; ++j) y[j] = dot_quad(type, rows, d, q, k + j * QUAD * step, step, ask + j * QUAD * 2 * d);
    const vf a = _mm512_shuffle_f32x4(y[0], y[1], 0x44), b = _mm512_shuffle_f32x4(y[0], y[1], 0xEE);
    const vf e = _mm512_shuffle_f32x4(y[2], y[3], 0x44), f = _mm512_shuffle_f32x4(y[2], y[3], 0xEE);
    x[0][0] = _mm512_shuffle_f32x4(a, e, 0x88);
    if (rows > 1) x[1][0] = _mm512_shuffle_f32x4(a, e, 0xDD);
    if (rows > 2) x[2][0] = _mm512_shuffle_f32x4(b, f, 0x88);
    if (rows > 3) x[3][0] = _mm512_shuffle_f32x4(b, f, 0xDD);
}

#endif
