/* mul_mat in f32, NEON: pack a unit of b, multiply rows as they lie.
 *
 * Lanes are columns; rows are multiplied by a lane of a vector that holds 4 k of a row: 8 rows x 8 columns. 16 sums
 * hide a latency of 4 cycles on four multipliers. Not here: panels (mul_mat_floats.c), bytes (mul_mat_bytes.h), few
 * columns (mul_mat_dots.c). */
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "math.h"

enum { UNIT = AGK_MM_UNIT };

AGK_INLINE const float *floats(const void *base, int64_t i, size_t stride)
{
    return (const float *)(const void *)((const char *)base + (size_t)i * stride);
}

void agk_mm_blocks_pack_f32_neon(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    float *y = out;
    for (int64_t j = 0; j < UNIT; j += 4) {
        int64_t i = 0;
        for (; i + 4 <= k; i += 4) {
            vf r[4];
            AGK_UNROLL for (int c = 0; c < 4; ++c) r[c] = j + c < cols ? v_load(floats(b, j + c, ldb) + i) : v_zero();
            v_transpose(r);
            AGK_UNROLL for (int c = 0; c < 4; ++c) v_store(y + (i + c) * UNIT + j, r[c]);
        }
        for (; i < k; ++i) {
            for (int c = 0; c < 4; ++c) y[i * UNIT + j + c] = j + c < cols ? floats(b, j + c, ldb)[i] : 0.0f;
        }
    }
}

/* -- rows as they lie ----------------------------------------------------------------------------------------- */

/* acc[r] += lane of x[r] * y */
#define AGK_LANE(lane) \
    AGK_UNROLL for (int q = 0; q < Q; ++q) \
    { \
        const vf y = v_load(b[q] + lane * UNIT); \
        AGK_UNROLL for (int r = 0; r < R; ++r) acc[r][q] = vfmaq_laneq_f32(acc[r][q], y, x[r], lane); \
    }

/* R rows x Q fours of columns. */
AGK_INLINE void rows_tile(int R, int Q, const agk_mm_block *block, const char *a, const float *b0, char *c,
                          int64_t cols)
{
    vf acc[8][2];
    const float *b[2] = {b0, b0 + 4};
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int q = 0; q < Q; ++q) acc[r][q] = v_zero();
    int64_t k = 0;
    for (; k + 4 <= block->k; k += 4) {
        vf x[8];
        AGK_UNROLL for (int r = 0; r < R; ++r) x[r] = v_load(floats(a, r, block->lda) + k);
        AGK_LANE(0)
        AGK_LANE(1)
        AGK_LANE(2)
        AGK_LANE(3)
        AGK_UNROLL for (int q = 0; q < Q; ++q) b[q] += 4 * UNIT;
    }
    for (; k < block->k; ++k) {
        vf x[8];
        AGK_UNROLL for (int r = 0; r < R; ++r) x[r] = v_set(floats(a, r, block->lda)[k]);
        AGK_LANE(0)
        AGK_UNROLL for (int q = 0; q < Q; ++q) b[q] += UNIT;
    }
    AGK_UNROLL for (int q = 0; q < Q; ++q)
    {
        const int64_t left = cols - 4 * q;
        char *to = c + (size_t)(4 * q) * block->ldc;
        if (R == 1) {
            float values[4];
            v_store(values, acc[0][q]);
            for (int64_t j = 0; j < 4 && j < left; ++j) {
                float *out = (float *)(void *)(to + (size_t)j * block->ldc);
                *out = block->add ? *out + values[j] : values[j];
            }
            continue;
        }
        AGK_UNROLL for (int r = 0; r + 4 <= R; r += 4)
        {
            vf t[4] = {acc[r][q], acc[r + 1][q], acc[r + 2][q], acc[r + 3][q]};
            v_transpose(t);
            AGK_UNROLL for (int j = 0; j < 4; ++j)
            {
                float *out = (float *)(void *)(to + (size_t)j * block->ldc) + r;
                if (j < left) v_store(out, block->add ? v_load(out) + t[j] : t[j]);
            }
        }
    }
}
#undef AGK_LANE

void agk_mm_blocks_f32_neon(const agk_mm_block *block)
{
    for (int64_t col = 0; col < block->cols; col += 8) {
        const int64_t cols = block->cols - col;
        const float *b = floats(block->b, col / UNIT, block->ldb) + col % UNIT;
        char *c = (char *)block->c + (size_t)col * block->ldc;
        const char *a = block->a;
        int64_t rows = block->rows;
        for (; rows >= 8; rows -= 8, a += 8 * block->lda, c += 32) {
            if (cols > 4)
                rows_tile(8, 2, block, a, b, c, cols);
            else
                rows_tile(8, 1, block, a, b, c, cols);
        }
        if (rows >= 4) rows_tile(4, 2, block, a, b, c, cols), rows -= 4, a += 4 * block->lda, c += 16;
        for (; rows > 0; --rows, a += block->lda, c += 4) rows_tile(1, 2, block, a, b, c, cols);
    }
}
