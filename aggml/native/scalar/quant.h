/* What scalar/types.c and scalar/quant*.c share: single 16-bit floats, and the row functions of the table.
 *
 * Not here: row conversions that have variants (kernel_types.h). */
#ifndef AGK_SCALAR_QUANT_H
#define AGK_SCALAR_QUANT_H

#include "../blocks.h"
#include "../types.h"

/* A NaN keeps its payload and becomes quiet; all else is exact. */
float agk_f16_to_float(uint16_t h);
/* To nearest, ties to even; every NaN becomes sign | 0x7e00. */
uint16_t agk_f16_from_float(float value);

/* quant.c */
agk_from_float_fn agk_f32_to_q4_0;
agk_quantize_fn agk_quantize_q4_0;

#endif
