/* Forms: what rows of a and columns of b are converted to before a kernel of dots or blocks reads them, and the size of
 * each form.
 *
 * Not here: units (16 columns side by side), which blocks.c packs; panels (panels.h). */
#ifndef AGK_LOWER_MUL_MAT_CONVERT_H
#define AGK_LOWER_MUL_MAT_CONVERT_H

#include "kernels/mul_mat.h"
#include "scheme.h"

typedef enum agk_mm_form {
    AGK_MM_AS_IT_IS,
    AGK_MM_FLOATS,  /* f32; the function is an agk_to_float_fn */
    AGK_MM_BF16,    /* an agk_from_float_fn */
    AGK_MM_Q8,      /* a column as agk_mm_col_q8; an agk_mm_convert_fn */
    AGK_MM_Q8_ROWS, /* a row as agk_mm_row_q8; an agk_mm_convert_fn */
} agk_mm_form;

/* How a row or a column is converted. The form tells the type of the function `with`, which is NULL for
 * AGK_MM_AS_IT_IS. */
typedef struct agk_mm_conversion {
    agk_mm_form form;
    agk_any_fn *with;
} agk_mm_conversion;

void agk_mm_convert(const agk_mm_conversion *conversion, const void *src, void *dst, int64_t k);

/* Columns of this type as floats (nothing to do for f32), or as agk_mm_col_q8 (from f32 and q8_0). */
agk_mm_conversion agk_mm_to_floats(int type, uint32_t cpu);
agk_mm_conversion agk_mm_to_q8(int type, uint32_t cpu);

/* The same for products with the codes of rows of type a: types with blocks of 256 need columns with one scale for
 * each 256 elements. */
agk_mm_conversion agk_mm_columns_of_codes(int a, int b, uint32_t cpu);

agk_mm_convert_fn agk_mm_col_from_q8_0; /* a column that is quantized already, so the conversion is exact */

/* Bytes of a row of k elements. */
static inline size_t agk_mm_row_bytes(agk_mm_form form, int64_t k)
{
    if (form == AGK_MM_Q8_ROWS) return agk_mm_blocks(k, AGK_MM_BLOCK) * sizeof(agk_mm_row_q8);
    return (size_t)k * sizeof(float);
}

/* Bytes of a column of k elements. */
static inline size_t agk_mm_col_bytes(agk_mm_form form, int64_t k)
{
    if (form == AGK_MM_Q8) return agk_mm_blocks(k, 2 * AGK_MM_BLOCK) * sizeof(agk_mm_col_q8);
    if (form == AGK_MM_BF16) return (agk_mm_blocks(k, 2 * AGK_MM_UNIT) + 1) * 2 * AGK_MM_UNIT * sizeof(uint16_t);
    /* The stride between columns, one cache line more than needed: columns that lie a power of two apart would all
     * fall into the same set of L1. */
    return (agk_mm_blocks(k, AGK_MM_UNIT) + 1) * AGK_MM_UNIT * sizeof(float);
}

#endif
