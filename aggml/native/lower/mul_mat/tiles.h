/* The functions of tiles.c that mul_mat.c and the second step of tiles (tiles_items.c) use. */
#ifndef AGK_LOWER_MUL_MAT_TILES_H
#define AGK_LOWER_MUL_MAT_TILES_H

#include "panels.h"

/* Indices of plan->kernels. DOT: for numbers that cannot be split into terms. */
enum { AGK_TILES_COLUMNS, AGK_TILES_ROWS, AGK_TILES_READ, AGK_TILES_DOT };

/* Whether the last stage of a product converts its result to bf16. */
static inline bool agk_mm_narrows(const agk_node *node)
{
    return node->n_stages > 0 && node->stage[node->n_stages - 1].op == AGK_OP_cpy && node->dst.type == AGK_BF16;
}

/* Adds the steps of a product whose result shall be bf16, which only tiles can store. False: tiles do not serve it. */
bool agk_mm_tiles_narrow(agk_lowering *lowering);

agk_step_fn agk_mm_panels_on_tiles; /* the second step */

#endif
