/* blocks_f32: 8 rows are multiplied by 48 columns at a time. A file says how an element of a row is broadcast, and
 * includes this: AGK_BLOCKS_LOADS 1: one load for all units; 0: each product loads it, as its operand.
 *
 * Not here: packing columns (mul_mat_blocks.c). */
#ifndef AGK_AVX512_MUL_MAT_BLOCKS_FLOATS_H
#define AGK_AVX512_MUL_MAT_BLOCKS_FLOATS_H

#include "mul_mat_blocks.h"

AGK_INLINE void step(int R, int W, __m512 acc[8][3], const char *a, const char *a4, size_t lda, const char *b,
                     size_t ldb)
{
    __m512 y[3];
    AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = _mm512_loadu_ps(b + (size_t)w * ldb);
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        const char *row = (r < 4 ? a : a4) + (size_t)(r & 3) * lda;
        __m512 x = _mm512_set1_ps(*(const float *)(const void *)row);
        if (AGK_BLOCKS_LOADS && W > 1) __asm__("" : "+v"(x));
        AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_fmadd_ps(x, y[w], acc[r][w]);
    }
}

AGK_INLINE void tile(int R, int W, const agk_mm_block *block, const char *a, float *c)
{
    __m512 acc[8][3];
    const size_t lda = block->lda, ldb = block->ldb;
    const char *b = block->b;
    const char *a4 = a + 4 * lda; /* two bases: every row is base + {0, 1, 2, 3} * lda */
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_setzero_ps();
    if (block->c_far) agk_prefetch_tile(c, block->ldc, block->cols);
    const size_t next_lda = block->next != NULL ? block->next_lda : lda;
    int64_t k = 0;
    for (; k + 16 <= block->k; k += 16) {
        /* one line of each of the 8 rows that come next, between products */
        const bool other = block->next != NULL;
        const char *next = other ? block->next + k * block->next_width : a4 + 4 * lda;
        const bool far = R == 8 && (other ? k * block->next_width % 64 == 0 : block->a_far);
        for (int i = 0; i < 8; ++i, next += next_lda, a += 4, a4 += 4, b += 64) {
            if (far) __asm__ volatile("prefetcht1 %1" : "+v"(acc[0][0]) : "m"(*(const char (*)[64])next));
            step(R, W, acc, a, a4, lda, b, ldb);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; ++i, a += 4, a4 += 4, b += 64) step(R, W, acc, a, a4, lda, b, ldb);
    }
    for (; k < block->k; ++k, a += 4, a4 += 4, b += 64) step(R, W, acc, a, a4, lda, b, ldb);
    agk_store_tile(R, W, acc, c, block->ldc, block->cols, block->add);
}

#include "mul_mat_blocks_loop.h"

#endif
