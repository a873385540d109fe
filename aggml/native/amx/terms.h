/* Numbers as bf16 terms, and products of panels and units in tiles (mul_mat_terms.h), for mul_mat and attention.
 * All static inline. */
#ifndef AGK_AMX_TERMS_H
#define AGK_AMX_TERMS_H

#include "../mul_mat_terms.h"
#include "tiles.h"

enum { TILE = AGK_TERMS_TILE, PAIR = 2 * TILE };

/* Not zero, and below 2^-110 or not finite. */
AGK_INLINE __mmask16 cannot_split(__m512 x)
{
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    const __m512i above = _mm512_sub_epi32(magnitude, _mm512_set1_epi32(0x08800000));
    return _mm512_mask_cmpge_epu32_mask(_mm512_test_epi32_mask(magnitude, magnitude), above,
                                        _mm512_set1_epi32(0x7f800000 - 0x08800000));
}

AGK_INLINE __m512 upper(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}

/* The upper halves of 32 floats. */
AGK_INLINE __m512i upper_halves(__m512 low, __m512 high)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(_mm512_castps_si512(low), odd, _mm512_castps_si512(high));
}

/* 32 floats as terms; the last is rounded, the others are cut off. */
AGK_INLINE __mmask16 split(int terms, __m512 low, __m512 high, __m512i out[3])
{
    const __mmask16 bad = terms > 1 ? (__mmask16)(cannot_split(low) | cannot_split(high)) : 0;
    AGK_UNROLL for (int t = 0; t + 1 < terms; ++t)
    {
        out[t] = upper_halves(low, high);
        low = _mm512_sub_ps(low, upper(low));
        high = _mm512_sub_ps(high, upper(high));
    }
    out[terms - 1] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    return bad;
}

#define LOAD_A(t) \
    do { \
        _tile_loadd(4, a + (t) * PAIR, 64); \
        if (two_rows) _tile_loadd(5, a + (t) * PAIR + TILE, 64); \
    } while (0)
#define LOAD_B(t) \
    do { \
        _tile_stream_loadd(6, b + (t) * TILE, 64); \
        if (two_cols) _tile_stream_loadd(7, b + ldb + (t) * TILE, 64); \
    } while (0)
#define MULTIPLY() \
    do { \
        _tile_dpbf16ps(0, 4, 6); \
        if (two_rows) _tile_dpbf16ps(1, 5, 6); \
        if (two_cols) _tile_dpbf16ps(2, 4, 7); \
        if (two_rows && two_cols) _tile_dpbf16ps(3, 5, 7); \
    } while (0)
#define EACH(action) \
    do { \
        action(0); \
        if (two_rows) action(1); \
        if (two_cols) action(2); \
        if (two_rows && two_cols) action(3); \
    } while (0)
#define ZERO(i) _tile_zero(i)
#define RESUME(i) _tile_loadd(i, sums + 256 * (i), 64)
#define KEEP(i) _tile_stored(i, sums + 256 * (i), 64)

/* 32 k: each pair of terms whose ranks add up to less than `terms`, in an order that keeps one side loaded. */
AGK_INLINE void step(int terms, bool two_rows, bool two_cols, const char *a, const char *b, size_t ldb)
{
    if (terms == 1) { /* a product as soon as its tiles are there */
        _tile_loadd(4, a, 64);
        _tile_stream_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_rows) {
            _tile_loadd(5, a + TILE, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (two_cols) {
            _tile_stream_loadd(7, b + ldb, 64);
            _tile_dpbf16ps(2, 4, 7);
        }
        if (two_rows && two_cols) _tile_dpbf16ps(3, 5, 7);
        return;
    }
    LOAD_A(0);
    if (terms == 3) {
        LOAD_B(2);
        MULTIPLY(); /* a0 b2 */
    }
    LOAD_B(1);
    MULTIPLY(); /* a0 b1 */
    if (terms == 3) {
        LOAD_A(1);
        MULTIPLY(); /* a1 b1 */
        LOAD_B(0);
        MULTIPLY(); /* a1 b0 */
        LOAD_A(2);
        MULTIPLY(); /* a2 b0 */
        LOAD_A(0);
    } else {
        LOAD_A(1);
        LOAD_B(0);
        MULTIPLY(); /* a1 b0 */
        LOAD_A(0);
    }
    MULTIPLY(); /* a0 b0 */
}

#endif
