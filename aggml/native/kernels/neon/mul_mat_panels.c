/* Sums of panels to columns of the result, NEON. */
#include "kernels/mul_mat_panels.h"
#include "table/kernel_types.h"
#include "math.h"

enum { UNIT = AGK_MM_UNIT, UNIT_SUMS = AGK_PANEL_SUMS / 2 };

void agk_mm_panels_put_neon(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t row = 0; row < rows; row += 4) {
        const float *panel = sums + (size_t)(row / AGK_PANEL_ROWS) * panel_sums + row % AGK_PANEL_ROWS * UNIT;
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
