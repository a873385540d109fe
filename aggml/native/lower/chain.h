/* Operations that are carried out together, stage by stage, while a row, or a block of a product, is in the cache.
 *
 * Here: what the lowering and the steps of an op call to have the stages of a node done with its own work. Each
 * stage runs the kernel of its operation, so the bits are those of the operations one by one. Not here: which nodes are
 * fused (fusion.py), how a chain of rows is cut (lower/chain.c). */
#ifndef AGK_CHAIN_H
#define AGK_CHAIN_H

#include "node.h"

/* Rows i1 .. i1 + rows - 1 of plane (i2, i3) of dst, elements i0 .. i0 + n - 1 of each. */
typedef struct agk_chain_block {
    int64_t i0, n, i1, rows, i2, i3;
} agk_chain_block;

/* Choose the kernels of all stages and check their operands. Whole rows: may stages that need them occur? */
agk_status agk_chain_prepare(agk_lowering *lowering, bool whole_rows);

/* About how long all stages take for one element. */
double agk_chain_ns(const agk_node *node, uint32_t cpu);

/* Carry out all stages on a block of dst; `from_source`: the first one reads src[0], not what dst holds. */
void agk_chain_run(const agk_task *task, const agk_node *node, const agk_chain_block *block, bool from_source);

agk_lower_fn agk_lower_chain; /* a node whose first stage is its own operation, on src[0] */

#endif
