/* Panels of short rows times units of columns (mul_mat_shorts.h), 256-bit vectors: 4 or 6 rows x 16 columns.
 *
 * Lanes are columns; 4 bytes of a row are broadcast. A file defines SHORT_VNNI as 0 or 1 and includes this. With
 * vpdpbusd the 12 sums of 6 rows hide its latency of 5 cycles. With vpmaddubsw a product is two instructions and
 * there are 4 rows, whose sums as floats, or as integers of 256 elements, stay in L1. Not here: rows
 * (kernels/avx2/mul_mat_shorts_rows.c). */
#ifndef AGK_VEC_SHORT_TILE_H
#define AGK_VEC_SHORT_TILE_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_shorts.h"
#include "mul_mat_panels.h"

enum { MOST_ROWS = SHORT_VNNI ? 6 : 4, UNIT_SUMS = AGK_PANEL_SUMS / 2 };

/* The properties of a panel, all constants. fours: see agk_short_fours. */
typedef struct row_traits {
    int fours;
    bool halves, minimum, wide;
} row_traits;

/* The order that the compiler chooses needs more values at a time than there are registers: 10 to 60 % slower. */
#define IN_ORDER(x) __asm__ volatile("" : "+x"(x))

AGK_INLINE __m256i four(const void *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    __m256i y = _mm256_set1_epi32(x);
    __asm__("" : "+x"(y)); /* one load for all products */
    return y;
}

AGK_INLINE __m256 one(const float *p)
{
    return _mm256_broadcast_ss(p);
}

AGK_INLINE __m256i columns(const agk_short_unit *b, int v, int w)
{
    return _mm256_load_si256((const __m256i *)(const void *)b->q[v][8 * w]);
}

/* Sums of fours first .. last - 1 in 16 bits. */
AGK_INLINE void short_sums(int R, int W, int first, int last, const agk_short_row *const a[], const agk_short_unit *b,
                           __m256i s[MOST_ROWS][2])
{
    AGK_UNROLL for (int v = first; v < last; ++v)
    {
        __m256i y[2];
        AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = columns(b, v, w);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m256i x = four(a[r]->q + 4 * v);
            AGK_UNROLL for (int w = 0; w < W; ++w)
            {
                const __m256i p = _mm256_maddubs_epi16(y[w], x);
                s[r][w] = v == first ? p : _mm256_add_epi16(s[r][w], p);
                IN_ORDER(s[r][w]);
            }
        }
    }
}

/* Complete sums of fours first .. last - 1, beginning with their start values: those of half h. */
AGK_INLINE void sums_of(row_traits t, int R, int W, int h, int first, int last, const agk_short_row *const a[],
                        const agk_short_unit *b, __m256i s[MOST_ROWS][2])
{
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        s[r][w] = _mm256_set1_epi32(a[r]->start[h]);
    }
#if SHORT_VNNI
    (void)t;
    AGK_UNROLL for (int v = first; v < last; ++v)
    {
        __m256i y[2];
        AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = columns(b, v, w);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m256i x = four(a[r]->q + 4 * v);
            AGK_UNROLL for (int w = 0; w < W; ++w)
            {
                s[r][w] = _mm256_dpbusd_avx_epi32(s[r][w], y[w], x);
                IN_ORDER(s[r][w]);
            }
        }
    }
#else
    if (t.fours == 0) { /* the even bytes of columns, then the odd ones */
        AGK_UNROLL for (int v = first; v < last; ++v)
        {
            __m256i y[2][2];
            AGK_UNROLL for (int w = 0; w < W; ++w)
            {
                const __m256i x = columns(b, v, w);
                y[w][0] = _mm256_and_si256(x, _mm256_set1_epi16(255));
                y[w][1] = _mm256_srli_epi16(x, 8);
            }
            AGK_UNROLL for (int odd = 0; odd < 2; ++odd) AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                const __m256i x = four(a[r]->words + 4 * v + 2 * odd);
                AGK_UNROLL for (int w = 0; w < W; ++w)
                {
                    s[r][w] = _mm256_add_epi32(s[r][w], _mm256_madd_epi16(y[w][odd], x));
                    IN_ORDER(s[r][w]);
                }
            }
        }
        return;
    }
    const __m256i ones = _mm256_set1_epi16(1);
    AGK_UNROLL for (int v = first; v < last; v += t.fours)
    {
        __m256i p[MOST_ROWS][2];
        short_sums(R, W, v, v + t.fours < last ? v + t.fours : last, a, b, p);
        AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
        {
            s[r][w] = _mm256_add_epi32(s[r][w], _mm256_madd_epi16(p[r][w], ones));
        }
    }
