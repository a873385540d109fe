/* Products of few columns, 2 rows x up to 4 columns at a time: the loops around panel(), which the including file
 * defines.
 *
 * That file must first define panel(type, R, N, block, a, b, c), which multiplies all k of R rows and N columns,
 * both constants. Not here: the panels (mul_mat_dots_*.c of each instruction set), other shapes
 * (kernels/avx512/mul_mat_dots.h). */
#ifndef AGK_MUL_MAT_DOT_BLOCKS_H
#define AGK_MUL_MAT_DOT_BLOCKS_H

#include "mul_mat.h"

AGK_INLINE void agk_dot_columns(int type, int R, int64_t n, const agk_mm_block *block, const char *a, const char *b,
                                char *c)
{
    switch (n) {
    case 1: panel(type, R, 1, block, a, b, c); break;
    case 2: panel(type, R, 2, block, a, b, c); break;
    case 3: panel(type, R, 3, block, a, b, c); break;
    default: panel(type, R, 4, block, a, b, c); break;
    }
}

AGK_INLINE void agk_dot_blocks(int type, const agk_mm_block *block)
{
    const char *a = block->a;
    char *c = (char *)block->c;
    for (int64_t rows = block->rows; rows > 0; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) {
        for (int64_t col = 0; col < block->cols; col += 4) {
            const char *b = (const char *)block->b + (size_t)col * block->ldb;
            char *to = c + (size_t)col * block->ldc;
            if (rows > 1)
                agk_dot_columns(type, 2, block->cols - col, block, a, b, to);
            else
                agk_dot_columns(type, 1, block->cols - col, block, a, b, to);
        }
    }
}
#endif
