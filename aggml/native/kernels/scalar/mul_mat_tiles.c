/* The portable kernels of tiles: columns and rows as bf16 terms, in the layout of matrix tiles. The tiles of AMX are
 * compared with them; no product uses them. */
#include "mul_mat_terms.h"

bool agk_mm_tiles_columns_scalar(int terms, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    uint16_t *y = out;
    bool fine = true;
    memset(out, 0, agk_terms_unit_bytes(terms, k));
    for (int64_t j = 0; j < cols; ++j) {
        const float *x = (const float *)(const void *)((const char *)b + (size_t)j * ldb);
        for (int64_t i = 0; i < k; ++i) {
            uint16_t term[3];
            fine = split(terms, x[i], term) && fine;
            for (int t = 0; t < terms; ++t) y[(i / STEP * terms + t) * TILE + j * STEP + i % STEP] = term[t];
        }
    }
    return fine;
}

void agk_mm_tiles_rows_bf16_scalar(int64_t k, int64_t rows, const void *a, size_t lda, void *out)
{
    uint16_t *y = out;
    memset(out, 0, agk_terms_unit_bytes(1, k));
    for (int64_t j = 0; j < rows; ++j) {
        for (int64_t i = 0; i < k; ++i) {
            memcpy(&y[i / STEP * TILE + i % STEP / 2 * (2 * UNIT) + 2 * j + (i & 1)],
                   (const char *)a + (size_t)j * lda + 2 * i, 2);
        }
    }
}

void agk_mm_tiles_rows_iq_scalar(int type, const void *src, void *out, int64_t n)
{
    const size_t size = agk_row_size(type, 256);
    const char *x = src;
    uint16_t *y = out;
    float values[256];
    for (; n >= 256; n -= 256, x += size, y += 256) {
        agk_traits(type)->to_float(x, values, 256);
        agk_f32_to_bf16_scalar(values, y, 256);
    }
}

/* The products of a panel on tiles: the terms of both sides are those of `product`, in another layout. */
static double product_on_tiles(const agk_mm_panel *p, int64_t row, int64_t col)
{
    const char *a = p->a + (size_t)(row / UNIT) * p->lda, *b = p->b + (size_t)(col / UNIT) * p->ldb;
    double sum = 0.0;
    for (int64_t i = 0; i < p->k; ++i) {
        for (int t = 0; t < p->terms; ++t) {
            for (int u = 0; t + u < p->terms; ++u) {
                const int64_t pair = i % STEP / 2 * (2 * UNIT) + row % UNIT * 2 + (i & 1);
                const float x = bf16(a, (i / STEP * p->terms + t) * TILE + pair);
                sum += (double)x * (double)bf16(b, (i / STEP * p->terms + u) * TILE + col % UNIT * STEP + i % STEP);
            }
        }
    }
    return sum;
}

void agk_mm_tiles_product_scalar(const agk_mm_panel *p)
{
    const agk_mm_end *e = p->end;
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            float *sum = &p->sums[col / 32 * AGK_PANEL_SUMS + row * 32 + col % 32];
            float x = (float)((p->first ? 0.0 : (double)*sum) + product_on_tiles(p, row, col));
            if (e == NULL) {
                *sum = x;
                continue;
            }
            x = apply_end(e, row, col, x);
            if (e->units == NULL && e->narrow) {
                const uint16_t bits = rounded(x);
                memcpy((char *)e->c + (size_t)col * e->ldc + 2 * row, &bits, 2);
                continue;
            }
            if (e->units == NULL) {
                ((float *)(void *)((char *)e->c + (size_t)col * e->ldc))[row] = x;
                continue;
            }
            const uint16_t bits = rounded(x);
            memcpy(e->units + (size_t)(col / UNIT) * e->ld_unit + col % UNIT * (2 * STEP) + 2 * row, &bits, 2);
        }
        if (e == NULL || e->units == NULL) continue;
        char *line = e->units + (size_t)(col / UNIT) * e->ld_unit + col % UNIT * (2 * STEP);
        memset(line + 2 * p->rows, 0, (size_t)(2 * (STEP - p->rows)));
    }
}
