/* mul_mat of quantized rows with few columns, exact to double sums: what other variants compute, and what they are
 * measured by. Columns are agk_mm_col_q8; rows are read as floats, a block at a time.
 *
 * Not here: q8_0 and q4_0 (mul_mat_kernels.c). */
#include "../kernel_types.h"
#include "../mul_mat.h"

enum { K = 256 };

static double product(const float *x, const agk_mm_col_q8 *b)
{
    double sum = 0.0;
    for (int i = 0; i < K; ++i) {
        const agk_mm_col_q8 *unit = &b[i / 64];
        sum += (double)x[i] * (double)(unit->d[i / 32 % 2] * (float)unit->q[i % 64]);
    }
    return sum;
}

static void dot(const agk_mm_block *block, size_t block_size, agk_to_float_fn *read)
{
    for (int64_t row = 0; row < block->rows; ++row) {
        for (int64_t col = 0; col < block->cols; ++col) {
            const char *a = (const char *)block->a + (size_t)row * block->lda;
            const char *b = (const char *)block->b + (size_t)col * block->ldb;
            double sum = 0.0;
            for (int64_t k = 0; k < block->k; k += K, a += block_size, b += K / 64 * sizeof(agk_mm_col_q8)) {
                float x[K];
                read(a, x, K);
                sum += product(x, (const agk_mm_col_q8 *)(const void *)b);
            }
            ((float *)(void *)((char *)block->c + (size_t)col * block->ldc))[row] = (float)sum;
        }
    }
}

#define DOT(type) \
    void agk_mm_dot_##type##_scalar(const agk_mm_block *block) \
    { \
        dot(block, sizeof(agk_block_##type), agk_##type##_to_f32_scalar); \
    }
DOT(q2_k)
DOT(q3_k)
DOT(q4_k)
DOT(q5_k)
DOT(q6_k)
DOT(iq4_xs)
