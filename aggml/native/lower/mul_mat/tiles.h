/* What tiles.c and the second step of tiles (tiles_items.c) share. */
#ifndef AGK_LOWER_MUL_MAT_TILES_H
#define AGK_LOWER_MUL_MAT_TILES_H

#include "panels.h"

/* Indices of plan->kernels. DOT: for numbers that cannot be split into terms. */
enum { AGK_TILES_COLUMNS, AGK_TILES_ROWS, AGK_TILES_READ, AGK_TILES_DOT };

agk_step_fn agk_mm_panels_on_tiles; /* the second step */

#endif
