/* Loops whose results do not stay in the caches: whole lines are written past them, operands are prefetched.
 *
 * A store of a line that is in no cache reads it first, and the results push operands out. Two threads of a Zen 5 whose
 * L3 has 32 MB, sums of 16 MB + 16 MB: 352 to 584 us instead of 555 to 797; with an op behind them that reads the
 * result, both together 0.93 to 0.96 of the time. Not here: when that pays off (lower/past.h). */
#ifndef AGK_ZEN5_PAST_H
#define AGK_ZEN5_PAST_H

#include "kernels/avx512/math.h"

enum { PAST_AHEAD = 2048 }; /* bytes */

/* Elements before the first whole line of y. */
AGK_INLINE int64_t past_head(const float *y, int64_t n)
{
    const int64_t head = (int64_t)(-(uintptr_t)y % 64 / sizeof *y);
    return head < n ? head : n;
}

AGK_INLINE vf past_load(const float *x)
{
    _mm_prefetch((const char *)x + PAST_AHEAD, _MM_HINT_T0);
    return v_load(x);
}

#endif
