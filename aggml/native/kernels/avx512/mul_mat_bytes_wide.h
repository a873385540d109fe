/* What columns with one scale for 256 k allow (mul_mat_bytes.h), AVX-512 VNNI: sums that stay integers for all of them.
 *
 * A row of codes times scales has one scale, so its 64 products are followed by one conversion and one fma, not by one
 * of each for 32 k. Minimums are small integers times one float of the row: vpdpwssd multiplies two of them by sums of
 * two halves or units, which takes half as many instructions as an fma for each. All sums are exact. Not here: scales
 * for 16 or 32 k (mul_mat_bytes.c). All static inline. */
#ifndef AGK_AVX512_BYTES_WIDE_H
#define AGK_AVX512_BYTES_WIDE_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_bytes.h"

enum { WIDE = 256, WIDE_UNITS = WIDE / AGK_MM_BLOCK };

/* vpdpbusd. Not the intrinsic: GCC 12 moves sums from register to register between rounds and spills some. */
AGK_INLINE __m512i add_fours(__m512i sum, __m512i row, __m512i columns)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(columns));
    return sum;
}

/* What W units have in common for all rows of a panel, whose k is at most WIDE (lower/mul_mat/panels.h). */
typedef struct of_units {
    _Alignas(64) int32_t start[3][16];   /* of all k */
    int32_t negative[WIDE_UNITS][3][16]; /* pairs of int16: minus the sums of two halves, or of two units */
} of_units;

/* halves: sums of halves, else of units. They are found in the start values, which are -128 times as large. */
AGK_INLINE void prepare(bool halves, bool minimum, int W, const agk_mm_panel *p, const char *b, of_units *out)
{
    const __m512i low = _mm512_set1_epi32(0xffff);
    const int64_t n = p->k / AGK_MM_BLOCK;
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        const agk_bytes_unit *unit = (const agk_bytes_unit *)(const void *)(b + (size_t)w * p->ldb);
        __m512i start = _mm512_setzero_si512();
        for (int64_t i = 0; i < n; i += halves ? 1 : 2) {
            const bool both = halves || i + 1 < n;
            const __m512i one = _mm512_load_si512(unit[i].start[0]);
            const __m512i two =
                both ? _mm512_load_si512(halves ? unit[i].start[1] : unit[i + 1].start[0]) : _mm512_setzero_si512();
            start = _mm512_add_epi32(start, _mm512_add_epi32(one, two));
            if (!minimum) continue;
            const __m512i pair = _mm512_ternarylogic_epi32(_mm512_slli_epi32(two, 9), _mm512_srli_epi32(one, 7), low,
                                                           0xf8); /* two | (one & low) */
            _mm512_store_si512(out->negative[halves ? i : i / 2][w], pair);
        }
        _mm512_store_si512(out->start[w], start);
    }
}

/* 32 k of R rows and W units, added to s. */
AGK_INLINE void products_of_32(int R, int W, const char *a, size_t lda, const char *b, size_t ldb, __m512i s[][3])
{
    AGK_UNROLL for (int v = 0; v < AGK_MM_BLOCK / 4; ++v)
    {
        __m512i y[3];
        AGK_UNROLL for (int w = 0; w < W; ++w)
        {
            y[w] = _mm512_load_si512(((const agk_bytes_unit *)(const void *)(b + (size_t)w * ldb))->q[v]);
        }
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const agk_bytes_row *row = (const agk_bytes_row *)(const void *)(a + (size_t)r * lda);
            int32_t four;
            memcpy(&four, row[v / 4].q + 4 * (v % 4), sizeof four);
            __m512i x = _mm512_set1_epi32(four);
            if (W > 1) __asm__("" : "+v"(x)); /* one load for all products */
            AGK_UNROLL for (int w = 0; w < W; ++w) s[r][w] = add_fours(s[r][w], x, y[w]);
        }
    }
}

/* Rows of one scale. odd (iq1): a byte stands for a code of 2 q - 1, and d is doubled, so half the sum of the column is
 * subtracted. */
AGK_INLINE void of_whole(bool halves, bool minimum, int R, int W, const agk_mm_panel *p, const char *a, const char *b,
                         const of_units *units, __m512 acc[][3])
{
    const bool odd = minimum && !halves;
    __m512i s[8][3];
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        AGK_UNROLL for (int r = 0; r < R; ++r) s[r][w] = _mm512_load_si512(units->start[w]);
    }
    const char *x = a;
    for (int64_t k = 0; k < p->k; k += AGK_MM_BLOCK, x += 2 * sizeof(agk_bytes_row), b += sizeof(agk_bytes_unit)) {
        products_of_32(R, W, x, p->lda, b, p->ldb, s);
    }
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        __m512 half = _mm512_setzero_ps();
        if (odd)
            half = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(units->start[w])), _mm512_set1_ps(1.0f / 256));
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            __m512 sum = _mm512_cvtepi32_ps(s[r][w]);
            if (odd) sum = _mm512_add_ps(sum, half); /* exact: less than 2^23 */
            const float d = ((const agk_bytes_row *)(const void *)(a + (size_t)r * p->lda))->d;
            acc[r][w] =
                halves ? _mm512_fmadd_ps(sum, _mm512_set1_ps(d), acc[r][w]) : _mm512_mul_ps(sum, _mm512_set1_ps(d));
        }
    }
}

/* The minimums of all k, added to acc; halves: as in `prepare`. */
AGK_INLINE void add_minimums(bool halves, int R, int W, const agk_mm_panel *p, const char *a, const of_units *units,
                             __m512 acc[][3])
{
    __m512i m[8][3];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) m[r][w] = _mm512_setzero_si512();
    const int64_t n = halves ? p->k / AGK_MM_BLOCK : (p->k / AGK_MM_BLOCK + 1) / 2;
    const char *x = a;
    for (int64_t i = 0; i < n; ++i, x += (halves ? 2 : 4) * sizeof(agk_bytes_row)) {
        __m512i y[3];
        AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = _mm512_load_si512(units->negative[i][w]);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const agk_bytes_row *row = (const agk_bytes_row *)(const void *)(x + (size_t)r * p->lda);
            int32_t pair;
            memcpy(&pair, row->times, sizeof pair);
            const __m512i two = _mm512_set1_epi32(pair);
            AGK_UNROLL for (int w = 0; w < W; ++w) m[r][w] = _mm512_dpwssd_epi32(m[r][w], y[w], two);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        const __m512 d = _mm512_set1_ps(((const agk_bytes_row *)(const void *)(a + (size_t)r * p->lda))->step);
        AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_mul_ps(_mm512_cvtepi32_ps(m[r][w]), d);
    }
}

#endif
