/* packed weights of bf16, few columns, see kernels/amd512/mul_mat_packed_pairs.h. */
#include "lines.h"
#include "kernels/amd512/mul_mat_packed_pairs.h"

void agk_mm_packed_pairs_zen5(const agk_mm_block *b)
{
    packed_pairs(b);
}
