/* Results that are written past the caches: when that pays off.
 *
 * Not here: the kernels (kernels/zen5/past.h). */
#ifndef AGK_PAST_H
#define AGK_PAST_H

#include "node.h"

/* An op of two operands whose result has their size. Two threads of a Zen 5 whose L3 has 32 MB, the op and another one
 * that reads its result, against stores into the caches: results of 8 MB take 1.16 to 1.46 of the time, of 12 MB 1.01
 * to 1.04, of 16 MB 0.93 to 0.96, of 24 MB 0.88 to 0.97. With one operand the bound would be 32 MB: 16 MB take 1.6
 * times as long if two buffers change their roles from op to op. A result in the place of an operand is in the caches
 * already. */
static inline bool agk_worth_passing(const agk_node *node)
{
    enum { LARGE = 16 << 20 };
    const agk_view *y = &node->dst;
    if (y->type != AGK_F32 || 4 * agk_nelements(y) < LARGE) return false;
    for (int i = 0; i < 2; ++i)
        if (node->src[i].addr == y->addr && node->src[i].arena_mask == y->arena_mask) return false;
    return true;
}

#endif
