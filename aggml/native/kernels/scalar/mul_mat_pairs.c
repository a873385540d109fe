/* The portable kernels of pairs: columns and rows as bf16 terms, in lanes. The variants are compared with them; no
 * product uses them. */
#include "mul_mat_terms.h"

bool agk_mm_pairs_columns_scalar(int terms, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    uint16_t *y = out;
    bool fine = true;
    memset(out, 0, agk_terms_unit_bytes(terms, k));
    for (int64_t j = 0; j < cols; ++j) {
        const float *x = (const float *)(const void *)((const char *)b + (size_t)j * ldb);
        for (int64_t i = 0; i < k; ++i) {
            uint16_t term[3];
            fine = split(terms, x[i], term) && fine;
            for (int t = 0; t < terms; ++t) {
                y[(i / STEP * terms + t) * TILE + i % STEP / 2 * (2 * UNIT) + 2 * j + (i & 1)] = term[t];
            }
        }
    }
    return fine;
}

bool agk_mm_pairs_rows_scalar(int terms, int64_t k, const float *x, void *out)
{
    uint16_t *y = out;
    bool fine = true;
    for (int64_t i = 0; i < agk_panel_steps(k) * STEP; ++i) {
        uint16_t term[3];
        fine = split(terms, i < k ? x[i] : 0.0f, term) && fine;
        for (int t = 0; t < terms; ++t) y[(i / STEP * terms + t) * 2 * TILE + i % STEP] = term[t];
    }
    return fine;
}

void agk_mm_pairs_rows_bf16_scalar(const void *src, void *out, int64_t k)
{
    for (int64_t i = 0; i < k; i += STEP) {
        const size_t n = (size_t)(k - i < STEP ? k - i : STEP);
        char *to = (char *)out + (size_t)(i / STEP) * 2 * AGK_TERMS_TILE;
        memset(to, 0, 2 * STEP);
        memcpy(to, (const char *)src + 2 * i, 2 * n);
    }
}

static double product(const agk_mm_panel *p, int64_t row, int64_t col)
{
    const char *b = p->b + (size_t)(col / UNIT) * p->ldb;
    double sum = 0.0;
    for (int64_t i = 0; i < p->k; ++i) {
        for (int t = 0; t < p->terms; ++t) {
            for (int u = 0; t + u < p->terms; ++u) {
                const float x = bf16(p->a, (i / STEP * p->terms + t) * 2 * TILE + row * STEP + i % STEP);
                const int64_t pair = i % STEP / 2 * (2 * UNIT) + col % UNIT * 2 + (i & 1);
                sum += (double)x * (double)bf16(b, (i / STEP * p->terms + u) * TILE + pair);
            }
        }
    }
    return sum;
}

/* The sums of a pair of units are [32 rows][32 columns] here. */
void agk_mm_pairs_product_scalar(const agk_mm_panel *p)
{
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            float *sum = &p->sums[col / 32 * AGK_PANEL_SUMS + row * 32 + col % 32];
            *sum = (float)((p->first ? 0.0 : (double)*sum) + product(p, row, col));
        }
    }
}
