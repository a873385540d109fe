/* Searches that quantizers share: the scale (and minimum) with the least weighted error, and the resulting codes.
 *
 * All of them are ggml's searches step by step: the resulting bytes depend on the order in which floats are added,
 * so sums run from the first element to the last. Sources that are not finite give meaningless codes within 0..top. */
#ifndef AGK_SCALAR_QUANT_SEARCH_H
#define AGK_SCALAR_QUANT_SEARCH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Groups of smaller elements are zeros. */
#define AGK_QUANT_TINY 1e-15f

/* Rounds halves to even: adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum. Correct for |x| <
 * 2^22; for all other x the result is some number of that range. */
static inline int agk_nearest(float x)
{
    const float shifted = x + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x7fffff) - 0x400000;
}

static inline int agk_clamp_int(int x, int least, int most)
{
    return x < least ? least : x > most ? most : x;
}

static inline float agk_absf(float x)
{
    return x < 0.0f ? -x : x;
}

/* The element of largest magnitude, with its sign; the first of equals. */
float agk_extreme(int n, const float *x);

/* x ~ d * (code - top), codes 0..2*top-1. Weights NULL: x^2. Returns d. */
float agk_fit_levels(int n, int top, const float *x, const float *weight, uint8_t *codes);

/* The same for weights x^2; single codes are moved until no move improves the fit. */
float agk_fit_levels_one_by_one(int n, int top, const float *x, uint8_t *codes);

/* x ~ d * code, codes 0..top, for x that are not negative. Returns d. */
float agk_fit_positive(int n, int top, const float *x, const float *weight, uint8_t *codes);

/* Scales tried by agk_fit_affine: (first + i * step + top) / range, i = 0..steps. */
typedef struct agk_affine_search {
    float first, step;
    int steps;
    bool absolute; /* the error is |difference|, else its square */
} agk_affine_search;

/* x ~ d * code - *minimum, codes 0..top, n at most 32; *minimum is never negative. Returns d. */
float agk_fit_affine(int n, int top, const float *x, const float *weight, const agk_affine_search *search,
                     uint8_t *codes, float *minimum);

#endif
