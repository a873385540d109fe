/* Panels times units in lanes, AVX-512: the template that floats (FMA) and pairs (vdpbf16ps) share.
 *
 * Lanes are columns, rows of a panel are broadcast: 8 rows x 48 columns, 11 loads for 24 products. Both operands are
 * read in the order in which their lines lie, so neither the strides nor the type of a matter here. A unit of 256 k
 * is 16 KB (f32): three of them stay in L1 for the four groups of 8 rows of a panel, which itself comes from L1 or
 * L2, 32 bytes for 12 cycles. On one core of a Granite Rapids the loop has 94 % of the peak of FMA on units in L1
 * and 90 % on units in L2; prefetches into L1 are no faster. Sums stay in the layout of the loop until the last
 * block of k. All static inline. */
#ifndef AGK_AVX512_MUL_MAT_PANELS_H
#define AGK_AVX512_MUL_MAT_PANELS_H

#include "kernels/vec/mul_mat_panels.h"
#include "mul_mat_terms.h"

/* Multiplies R rows of a panel by W units. One round takes a line of each row, 16 f32 or pairs of bf16. */
AGK_INLINE void block(bool pairs, int R, int W, int64_t steps, const char *a, const char *b, size_t ldb, float *sums,
                      bool first)
{
    enum { UNIT_SUMS = AGK_PANEL_SUMS / 2 };
    __m512 acc[8][3];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        acc[r][w] = _mm512_setzero_ps();
        if (!first) _mm_prefetch((const char *)(sums + UNIT_SUMS * w + 16 * r), _MM_HINT_T0);
    }
    for (int64_t i = 0; i < 4 * steps; ++i, a += i % 4 == 0 ? PAIR - 48 : 16, b += 256) {
        AGK_UNROLL for (int j = 0; j < 4; ++j)
        {
            __m512 y[3];
            AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = _mm512_load_ps(b + (size_t)w * ldb + 64 * j);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                __m512 x = _mm512_set1_ps(*(const float *)(const void *)(a + 64 * r + 4 * j));
                if (W > 1) __asm__("" : "+v"(x)); /* one load, not an embedded broadcast per product */
                AGK_UNROLL for (int w = 0; w < W; ++w)
                {
                    acc[r][w] = pairs ? _mm512_dpbf16_ps(acc[r][w], (__m512bh)x, (__m512bh)y[w])
                                      : _mm512_fmadd_ps(x, y[w], acc[r][w]);
                }
            }
        }
    }
    AGK_UNROLL for (int w = 0; w < W; ++w) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float *sum = sums + UNIT_SUMS * w + 16 * r;
        _mm512_store_ps(sum, first ? acc[r][w] : _mm512_add_ps(acc[r][w], _mm512_load_ps(sum)));
    }
}

/* All rows of a panel times units unit .. unit + W - 1. */
AGK_INLINE void rows(bool pairs, int W, const agk_mm_panel *p, int64_t steps, const char *a, const char *b,
                     int64_t unit, bool first, agk_ahead *ahead)
{
    float *sums = p->sums + unit * (AGK_PANEL_SUMS / 2);
    const int64_t units = (p->cols + 15) / 16, pieces = (p->rows + 7) / 8;
    for (int64_t i = 0; i < pieces; ++i) {
        agk_fetch_ahead(p, ahead, unit * pieces + W * (i + 1), units * pieces, unit, W, i, pieces);
        block(pairs, 8, W, steps, a + 512 * i, b + (size_t)unit * p->ldb, p->ldb, sums + 128 * i, first);
    }
}

AGK_INLINE void all_units(bool pairs, const agk_mm_panel *p, int64_t steps, const char *a, const char *b, bool first)
{
    const int64_t units = (p->cols + 15) / 16;
    agk_ahead ahead = {0};
    for (int64_t unit = 0; unit < units;) {
        const int64_t left = units - unit;
        if (left == 1) {
            rows(pairs, 1, p, steps, a, b, unit, first, &ahead);
            unit += 1;
        } else if (left == 2 || left == 4) {
            rows(pairs, 2, p, steps, a, b, unit, first, &ahead);
            unit += 2;
        } else {
            rows(pairs, 3, p, steps, a, b, unit, first, &ahead);
            unit += 3;
        }
    }
}

#endif
