/* Weights that may be kept packed: the questions of a lowering to their owner, and the packed form that a step reads.
 *
 * The owner is above this room (runtime/packing.c), so it is reached by pointers to functions. Not here: layouts
 * (kernels/mul_mat_packed.h), which products want them (mul_mat/). */
#ifndef AGK_WEIGHTS_H
#define AGK_WEIGHTS_H

#include <stdint.h>

struct agk_view;

/* Packed weights of a tensor: memory that is filled group by group, by whoever first multiplies a group after it was
 * written. Results do not depend on who or when: a node that has this reads nothing else. Any thread. */
typedef struct agk_packed agk_packed;
struct agk_packed {
    char *data; /* where they are, packed or not yet */
    const char *(*ready)(agk_packed *packed, int64_t i);
};

/* The bytes that a tensor lies in, as their owner gives them to a lowering. */
typedef struct agk_weights agk_weights;
struct agk_weights {
    agk_packed *(*acquire)(agk_weights *weights, const struct agk_view *a);
};

/* Those of `a`, whose bytes lie in `weights`, made at the first call; a reference. NULL: its type has no layout, there
 * is no memory, or it would go beyond the limit. */
static inline agk_packed *agk_packed_acquire(agk_weights *weights, const struct agk_view *a)
{
    return weights->acquire(weights, a);
}

static inline const char *agk_packed_data(const agk_packed *packed)
{
    return packed->data;
}

/* Group `i` of all, 16 rows of one matrix after the other; packed now if the weights were written meanwhile. */
static inline const char *agk_packed_ready(agk_packed *packed, int64_t i)
{
    return packed->ready(packed, i);
}

#endif