#endif
}

/* Sums become floats for each scale. */
AGK_INLINE void floats(row_traits t, int R, int W, int h, int first, int last, const agk_short_row *const a[],
                       const agk_short_unit *b, __m256 acc[MOST_ROWS][2])
{
    __m256i s[MOST_ROWS][2];
    sums_of(t, R, W, h, first, last, a, b, s);
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        const __m256 d = one(&a[r]->d[h]);
        AGK_UNROLL for (int w = 0; w < W; ++w)
        {
            const __m256 scale = t.wide ? d : _mm256_mul_ps(d, _mm256_load_ps(b->d + 8 * w));
            acc[r][w] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[r][w]), scale, acc[r][w]);
            if (t.minimum) {
                const __m256 sum = _mm256_load_ps(b->sum[h] + 8 * w);
                acc[r][w] = _mm256_fmadd_ps(one(&a[r]->minimum[h]), sum, acc[r][w]);
            }
        }
    }
}

AGK_INLINE void rows_at(int R, const char *a, size_t lda, const agk_short_row *row[])
{
    AGK_UNROLL for (int r = 0; r < R; ++r) row[r] = (const agk_short_row *)(const void *)(a + (size_t)r * lda);
}

#if !SHORT_VNNI
/* Sums of 16 bits are multiplied by the factor of their scale, and added up as integers. Either these integers are
 * in memory while many short sums are under way, or those of one row after the other are in registers and columns
 * are read again for each row. */
AGK_INLINE void whole(row_traits t, int R, int W, int h, int first, int last, const agk_short_row *const a[],
                      const agk_short_unit *b, __m256i acc[MOST_ROWS][2])
{
    AGK_UNROLL for (int v = first; v < last; v += t.fours)
    {
        const int end = v + t.fours < last ? v + t.fours : last;
        __m256i p[MOST_ROWS][2];
        if (t.fours > 2) short_sums(R, W, v, end, a, b, p);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const agk_short_row *const row[1] = {a[r]};
            if (t.fours <= 2) short_sums(1, W, v, end, row, b, p + r);
            const __m256i factor = four(&a[r]->factor[h]);
            AGK_UNROLL for (int w = 0; w < W; ++w)
            {
                acc[r][w] = _mm256_add_epi32(acc[r][w], _mm256_madd_epi16(p[r][w], factor));
                IN_ORDER(acc[r][w]);
            }
        }
    }
}

/* Converts blocks of 256 to floats, once for all of their k. */
AGK_INLINE void whole_tile(row_traits t, int R, int W, const agk_mm_panel *p, const char *a, const agk_short_unit *b,
                           __m256 acc[MOST_ROWS][2])
{
    const size_t bytes = agk_short_row_bytes(false);
    const agk_short_unit *unit = b;
    const char *from = a;
    const agk_short_row *row[MOST_ROWS];
    __m256i all[MOST_ROWS][2];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) all[r][w] = _mm256_setzero_si256();
    for (int64_t k = 0; k < p->k; k += AGK_MM_BLOCK, a += bytes, ++b) {
        rows_at(R, a, p->lda, row);
        whole(t, R, W, 0, 0, t.halves ? 4 : 8, row, b, all);
        if (t.halves) whole(t, R, W, 1, 4, 8, row, b, all);
    }
    rows_at(R, from, p->lda, row);
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        const __m256i s = _mm256_add_epi32(all[r][w], _mm256_set1_epi32(row[r]->total));
        acc[r][w] = _mm256_mul_ps(_mm256_cvtepi32_ps(s), one(&row[r]->unit));
    }
    const int parts = t.halves ? 2 : 1;
    for (int64_t k = 0; t.minimum && k < p->k; k += AGK_MM_BLOCK, from += bytes, ++unit) {
        rows_at(R, from, p->lda, row);
        AGK_UNROLL for (int h = 0; h < parts; ++h) AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m256 minimum = one(&row[r]->minimum[h]);
            AGK_UNROLL for (int w = 0; w < W; ++w)
            {
                acc[r][w] = _mm256_fmadd_ps(minimum, _mm256_load_ps(unit->sum[h] + 8 * w), acc[r][w]);
            }
        }
    }
}
#endif

