/* floats, AVX2 + FMA: panels and units of f32 (kernels/mul_mat_panels.h).
 *
 * Lanes are columns, rows of a panel are broadcast: 4 rows x 24 columns, 7 loads for 12 products. 12 sums, three
 * vectors of columns and a broadcast fill the 16 registers, and 12 sums are more than the 8 to 10 that hide the
 * latency of two multipliers. A group of 24 columns is one and a half units: 12 KB for 128 k, which stay in L1
 * beside the panel of 16 KB for all its rows. Not here: the conversion of rows and columns (lower/mul_mat/floats.c),
 * fewer columns (mul_mat_blocks.c, mul_mat_dots.c). */
#include "kernels/mul_mat_panels.h"
#include "kernels/vec/mul_mat_panels.h"
#include "math.h"
#include "table/kernel_types.h"

enum {
    EIGHT = 8, /* columns in a vector; a unit is two eights */
    MOST_ROWS = 8,
    MOST_EIGHTS = 3,
    LINE = 16, /* k of a row that lie together in a panel, and floats of a unit for one k */
    UNIT_SUMS = AGK_PANEL_SUMS / 2,
};

/* R rows of a panel times W eights of columns; b and sums are given for each eight. */
AGK_INLINE void tile(int R, int W, int64_t k, const float *a, const float *const from[MOST_EIGHTS],
                     float *const sums[MOST_EIGHTS], bool first)
{
    vf acc[MOST_ROWS][MOST_EIGHTS];
    const float *b[MOST_EIGHTS];
    AGK_UNROLL for (int w = 0; w < W; ++w) b[w] = from[w];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = v_zero();
    for (int64_t i = 0; i < k; i += LINE, a += LINE * AGK_PANEL_ROWS) {
        const float *x = a;
        for (int quarter = 0; quarter < 4; ++quarter, x += 4) {
            AGK_UNROLL for (int j = 0; j < 4; ++j)
            {
                vf y[MOST_EIGHTS];
                AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = v_load(b[w] + j * LINE);
                AGK_UNROLL for (int r = 0; r < R; ++r)
                {
                    const vf value = v_set(x[r * LINE + j]);
                    AGK_UNROLL for (int w = 0; w < W; ++w) v_add_product(&acc[r][w], value, y[w]);
                }
            }
            AGK_UNROLL for (int w = 0; w < W; ++w) b[w] += 4 * LINE;
        }
    }
    AGK_UNROLL for (int w = 0; w < W; ++w) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float *sum = sums[w] + LINE * r;
        if (!first) acc[r][w] += v_load(sum);
        v_store(sum, acc[r][w]);
    }
}

/* All rows of a panel times eights eight .. eight + W - 1. */
AGK_INLINE void rows(int R, int W, const agk_mm_panel *p, int64_t eight, agk_ahead *ahead)
{
    const float *b[MOST_EIGHTS], *a = (const float *)(const void *)p->a;
    float *sums[MOST_EIGHTS];
    const int64_t eights = (p->cols + EIGHT - 1) / EIGHT, pieces = (p->rows + R - 1) / R;
    const int64_t unit = (eight + 1) / 2; /* the units that begin here are prefetched here */
    const int begin = (int)((eight + W + 1) / 2 - unit);
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        const int64_t of = (eight + w) / 2, half = (eight + w) % 2 * EIGHT;
        b[w] = (const float *)(const void *)(p->b + (size_t)of * p->ldb) + half;
        sums[w] = p->sums + of * UNIT_SUMS + half;
    }
    for (int64_t i = 0; i < pieces; ++i, a += LINE * R) {
        agk_fetch_ahead(p, ahead, eight * pieces + W * (i + 1), eights * pieces, unit, begin, i, pieces);
        tile(R, W, p->k, a, b, sums, p->first);
        AGK_UNROLL for (int w = 0; w < W; ++w) sums[w] += LINE * R;
    }
}

void agk_mm_floats_product_avx2(const agk_mm_panel *p)
{
    const int64_t eights = (p->cols + EIGHT - 1) / EIGHT;
    agk_ahead ahead = {0};
    for (int64_t eight = 0; eight < eights;) {
        const int64_t left = eights - eight;
        if (left == 1) {
            rows(8, 1, p, eight, &ahead);
            eight += 1;
        } else if (left == 2 || left == 4) {
            rows(4, 2, p, eight, &ahead);
            eight += 2;
        } else {
            rows(4, 3, p, eight, &ahead);
            eight += 3;
        }
    }
}
