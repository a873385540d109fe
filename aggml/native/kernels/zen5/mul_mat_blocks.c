/* blocks_f32 on a Zen 5: as on others with AVX-512, because broadcasts that are operands were not measured. */
#define AGK_BLOCKS_LOADS 1
#include "kernels/avx512/mul_mat_blocks_floats.h"

void agk_mm_blocks_f32_zen5(const agk_mm_block *block)
{
    all_rows(block);
}