AGK_INLINE void tile(row_traits t, int R, int W, const agk_mm_panel *p, const char *a, const agk_short_unit *b,
                     float *sums)
{
    const agk_short_unit *unit = b;
    __m256 acc[MOST_ROWS][2];
#if !SHORT_VNNI
    if (t.wide && t.fours > 0) {
        whole_tile(t, R, W, p, a, b, acc);
    } else
#endif
    {
        const size_t bytes = agk_short_row_bytes(!SHORT_VNNI && t.fours == 0);
        AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm256_setzero_ps();
        for (int64_t k = 0; k < p->k; k += AGK_MM_BLOCK, a += bytes, ++b) {
            const agk_short_row *row[MOST_ROWS];
            rows_at(R, a, p->lda, row);
            floats(t, R, W, 0, 0, t.halves ? 4 : 8, row, b, acc);
            if (t.halves) floats(t, R, W, 1, 4, 8, row, b, acc);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        float *sum = sums + 16 * r + 8 * w;
        const __m256 before = p->first ? _mm256_setzero_ps() : _mm256_load_ps(sum);
        const __m256 d = _mm256_load_ps(unit->d + 8 * w);
        _mm256_store_ps(sum, t.wide ? _mm256_fmadd_ps(acc[r][w], d, before) : _mm256_add_ps(acc[r][w], before));
    }
}

AGK_INLINE int64_t rows_together(int64_t left)
{
    return MOST_ROWS == 6 && left > 8 ? 6 : 4;
}

AGK_INLINE void unit_times_rows(row_traits t, int W, const agk_mm_panel *p, int64_t unit, int64_t units,
                                agk_ahead *ahead)
{
    const char *b = p->b + (size_t)unit * p->ldb;
    const agk_short_unit *of_unit = (const agk_short_unit *)(const void *)b;
    int64_t pieces = 0, piece = 0;
    for (int64_t i = 0; i < p->rows; i += rows_together(p->rows - i)) ++pieces;
    for (int64_t i = 0; i < p->rows; i += rows_together(p->rows - i), ++piece) {
        const char *a = p->a + (size_t)i * p->lda;
        float *sums = p->sums + unit * UNIT_SUMS + 16 * i;
        agk_fetch_ahead(p, ahead, unit * pieces + piece + 1, units * pieces, unit, 1, piece, pieces);
        if (rows_together(p->rows - i) == MOST_ROWS)
            tile(t, MOST_ROWS, W, p, a, of_unit, sums);
        else
            tile(t, 4, W, p, a, of_unit, sums);
    }
}

AGK_INLINE void all_units(int fours, bool halves, bool minimum, bool wide, const agk_mm_panel *p)
{
    const row_traits t = {fours, halves, minimum, wide};
    const int64_t units = (p->cols + 15) / 16;
    agk_ahead ahead = {0};
    for (int64_t unit = 0; unit < units; ++unit) {
        if (p->cols - 16 * unit > 8)
            unit_times_rows(t, 2, p, unit, units, &ahead);
        else
            unit_times_rows(t, 1, p, unit, units, &ahead);
    }
}

#endif
