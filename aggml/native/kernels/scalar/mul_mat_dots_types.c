/* The portable dots of quantized types, with which the variants are compared: columns are agk_mm_col_q8, rows are
 * converted to floats, a block at a time, and sums are in double. Not here: q8_0 and q4_0 (mul_mat_dots.c). */
#include "formats/blocks_iq.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "formats/quant.h"

enum { MOST = 256 }; /* elements of a block */

static void dot(const agk_mm_block *block, int64_t n, size_t block_size, agk_to_float_fn *read)
{
    for (int64_t row = 0; row < block->rows; ++row) {
        for (int64_t col = 0; col < block->cols; ++col) {
            const char *a = (const char *)block->a + (size_t)row * block->lda;
            const agk_mm_col_q8 *b = (const void *)((const char *)block->b + (size_t)col * block->ldb);
            double sum = 0.0;
            float x[MOST];
            for (int64_t k = 0; k < block->k; ++k) {
                if (k % n == 0) {
                    read(a, x, n);
                    a += block_size;
                }
                sum += (double)x[k % n] * (double)(b[k / 64].d[k / 32 % 2] * (float)b[k / 64].q[k % 64]);
            }
            ((float *)(void *)((char *)block->c + (size_t)col * block->ldc))[row] = (float)sum;
        }
    }
}

#define DOT_BY(type, n, read) \
    void agk_mm_dots_##type##_scalar(const agk_mm_block *block) \
    { \
        dot(block, n, sizeof(agk_block_##type), read); \
    }
#define DOT(type, KIND, n) DOT_BY(type, n, agk_##type##_to_f32_scalar)
DOT(q4_1, , 32)
DOT(q5_0, , 32)
DOT(q5_1, , 32)
DOT(iq4_nl, , 32)
DOT(mxfp4, , 32)
AGK_MM_OF_64(DOT, 64)
AGK_MM_OF_256(DOT, 256)
AGK_MM_OF_GRIDS(DOT, 256)
DOT_BY(tq1_0, 256, agk_tq1_0_to_f32)
DOT(tq2_0, , 256)
