/* The portable kernels of blocks: the reference for every variant, and the kernels used where there is no variant.
 * Sums are in double, 16 together. Not here: the scheme (lower/mul_mat/blocks.c), dots (mul_mat_dots.c). */
#include "mul_mat_plain.h"

enum { UNIT = AGK_MM_UNIT, BLOCK = AGK_MM_BLOCK };

/* -- packing -------------------------------------------------------------------------------------------------- */

void agk_mm_blocks_pack_f32_scalar(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    float *y = out;
    for (int64_t j = 0; j < UNIT; ++j) {
        const float *x = at(b, j < cols ? j : 0, ldb);
        for (int64_t i = 0; i < k; ++i) y[i * UNIT + j] = j < cols ? x[i] : 0.0f;
    }
}

void agk_mm_blocks_pack_bf16_scalar(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    uint16_t *y = out;
    for (int64_t j = 0; j < UNIT; ++j) {
        const float *x = at(b, j < cols ? j : 0, ldb);
        for (int64_t i = 0; i < k + (k & 1); ++i) {
            uint16_t *to = &y[(i / 2 * UNIT + j) * 2 + (i & 1)];
            *to = 0;
            if (j < cols && i < k) agk_f32_to_bf16_scalar(x + i, to, 1);
        }
    }
}

void agk_mm_blocks_pack_q8_scalar(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_mm_unit_q8 *y = out;
    for (int64_t i = 0; i < k / BLOCK; ++i, ++y) {
        for (int64_t j = 0; j < UNIT; ++j) {
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)at(b, j < cols ? j : 0, ldb) + i / 2;
            y->d[j] = j < cols ? x->d[i & 1] : 0.0f;
            for (int n = 0; n < BLOCK; ++n) y->q[n / 4][j][n & 3] = (uint8_t)(x->q[(i & 1) * BLOCK + n] + 128);
        }
    }
}

static void row_start(agk_mm_row_q8 *row)
{
    row->start = 0;
    for (int i = 0; i < BLOCK; ++i) row->start -= 128 * row->q[i];
}

void agk_mm_blocks_rows_q8_0_scalar(const void *src, void *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    agk_mm_row_q8 *y = dst;
    for (int64_t i = 0; i < n / BLOCK; ++i) {
        y[i].d = agk_f16_to_float(x[i].d);
        memcpy(y[i].q, x[i].qs, BLOCK);
        row_start(&y[i]);
    }
}

void agk_mm_blocks_rows_q4_0_scalar(const void *src, void *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    agk_mm_row_q8 *y = dst;
    for (int64_t i = 0; i < n / BLOCK; ++i) {
        y[i].d = agk_f16_to_float(x[i].d);
        for (int e = 0; e < BLOCK / 2; ++e) {
            y[i].q[e] = (int8_t)((x[i].qs[e] & 15) - 8);
            y[i].q[e + BLOCK / 2] = (int8_t)((x[i].qs[e] >> 4) - 8);
        }
        row_start(&y[i]);
    }
}

/* -- tiles ---------------------------------------------------------------------------------------------------- */

static void store(const agk_mm_block *block, int64_t row, int64_t unit, const double sum[UNIT])
{
    for (int64_t j = 0; j < UNIT && unit * UNIT + j < block->cols; ++j) {
        float *c = column(block, unit * UNIT + j) + row;
        *c = (float)(block->add ? (double)*c + sum[j] : sum[j]);
    }
}

void agk_mm_blocks_f32_scalar(const agk_mm_block *block)
{
    for (int64_t unit = 0; unit * UNIT < block->cols; ++unit) {
        for (int64_t row = 0; row < block->rows; ++row) {
            const float *a = at(block->a, row, block->lda), *b = at(block->b, unit, block->ldb);
            double sum[UNIT] = {0};
            for (int64_t k = 0; k < block->k; ++k, b += UNIT) {
                const double x = (double)a[k];
                for (int j = 0; j < UNIT; ++j) sum[j] += x * (double)b[j];
            }
            store(block, row, unit, sum);
        }
    }
}

void agk_mm_blocks_bf16_scalar(const agk_mm_block *block)
{
    for (int64_t unit = 0; unit * UNIT < block->cols; ++unit) {
        for (int64_t row = 0; row < block->rows; ++row) {
            const uint16_t *a = at(block->a, row, block->lda), *b = at(block->b, unit, block->ldb);
            double sum[UNIT] = {0};
            for (int64_t k = 0; k < block->k; ++k) {
                const uint16_t *pair = b + k / 2 * 2 * UNIT + (k & 1);
                for (int j = 0; j < UNIT; ++j) sum[j] += (double)bf16(a[k]) * (double)bf16(pair[2 * j]);
            }
            store(block, row, unit, sum);
        }
    }
}

void agk_mm_blocks_q8_scalar(const agk_mm_block *block)
{
    for (int64_t unit = 0; unit * UNIT < block->cols; ++unit) {
        for (int64_t row = 0; row < block->rows; ++row) {
            const agk_mm_row_q8 *a = at(block->a, row, block->lda);
            const agk_mm_unit_q8 *b = at(block->b, unit, block->ldb);
            double sum[UNIT] = {0};
            for (int64_t i = 0; i < block->k / BLOCK; ++i, ++a, ++b) {
                for (int j = 0; j < UNIT; ++j) {
                    int32_t products = a->start;
                    for (int e = 0; e < BLOCK; ++e) products += a->q[e] * b->q[e / 4][j][e & 3];
                    sum[j] += (double)(a->d * b->d[j]) * products;
                }
            }
            store(block, row, unit, sum);
        }
    }
}
