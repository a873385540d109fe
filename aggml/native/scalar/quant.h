/* What scalar/types.c and scalar/quant.c share: single 16-bit floats, and the row functions of the table.
 *
 * Not here: row conversions that have variants (kernel_types.h). */
#ifndef AGK_SCALAR_QUANT_H
#define AGK_SCALAR_QUANT_H

#include "../types.h"

/* A NaN keeps its payload and becomes quiet; all else is exact. */
float agk_f16_to_float(uint16_t h);
/* To nearest, ties to even; every NaN becomes sign | 0x7e00. */
uint16_t agk_f16_from_float(float value);

void agk_f32_to_q4_0(const float *src, void *dst, int64_t n);
/* Rows of n_per_row elements, n_per_row weights of columns in `imatrix` (NULL: as agk_f32_to_q4_0). */
void agk_quantize_q4_0_imatrix(const float *src, void *dst, int64_t nrows, int64_t n_per_row, const float *imatrix);

#endif
