/* Numbers for the kernels of mul_mat of many columns, and the bound of what their sums may differ by. */
#ifndef TEST_TERMS_H
#define TEST_TERMS_H

#include "check.h"

enum { K = 96, COLS = 49, ROWS = 32 };

#define MOST 1.7 /* of a number; they are even between it and its negative */
#define SQUARE (2 * K * (MOST * MOST / 3.0) * (MOST * MOST / 3.0)) /* of the sum of 2 K products, in the mean */

static inline float *numbers(rng *r, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    CHECK(x != NULL);
    for (int64_t i = 0; i < n; ++i) x[i] = ((float)rng_below(r, 2000001) / 1000000.0f - 1.0f) * (float)MOST;
    return x;
}

#endif
