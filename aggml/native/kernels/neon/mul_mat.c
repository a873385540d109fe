/* mul_mat in f32, NEON: pack a unit of b, multiply rows as they lie, or panels and units (mul_mat_terms.h).
 *
 * Lanes are columns; rows are multiplied by a lane of a vector that holds 4 k of a row (as they lie: 8 rows x 8 columns) or 4
 * rows (a panel that was turned once for all columns: 8 rows x 12 columns, 5 loads for 24 products). 16 and 24 sums hide a
 * latency of 4 cycles on four multipliers. Not here: bf16, bytes (mul_mat_bytes.h), few columns (mul_mat_dot.c). */
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "kernels/mul_mat_terms.h"
#include "math.h"

enum { UNIT = AGK_MM_UNIT };

AGK_INLINE const float *floats(const void *base, int64_t i, size_t stride)
{
    return (const float *)(const void *)((const char *)base + (size_t)i * stride);
}

void agk_mm_pack_f32_neon(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
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

void agk_mm_tile_f32_neon(const agk_mm_block *block)
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

/* -- panels and units ----------------------------------------------------------------------------------------- */

enum { EIGHT = 8, AT_ONCE = 128, UNIT_SUMS = AGK_TERMS_SUMS / 2 };

/* k of 8 rows of a panel, [k][8]. */
static void turn(int64_t k, const float *panel, float *out)
{
    for (int64_t i = 0; i < k; i += 4) {
        const float *from = panel + i / 16 * 16 * AGK_TERMS_ROWS + i % 16;
        AGK_UNROLL for (int half = 0; half < 2; ++half)
        {
            vf r[4];
            AGK_UNROLL for (int j = 0; j < 4; ++j) r[j] = v_load(from + 16 * (4 * half + j));
            v_transpose(r);
            AGK_UNROLL for (int j = 0; j < 4; ++j) v_store(out + (i + j) * EIGHT + 4 * half, r[j]);
        }
    }
}

/* 8 rows x Q fours of columns; b and sums: of each four. 32 k have sums of their own: one chain over all k has up to 16 times
 * their error, which is then 5e-7 of what such products are like. */
AGK_INLINE void panel_tile(int Q, int64_t k, const float *a, const float *const from[3], bool first,
                           float *const sums[3])
{
    const float *b[3];
    AGK_UNROLL for (int q = 0; q < Q; ++q) b[q] = from[q];
    for (int64_t i = 0; i < k; i += AGK_TERMS_K) {
        vf acc[EIGHT][3];
        AGK_UNROLL for (int q = 0; q < Q; ++q) AGK_UNROLL for (int r = 0; r < EIGHT; ++r) acc[r][q] = v_zero();
        for (int j = 0; j < AGK_TERMS_K; ++j, a += EIGHT) {
            const vf x0 = v_load(a), x1 = v_load(a + 4);
            AGK_UNROLL for (int q = 0; q < Q; ++q)
            {
                const vf y = v_load(b[q]);
                acc[0][q] = vfmaq_laneq_f32(acc[0][q], y, x0, 0);
                acc[1][q] = vfmaq_laneq_f32(acc[1][q], y, x0, 1);
                acc[2][q] = vfmaq_laneq_f32(acc[2][q], y, x0, 2);
                acc[3][q] = vfmaq_laneq_f32(acc[3][q], y, x0, 3);
                acc[4][q] = vfmaq_laneq_f32(acc[4][q], y, x1, 0);
                acc[5][q] = vfmaq_laneq_f32(acc[5][q], y, x1, 1);
                acc[6][q] = vfmaq_laneq_f32(acc[6][q], y, x1, 2);
                acc[7][q] = vfmaq_laneq_f32(acc[7][q], y, x1, 3);
                b[q] += UNIT;
            }
        }
        const bool begin = first && i == 0;
        AGK_UNROLL for (int q = 0; q < Q; ++q)
        {
            AGK_UNROLL for (int r = 0; r < EIGHT; ++r)
            {
                v_store(sums[q] + 16 * r, begin ? acc[r][q] : v_load(sums[q] + 16 * r) + acc[r][q]);
            }
        }
    }
}

void agk_mm_lanes_tile_neon(const agk_terms_panel *p)
{
    float x[AGK_TERMS_ROWS / EIGHT][AT_ONCE * EIGHT];
    for (int64_t k0 = 0; k0 < p->k; k0 += AT_ONCE) {
        const int64_t k = p->k - k0 < AT_ONCE ? p->k - k0 : AT_ONCE, fours = (p->cols + 3) / 4;
        const bool first = p->first && k0 == 0;
        for (int64_t row = 0; row < p->rows; row += EIGHT) {
            turn(k, (const float *)(const void *)p->a + k0 * AGK_TERMS_ROWS + 16 * row, x[row / EIGHT]);
        }
        for (int64_t four = 0; four < fours; four += 3) {
            const float *b[3];
            float *sums[3];
            for (int q = 0; q < 3; ++q) {
                const int64_t unit = (four + q) / 4, at = (four + q) % 4 * 4;
                b[q] = floats(p->b, four + q < fours ? unit : 0, p->ldb) + k0 * UNIT + at;
                sums[q] = p->sums + (four + q < fours ? unit : 0) * UNIT_SUMS + at;
            }
            for (int64_t row = 0; row < p->rows; row += EIGHT) {
                const float *a = x[row / EIGHT];
                if (fours - four == 1)
                    panel_tile(1, k, a, b, first, sums);
                else if (fours - four == 2)
                    panel_tile(2, k, a, b, first, sums);
                else
                    panel_tile(3, k, a, b, first, sums);
                for (int q = 0; q < 3; ++q) sums[q] += 16 * EIGHT;
            }
        }
    }
}

/* Sums of all tiles of panels: [panel][unit][32 rows][16 columns]. */
void agk_mm_terms_put_neon(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t row = 0; row < rows; row += 4) {
        const float *panel = sums + (size_t)(row / AGK_TERMS_ROWS) * panel_sums + row % AGK_TERMS_ROWS * UNIT;
        const int64_t n = rows - row < 4 ? rows - row : 4;
        for (int64_t col = 0; col < cols; col += 4) {
            const float *from = panel + col / UNIT * UNIT_SUMS + col % UNIT;
            vf t[4];
            AGK_UNROLL for (int r = 0; r < 4; ++r) t[r] = v_load(from + UNIT * r);
            v_transpose(t);
            for (int64_t j = 0; j < 4 && col + j < cols; ++j) {
                float *to = (float *)(void *)((char *)c + (size_t)(col + j) * ldc) + row;
                if (n == 4)
                    v_store(to, t[j]);
                else
                    v_store_n(to, t[j], n);
            }
        }
    }
}
