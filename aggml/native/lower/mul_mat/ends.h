/* Epilogues of products of panels: which stages of a node a kernel carries out with the sums, and where it stores the
 * result (agk_mm_end): a plain tensor, one of bf16, or the packed columns of the next product.
 *
 * Not here: the kernels (mm_tiles_product, mm_panels_end), all other stages (lower/chain.c). */
#ifndef AGK_LOWER_MUL_MAT_ENDS_H
#define AGK_LOWER_MUL_MAT_ENDS_H

#include "panels.h"

/* Whether the last stage of a product converts its result to bf16. */
static inline bool agk_mm_narrows(const agk_node *node)
{
    return node->n_stages > 0 && node->stage[node->n_stages - 1].op == AGK_OP_cpy && node->dst.type == AGK_BF16;
}

/* Decides which stages the kernel carries out: plan->bias, act, other and ends. */
void agk_mm_ends_choose(agk_mm_panels_plan *plan, const agk_node *node);

/* The epilogue of rows `row` on of an item; without stages, if `stages` is false. */
agk_mm_end agk_mm_ends_of(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *plan,
                          const agk_mm_item *item, int64_t row, bool stages);

/* Decides whether the columns of this node are written by the node that computes them, in the form plan->form, and
 * whether this node can write those of the next product: in one of the forms `gives`, a bit for each. */
void agk_mm_ends_columns(agk_lowering *lowering, const agk_mm_panels_plan *plan, uint32_t gives);

#endif
