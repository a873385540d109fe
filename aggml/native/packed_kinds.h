/* Types of packed weights as their products tell them apart, for all instruction sets; known to the compiler where it matters, so
 * nothing of it is left at run time. Not here: how weights are packed (packed.h, scalar/packed.c). All static inline. */
#ifndef AGK_PACKED_KINDS_H
#define AGK_PACKED_KINDS_H

#include <stdbool.h>
#include <stddef.h>

#include "inline.h"

typedef enum kind { Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS } kind;

AGK_INLINE bool of_256(kind t)
{
    return t >= Q2_K;
}

AGK_INLINE bool scale_per_16(kind t)
{
    return t == Q2_K || t == Q3_K || t == Q6_K;
}

AGK_INLINE bool has_minimum(kind t)
{
    return t == Q4_1 || t == Q5_1 || t == Q2_K || t == Q4_K || t == Q5_K;
}

/* Where the vectors of a block begin, in bytes; the table of scalar/packed.c has the same. */
AGK_INLINE size_t data_at(kind t)
{
    switch (t) {
    case Q4_1:
    case Q5_1: return 64;
    case Q2_K:
    case Q4_K:
    case Q5_K: return 320;
    case Q3_K:
    case Q6_K: return 288;
    case IQ4_XS: return 160;
    default: return 32;
    }
}

/* How many of 64 bytes there are. */
AGK_INLINE size_t vectors(kind t)
{
    switch (t) {
    case Q8_0: return 8;
    case Q5_0:
    case Q5_1: return 5;
    case Q2_K: return 16;
    case Q3_K: return 24;
    case Q4_K:
    case IQ4_XS: return 32;
    case Q5_K: return 40;
    case Q6_K: return 48;
    default: return 4;
    }
}

#endif
