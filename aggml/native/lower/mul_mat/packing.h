/* How products get the packed copy of their weights (lower/weights.h), whose layout is in kernels/mul_mat_packed.h. */
#ifndef AGK_LOWER_MUL_MAT_PACKING_H
#define AGK_LOWER_MUL_MAT_PACKING_H

#include "kernels/mul_mat_packed.h"
#include "lower/weights.h"

/* The packed copy of src[0] of a node, which the plan holds from now on. NULL: src[0] is not a weight, its type has
 * no packed layout, or there is no memory for it. */
static inline agk_packed *agk_packed_keep(agk_lowering *lowering)
{
    if (lowering->weights == NULL) return NULL;
    lowering->packed = agk_packed_acquire(lowering->weights, &lowering->node->src[0]);
    return lowering->packed;
}

#endif
