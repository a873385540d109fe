/* Sums of panels to columns of the result, in plain C; its order of sums is that of the plain C kernels alone. */
#include "kernels/mul_mat_panels.h"
#include "table/kernel_types.h"

void agk_mm_panels_put_scalar(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t col = 0; col < cols; ++col) {
        float *out = (float *)(void *)((char *)c + (size_t)col * ldc);
        for (int64_t row = 0; row < rows; ++row) {
            out[row] =
                sums[(size_t)(row / 32) * panel_sums + (size_t)(col / 32 * AGK_PANEL_SUMS + row % 32 * 32 + col % 32)];
        }
    }
}
