/* The portable kernel of floats, with which the variants are compared; no product uses it. */
#include "kernels/mul_mat_panels.h"
#include "table/kernel_types.h"

enum { UNIT = AGK_MM_UNIT };

/* Whole numbers: units [k][16 columns], a panel [k / 16][32 rows][16]. */
void agk_mm_floats_product_scalar(const agk_mm_panel *p)
{
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            const float *a = (const float *)(const void *)p->a + 16 * row;
            const float *b = (const float *)(const void *)(p->b + (size_t)(col / UNIT) * p->ldb) + col % UNIT;
            float *to = &p->sums[col / 32 * AGK_PANEL_SUMS + row * 32 + col % 32];
            double sum = p->first ? 0.0 : (double)*to;
            for (int64_t k = 0; k < p->k; ++k) {
                sum += (double)a[k / 16 * 16 * AGK_PANEL_ROWS + k % 16] * (double)b[k * UNIT];
            }
            *to = (float)sum;
        }
    }
}
