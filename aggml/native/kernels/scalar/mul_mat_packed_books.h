/* Codes and scales of the types whose blocks of 256 hold points of a codebook, or -1, 0 and 1, as packed weights have
 * them. Not here: where they lie in a group (mul_mat_packed.c). */
#ifndef AGK_SCALAR_PACKED_BOOKS_H
#define AGK_SCALAR_PACKED_BOOKS_H

#include "kernels/mul_mat_packed_types.h"

/* Reads a block: 256 codes, before the table of levels, and the scales of 16 or 32 elements each as odd integers.
 * Ternary types have no such scales. Returns the scale of the block as f16. */
uint16_t agk_packed_book(code_type t, const void *block, uint8_t codes[256], int8_t scales[16]);

#endif
