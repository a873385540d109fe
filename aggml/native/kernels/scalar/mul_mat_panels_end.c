/* The epilogue of sums in lanes (agk_mm_end) in plain C. The variants are compared with it; no product uses it. Packed
 * columns are made of columns of floats by the functions that pack them elsewhere. */
#include "mul_mat_terms.h"
#include "kernels/mul_mat_bytes.h"

static void pack(const agk_mm_end *e, int64_t n, const float *columns, char *unit)
{
    const size_t stride = STEP * sizeof(float);
    if (e->form == AGK_COLUMNS_PAIRS) {
        agk_mm_pairs_columns_scalar(1, STEP, n, columns, stride, unit);
    } else if (e->form == AGK_COLUMNS_FLOATS) {
        memset(unit, 0, UNIT * stride);
        for (int64_t k = 0; k < STEP; ++k) {
            for (int64_t j = 0; j < n; ++j) memcpy(unit + 4 * (k * UNIT + j), &columns[j * STEP + k], 4);
        }
    } else {
        agk_mm_col_q8 q8[UNIT];
        for (int64_t j = 0; j < n; ++j) agk_mm_columns_q8_scalar(columns + j * STEP, &q8[j], STEP);
        agk_mm_bytes_columns_scalar(e->form == AGK_COLUMNS_BYTES_HALVES, false, STEP, n, q8, sizeof q8[0], unit);
    }
}

void agk_mm_panels_end_scalar(const agk_mm_end *e, const float *sums, size_t panel_sums, int64_t rows, int64_t cols)
{
    float columns[UNIT][STEP];
    for (int64_t col = 0; col < cols; ++col) {
        for (int64_t row = 0; row < rows; ++row) {
            const size_t at =
                (size_t)(row / 32) * panel_sums + (size_t)(col / 32 * AGK_PANEL_SUMS + row % 32 * 32 + col % 32);
            const float x = apply_end(e, row, col, sums[at]);
            if (e->units != NULL) {
                columns[col % UNIT][row] = x;
                continue;
            }
            char *c = (char *)e->c + (size_t)col * e->ldc;
            if (e->narrow) {
                const uint16_t bits = rounded(x);
                memcpy(c + 2 * row, &bits, 2);
            } else {
                memcpy(c + 4 * row, &x, 4);
            }
        }
        if (e->units == NULL || (col % UNIT != UNIT - 1 && col != cols - 1)) continue;
        pack(e, col % UNIT + 1, columns[0], e->units + (size_t)(col / UNIT) * e->ld_unit);
    }
}
