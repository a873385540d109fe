/* The size of packed columns in the schemes of blocks, for convolutions and out_prod, which pack their own columns. */
#ifndef AGK_LOWER_MUL_MAT_BLOCKS_H
#define AGK_LOWER_MUL_MAT_BLOCKS_H

#include "kernels/mul_mat.h"
#include "scheme.h"

/* The form of a unit of 16 columns: agk_mm_unit_q8 and the other units in kernels/mul_mat.h. */
typedef enum agk_mm_unit_form { AGK_MM_UNIT_FLOATS, AGK_MM_UNIT_PAIRS, AGK_MM_UNIT_Q8 } agk_mm_unit_form;

/* Bytes of a unit of k elements. */
static inline size_t agk_mm_unit_bytes(agk_mm_unit_form form, int64_t k)
{
    if (form == AGK_MM_UNIT_Q8) return agk_mm_blocks(k, AGK_MM_BLOCK) * sizeof(agk_mm_unit_q8);
    return (form == AGK_MM_UNIT_PAIRS ? agk_mm_blocks(k, 2) : (size_t)k) * AGK_MM_UNIT * 4;
}

#endif
