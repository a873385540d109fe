/* The kernels of dots: few columns, lanes along k. mul_mat_id.c uses them for the columns of an expert, too. */
#ifndef AGK_LOWER_MUL_MAT_DOTS_H
#define AGK_LOWER_MUL_MAT_DOTS_H

#include "convert.h"

typedef struct agk_mm_dots {
    agk_mm_block_fn *product;
    agk_mm_conversion rows, columns;
} agk_mm_dots;

/* For rows of type a and columns of type b. `as_floats`: the kernel for bf16 rows shall take columns of f32; `exact`:
 * so shall those for all rows. */
agk_mm_dots agk_mm_dots_of(int a, int b, bool as_floats, bool exact, uint32_t cpu);

#endif
