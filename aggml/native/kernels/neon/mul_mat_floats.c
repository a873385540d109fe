/* floats, NEON: panels and units of f32 (kernels/mul_mat_panels.h).
 *
 * Lanes are columns; 8 rows of a panel are turned once for all columns, so that one vector holds a k of 4 rows,
 * whose lanes multiply: 8 rows x 12 columns, 5 loads for 24 products. 24 sums hide a latency of 4 cycles on four
 * multipliers. */
#include "kernels/mul_mat_panels.h"
#include "table/kernel_types.h"
#include "math.h"

enum { UNIT = AGK_MM_UNIT };

enum { EIGHT = 8, AT_ONCE = 128, UNIT_SUMS = AGK_PANEL_SUMS / 2 };

/* k of 8 rows of a panel, [k][8]. */
static void turn(int64_t k, const float *panel, float *out)
{
    for (int64_t i = 0; i < k; i += 4) {
        const float *from = panel + i / 16 * 16 * AGK_PANEL_ROWS + i % 16;
        AGK_UNROLL for (int half = 0; half < 2; ++half)
        {
            vf r[4];
            AGK_UNROLL for (int j = 0; j < 4; ++j) r[j] = v_load(from + 16 * (4 * half + j));
            v_transpose(r);
            AGK_UNROLL for (int j = 0; j < 4; ++j) v_store(out + (i + j) * EIGHT + 4 * half, r[j]);
        }
    }
}

/* 8 rows x Q fours of columns; b and sums are given for each four. Every 32 k have sums of their own: one chain over
 * all k has up to 16 times their error, which is then 5e-7 relative to the size of such products. */
AGK_INLINE void panel_tile(int Q, int64_t k, const float *a, const float *const from[3], bool first,
                           float *const sums[3])
{
    const float *b[3];
    AGK_UNROLL for (int q = 0; q < Q; ++q) b[q] = from[q];
    for (int64_t i = 0; i < k; i += AGK_PANEL_K) {
        vf acc[EIGHT][3];
        AGK_UNROLL for (int q = 0; q < Q; ++q) AGK_UNROLL for (int r = 0; r < EIGHT; ++r) acc[r][q] = v_zero();
        for (int j = 0; j < AGK_PANEL_K; ++j, a += EIGHT) {
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

void agk_mm_floats_product_neon(const agk_mm_panel *p)
{
    float x[AGK_PANEL_ROWS / EIGHT][AT_ONCE * EIGHT];
    for (int64_t k0 = 0; k0 < p->k; k0 += AT_ONCE) {
        const int64_t k = p->k - k0 < AT_ONCE ? p->k - k0 : AT_ONCE, fours = (p->cols + 3) / 4;
        const bool first = p->first && k0 == 0;
        for (int64_t row = 0; row < p->rows; row += EIGHT) {
            turn(k, (const float *)(const void *)p->a + k0 * AGK_PANEL_ROWS + 16 * row, x[row / EIGHT]);
        }
        for (int64_t four = 0; four < fours; four += 3) {
            const float *b[3];
            float *sums[3];
            for (int q = 0; q < 3; ++q) {
                const int64_t unit = (four + q) / 4, at = (four + q) % 4 * 4;
                const char *from = p->b + (size_t)(four + q < fours ? unit : 0) * p->ldb;
                b[q] = (const float *)(const void *)from + k0 * UNIT + at;
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
