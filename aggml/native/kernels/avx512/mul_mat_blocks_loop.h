/* All rows of a call, 8 at a time, times 1 to 3 units: the loop around tile(R, W, block, a, c) of the file that
 * includes this. */
#ifndef AGK_AVX512_MUL_MAT_BLOCKS_LOOP_H
#define AGK_AVX512_MUL_MAT_BLOCKS_LOOP_H

AGK_INLINE void rows(int W, const agk_mm_block *block)
{
    const char *a = block->a;
    float *c = block->c;
    int64_t left = block->rows;
    for (; left >= 8; left -= 8, a += 8 * block->lda, c += 8) tile(8, W, block, a, c);
    if (left & 4) tile(4, W, block, a, c), a += 4 * block->lda, c += 4;
    if (left & 2) tile(2, W, block, a, c), a += 2 * block->lda, c += 2;
    if (left & 1) tile(1, W, block, a, c);
}

AGK_INLINE void all_rows(const agk_mm_block *block)
{
    if (block->cols <= 16)
        rows(1, block);
    else if (block->cols <= 32)
        rows(2, block);
    else
        rows(3, block);
}

#endif
