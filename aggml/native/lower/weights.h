/* Weights that may be kept packed: what a lowering can ask of their owner, and the packed form that a step reads.
 *
 * The owner is in a room above this one (runtime/packing.c), so it is reached by pointers to functions. Not here:
 * layouts (kernels/mul_mat_packed.h), which products use them (mul_mat/). */
#ifndef AGK_WEIGHTS_H
#define AGK_WEIGHTS_H

#include <stdint.h>

struct agk_view;

/* Packed weights of a tensor. The memory is filled group by group: a thread that multiplies a group after the
 * weights were written packs it first. Results do not depend on which thread does it, or when, since a node with
 * packed weights reads nothing else. Any thread may call this. */
typedef struct agk_packed agk_packed;
struct agk_packed {
    char *data; /* the memory of all groups, whether packed yet or not */
    const char *(*ready)(agk_packed *packed, int64_t i);
};

/* The storage of a tensor, as its owner hands it to a lowering. */
typedef struct agk_weights agk_weights;
struct agk_weights {
    agk_packed *(*acquire)(agk_weights *weights, const struct agk_view *a);
};

/* The packed weights of `a`, whose bytes lie in `weights`; made at the first call; returns a reference. NULL: the
 * type has no layout, there is no memory, or it would exceed the limit. */
static inline agk_packed *agk_packed_acquire(agk_weights *weights, const struct agk_view *a)
{
    return weights->acquire(weights, a);
}

/* Group `i` of all groups, which are 16 rows of one matrix after the other. It is packed now if the weights were
 * written since. */
static inline const char *agk_packed_ready(agk_packed *packed, int64_t i)
{
    return packed->ready(packed, i);
}

#endif
