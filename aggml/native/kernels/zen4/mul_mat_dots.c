/* One column of f32, f16 and bf16, see mul_mat_dots.h. More columns are passed on to kernels/avx512. */
#include "lines.h"
#include "mul_mat_dots.h"

void agk_mm_dots_f32_zen4(const agk_mm_block *block)
{
    if (block->cols == 1)
        one_column(F32, block);
    else
        agk_mm_dots_f32_avx512(block);
}

void agk_mm_dots_f16_zen4(const agk_mm_block *block)
{
    if (block->cols == 1)
        one_column(F16, block);
    else
        agk_mm_dots_f16_avx512(block);
}

void agk_mm_dots_bf16_bf16_zen4(const agk_mm_block *block)
{
    if (block->cols == 1)
        one_column(PAIRS, block);
    else
        agk_mm_dots_bf16_bf16_avx512(block);
}
