/* Numbers for the kernels of mul_mat of many columns, and a bound for the difference between their sums. */
#ifndef TEST_TERMS_H
#define TEST_TERMS_H

#include <math.h>
#include <string.h>

#include "check.h"
#include "variants.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_panels.h"

enum { K = 96, COLS = 49, ROWS = 32 };

#define MOST 1.7 /* the largest absolute value; numbers are evenly distributed up to it */
/* the mean square of a sum of 2 K products of such numbers */
#define SQUARE (2 * K * (MOST * MOST / 3.0) * (MOST * MOST / 3.0))

static inline float *numbers(rng *r, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    CHECK(x != NULL);
    for (int64_t i = 0; i < n; ++i) x[i] = ((float)rng_below(r, 2000001) / 1000000.0f - 1.0f) * (float)MOST;
    return x;
}

/* Multiplies two blocks of k into the tile's sums, then writes them to c by `put`. */
static inline void multiply(agk_mm_pairs_product_fn *tile, agk_mm_panels_put_fn *put, agk_mm_panel p, float *c)
{
    const size_t n = (size_t)((p.cols + 31) / 32) * AGK_PANEL_SUMS;
    float *sums = bytes(n * sizeof *sums);
    p.sums = sums;
    for (int block = 0; block < 2; ++block) {
        p.first = block == 0;
        tile(&p);
    }
    put(sums, n, p.rows, p.cols, c, (size_t)p.rows * 4);
    free(sums);
}

/* The function that writes the sums of this tile. The scalar tile has its own layout of sums, all others share one. */
static inline agk_mm_panels_put_fn *put_of(const agk_variant *tile)
{
    const bool scalar = strcmp(tile->isa, "scalar") == 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_panels_put_fn *put = (agk_mm_panels_put_fn *)variant(i, "mm_panels_put");
        if (put != NULL && (strcmp(agk_variants[i].isa, "scalar") == 0) == scalar) return put;
    }
    CHECK(false); /* no `put` for this tile */
    return NULL;
}

/* b: the packed units in the order that `tile` reads. `square`: the mean square of an element of the product, or 0.
 * It replaces the measured size where that is smaller: a single element may be near 0 by chance, but its error is
 * not. */
static inline void same_of(agk_mm_pairs_product_fn *tile, const char *b, agk_mm_pairs_product_fn *scalar,
                           agk_mm_panels_put_fn *put, agk_mm_panel p, double square)
{
    const size_t n = (size_t)(p.rows * p.cols);
    float *expected = bytes(n * 4), *found = bytes(n * 4);
    multiply(scalar, agk_mm_panels_put_scalar, p, expected);
    p.b = b;
    multiply(tile, put, p, found);
    double error = 0.0, size = 0.0;
    for (size_t e = 0; e < n; ++e) {
        error += ((double)found[e] - expected[e]) * ((double)found[e] - expected[e]);
        size += (double)expected[e] * expected[e];
    }
    CHECK(error <= 1e-13 * fmax(size, (double)n * square));
    free(expected);
    free(found);
}

static inline void same(agk_mm_pairs_product_fn *tile, agk_mm_pairs_product_fn *scalar, agk_mm_panels_put_fn *put,
                        agk_mm_panel p, double square)
{
    same_of(tile, p.b, scalar, put, p, square);
}

#endif
