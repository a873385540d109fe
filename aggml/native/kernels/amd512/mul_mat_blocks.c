/* blocks_f32 on a Zen 4: a broadcast that is an operand of a product costs nothing there. The loop is in
 * kernels/avx512/mul_mat_blocks_floats.h. */
#define AGK_BLOCKS_LOADS 0
#include "kernels/avx512/mul_mat_blocks_floats.h"

void agk_mm_blocks_f32_amd512(const agk_mm_block *block)
{
    all_rows(block);
}
