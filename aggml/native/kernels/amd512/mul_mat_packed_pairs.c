/* packed weights of bf16, few columns, see mul_mat_packed_pairs.h. */
#include "lines.h"
#include "mul_mat_packed_pairs.h"

void agk_mm_packed_pairs_amd512(const agk_mm_block *b)
{
    packed_pairs(b);
}
