/* How iq2 and iq3 blocks are fitted: one search, with parameters for each type.
 *
 * Here: points, signs and scales of the groups of a block. Not here: how a type stores them (quant_iq2.c,
 * quant_iq3.c); iq1, which has another search (quant_iq1.c). */
#ifndef AGK_QUANT_IQ_FIT_H
#define AGK_QUANT_IQ_FIT_H

#include <math.h>
#include <stdbool.h>

#include "quant_iq_grid.h"
#include "quant_search.h"

enum { AGK_IQ_BLOCK = 256, AGK_IQ_GROUP = 32 };

typedef struct agk_iq_scheme {
    const agk_iq_book *(*book)(void);
    int group;       /* elements that share a scale: 16 or 32 */
    int tries;       /* scales tried on either side of the one that fits the largest element */
    float step;      /* distance between tried scales, in levels of the largest element */
    float least;     /* a group whose largest element is smaller is stored as zeros */
    float spread;    /* factor of the mean square, which is added to an element's own square in its weight */
    bool even_signs; /* signs are stored in 7 bits of 8: an even number of elements is negative */
    bool free_start; /* the scale of a fit without codebook comes first (iq2_xxs) */
    enum { AGK_IQ_THOSE_OFF, AGK_IQ_ALL_IF_OFF, AGK_IQ_ALL } again; /* points sought anew with the best scale */
    enum { AGK_IQ_SQUARE, AGK_IQ_SQUARE_AND_MEAN } weight;          /* without importance matrix */
} agk_iq_scheme;

typedef struct agk_iq_group {
    bool fitted; /* false: the group is practically zero, and so are all other fields */
    float scale;
    uint16_t point[8];
    uint8_t signs[4];
} agk_iq_group;

/* 256 elements, with their weights or NULL, as 256 / group groups. Returns the largest scale. */
float agk_iq_fit_block(const agk_iq_scheme *scheme, const float *x, const float *imatrix, agk_iq_group *groups);

/* Code 0..top of the odd multiple 2 * code + 1 that is nearest to x. */
static inline int agk_iq_level(float x, int top)
{
    return agk_clamp_int(agk_nearest(0.5f * (x - 1.0f)), 0, top);
}

/* Weights of a group of n elements; `mean` is that of the squares of the block, times the scheme's spread. */
static inline void agk_iq_weigh(float *weight, const float *x, const float *imatrix, int n, float mean, float added)
{
    for (int i = 0; i < n; ++i) {
        const float square = x[i] * x[i];
        weight[i] = imatrix != NULL ? imatrix[i] * sqrtf(mean + square) : added + square;
    }
}

float agk_iq_mean_square(const float *x, float spread);

#endif
