/* How lines of weights are prefetched on a Zen 4, for the templates of this folder: into L2, 6 KB ahead, so that the
 * address of the next page is known in time. Also how much of a block is multiplied at a time. Not here: a Zen 5
 * (kernels/zen5/lines.h). */
#ifndef AGK_AMD_LINES_H
#define AGK_AMD_LINES_H

#include <stddef.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_packed_types.h"

#define AGK_AMD(name) agk_##name##_amd512 /* the name of a kernel of this folder */
#define AGK_AMD_HINT "prefetcht1"

enum {
    /* Eight columns of bf16, shares of a plain read: 4 KB 0.71, 6 KB 0.81, 8 KB 0.83, 12 KB 0.80. */
    AGK_PAIRS_AHEAD = 8192,
    AGK_DOTS_AHEAD = 6144,
    /* Dots prefetch a line of each 512 bytes; the processor prefetches the others by itself. GB/s of f32 from the L3
     * and from memory with k 2048: no prefetch 90, 26; every eighth line 88, 26.5; every fourth 86, 26.9; each line 74,
     * 25.5. With k 768 from memory 23.2, 23.1, 24.7 (each line of 4 rows: 65 from the L3, 21). */
    AGK_DOTS_ASKED = 512,
    AGK_DOTS_LONG_COLUMN = 8 << 10, /* bytes; several rows share each read of a longer column */
    AGK_STREAMS_AHEAD = 2048,       /* in each of 4 streams; 1, 1.5, 2 and 3 KB make no difference of more than 3 % */
};

/* Whether one part of a block is multiplied at a time. 8 columns from L2, two parts and one, ns: q4_K 28.6 and 25.6,
 * q5_K 28.7 and 25.8, q2_K 28.0 and 27.2, tq2_0 24.8 and 22.2; but iq2_xxs 28.4 and 30.6, iq1_s 28.8 and 30.9; 5
 * columns of q4_K 17.1 and 19.2, of tq2_0 13.9 and 15.3. */
AGK_INLINE bool agk_one_part(code_type t, int N)
{
    return N == AGK_PACKED_COLUMNS && !has_levels(t);
}

/* How far ahead packed weights are prefetched, in bytes. 5 to 7 KB make no difference; 3 KB cost q4_K and q5_K 6 %, 12
 * KB all of them 5 %. q8_0 with few columns hardly computes: it reaches 1.04 of a plain read at 3 KB, 0.95 at 6; with 8
 * columns 0.85 and 0.95. */
AGK_INLINE size_t agk_packed_ahead(code_type t, int N)
{
    return t == Q8_0 && N <= 2 ? 3072 : 6144;
}

#endif
