/* How lines of weights are prefetched on a Zen 5, for the templates of kernels/amd512: each line, 12 KB ahead, into L1
 * and not into L2 (prefetchnta), so that L2 is not filled with lines that are read once. Also how much of a block is
 * multiplied at a time.
 *
 * Two virtual cores of an EPYC that read 49 to 55 GB/s, one column, k 14336, shares of a plain read; 6 KB ahead into L2
 * (as on a Zen 4), 8 KB into L1 and L2, 12 KB without L2: q4_K 0.77, 0.85, 0.93; q3_K 0.80, 0.87, 0.89; iq3_s 0.83,
 * 0.91, 0.95; q8_0 0.97, 1.00, 1.05. From the L3 (12 MB) q4_K has 96, 129, 138 GB/s, q8_0 116, 132, 173. */
#ifndef AGK_AMD_LINES_H
#define AGK_AMD_LINES_H

#include <stddef.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_packed_types.h"

#define AGK_AMD(name) agk_##name##_zen5 /* the name of a kernel of this folder */
#define AGK_AMD_HINT "prefetchnta"

enum {
    AGK_PAIRS_AHEAD = 12288,
    /* Dots, in each of 4 streams. f16 with two threads, 1 and 1.5 KB: k 14336 0.90 and 0.99 of a plain read of 66 GB/s,
     * 0.93 both of one of 47. */
    AGK_STREAMS_AHEAD = 1536,
};

/* Whether one part of a block is multiplied at a time. 8 columns, 32 k x 16 rows: q2_K from L2 14.5 ns -> 14.0, iq2_xxs
 * 13.7 -> 13.2, q4_K 12.0 -> 12.2, but from memory 13.0 -> 12.7; 5 columns of q4_K from memory 11.5 -> 11.1. */
AGK_INLINE bool agk_one_part(code_type t, int N)
{
    (void)t;
    return N >= 5;
}

AGK_INLINE size_t agk_packed_ahead(code_type t, int N)
{
    (void)t;
    (void)N;
    return 12288;
}

#endif
