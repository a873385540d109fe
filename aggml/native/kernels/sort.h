/* The first elements of a descending order: what top_k and its kernels share. Not here: keys, heaps (lower/sort.c). */
#ifndef AGK_KERNELS_SORT_H
#define AGK_KERNELS_SORT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    AGK_SORT_MOST = 16,       /* the kernels find up to so many */
    AGK_SORT_LEAST = 32,      /* of at least so many elements */
    AGK_SORT_CANDIDATES = 32, /* unless more elements than this reach their bound */
};

/* The rank of a value as a number that ascends where values descend: equal for both zeros, the largest for NaN. */
static inline int32_t agk_sort_descending(int32_t bits)
{
    const int32_t magnitude = bits & INT32_MAX, value = magnitude == 0 ? 0 : bits;
    const int32_t order = ~(value ^ ((value >> 31) & INT32_MAX));
    return magnitude > 0x7f800000 ? INT32_MAX : order;
}

#endif
