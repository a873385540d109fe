/* Operations that are carried out together, stage by stage, while a row or a block of a product is in the cache.
 *
 * Here: the functions by which the lowering and the steps of an op carry out the stages of a node with its own work.
 * Each stage runs the kernel of its operation, so the results are bit for bit those of separate operations. Not
 * here: which nodes are fused (fusion.py), how a chain of rows is cut (lower/chain.c). */
#ifndef AGK_CHAIN_H
#define AGK_CHAIN_H

#include "node.h"

/* Rows i1 .. i1 + rows - 1 of plane (i2, i3) of dst, elements i0 .. i0 + n - 1 of each. */
typedef struct agk_chain_block {
    int64_t i0, n, i1, rows, i2, i3;
} agk_chain_block;

/* Chooses the kernels of all stages and checks their operands. Whole rows: whether stages that need them are
 * allowed. */
agk_status agk_chain_prepare(agk_lowering *lowering, bool whole_rows);

/* The estimated time of all stages for one element. */
double agk_chain_ns(const agk_node *node, uint32_t cpu);

/* Carries out all stages on a block of dst. `from_source`: the first stage reads src[0] instead of dst. */
void agk_chain_run(const agk_task *task, const agk_node *node, const agk_chain_block *block, bool from_source);

agk_lower_fn agk_lower_chain; /* for a node whose first stage is its own operation, on src[0] */

#endif
