/* Stores the sums of panels into columns of the result, AVX2. */
#include "table/kernel_types.h"
#include "kernels/mul_mat_panels.h"
#include "math.h"

enum { UNIT_SUMS = AGK_PANEL_SUMS / 2 };

/* 8 rows x 8 columns at a time. */
void agk_mm_panels_put_avx2(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t row = 0; row < rows; row += 8) {
        const float *of_panel = sums + (size_t)(row / AGK_PANEL_ROWS) * panel_sums + row % AGK_PANEL_ROWS * 16;
        for (int64_t col = 0; col < cols; col += 8) {
            const float *from = of_panel + col / 16 * UNIT_SUMS + col % 16;
            char *to = (char *)(c + row) + (size_t)col * ldc;
            vf r[8];
            AGK_UNROLL for (int i = 0; i < 8; ++i) r[i] = v_load(from + 16 * i);
            v_transpose(r);
            AGK_UNROLL for (int j = 0; j < 8; ++j, to += ldc)
            {
                if (col + j >= cols) break;
                if (rows - row >= 8)
                    v_store((float *)(void *)to, r[j]);
                else
                    v_store_n((float *)(void *)to, r[j], rows - row);
            }
        }
    }
}
