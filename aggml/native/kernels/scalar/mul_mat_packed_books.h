/* Codes and scales of the types whose blocks of 256 hold points of a codebook, or -1, 0 and 1, as packed weights have
 * them. Not here: where they lie in a group (mul_mat_packed.c). */
#ifndef AGK_SCALAR_PACKED_BOOKS_H
#define AGK_SCALAR_PACKED_BOOKS_H

#include "kernels/mul_mat_packed_types.h"

/* The bits of a block of 256 elements where a block of the file has them whose layout it takes: iq4_xs (nibbles, in
 * `low`), q3_K or q2_K; s for the scales 2 s + 1 of 16 or 32 elements each; of iq1 a third bit for each 8 elements. */
typedef struct agk_packed_bits {
    uint8_t low[128], high[32], scales[16];
    uint32_t third;
} agk_packed_bits;

/* Reads a block. Ternary types leave the scales undefined, all types but iq1 the third bits. Returns the scale of the
 * block as f16. */
uint16_t agk_packed_book(code_type t, const void *block, agk_packed_bits *out);

#endif
