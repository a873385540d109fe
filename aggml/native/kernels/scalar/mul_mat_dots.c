/* The portable dots of f32, f16, bf16, q8_0 and q4_0: the reference for every variant. Products are added in double,
 * in 4 sums that are added at the end. Not here: other quantized types (mul_mat_dots_types.c). */
#include "mul_mat_plain.h"

enum { BLOCK = AGK_MM_BLOCK };

#define DOT(type, item, value, column_item, column_value) \
    void agk_mm_dots_##type##_scalar(const agk_mm_block *block) \
    { \
        for (int64_t col = 0; col < block->cols; ++col) { \
            for (int64_t row = 0; row < block->rows; ++row) { \
                const item *a = at(block->a, row, block->lda); \
                const column_item *b = at(block->b, col, block->ldb); \
                double sum[4] = {0}; \
                int64_t k = 0; \
                for (; k + 4 <= block->k; k += 4) { \
                    for (int i = 0; i < 4; ++i) sum[i] += (double)value(a[k + i]) * (double)column_value(b[k + i]); \
                } \
                for (; k < block->k; ++k) sum[0] += (double)value(a[k]) * (double)column_value(b[k]); \
                sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]); \
                float *c = column(block, col) + row; \
                *c = (float)(block->add ? (double)*c + sum[0] : sum[0]); \
            } \
        } \
    }

DOT(f32, float, , float, )
DOT(f16, uint16_t, agk_f16_to_float, float, )
DOT(bf16, uint16_t, bf16, float, )
DOT(bf16_bf16, uint16_t, bf16, uint16_t, bf16)

static void dot_q8(const agk_mm_block *block, size_t block_size, agk_mm_blocks_rows_q8_0_fn *widen)
{
    for (int64_t row = 0; row < block->rows; ++row) {
        for (int64_t col = 0; col < block->cols; ++col) {
            const char *a = at(block->a, row, block->lda);
            const agk_mm_col_q8 *b = at(block->b, col, block->ldb);
            double sum = 0.0;
            for (int64_t i = 0; i < block->k / BLOCK; ++i) {
                agk_mm_row_q8 x;
                int32_t products = 0;
                widen(a + (size_t)i * block_size, &x, BLOCK);
                for (int e = 0; e < BLOCK; ++e) products += x.q[e] * b[i / 2].q[(i & 1) * BLOCK + e];
                sum += (double)(x.d * b[i / 2].d[i & 1]) * products;
            }
            column(block, col)[row] = (float)sum;
        }
    }
}

void agk_mm_dots_q8_0_scalar(const agk_mm_block *block)
{
    dot_q8(block, sizeof(agk_block_q8_0), agk_mm_blocks_rows_q8_0_scalar);
}

void agk_mm_dots_q4_0_scalar(const agk_mm_block *block)
{
    dot_q8(block, sizeof(agk_block_q4_0), agk_mm_blocks_rows_q4_0_scalar);
}
