/* The portable kernels of mul_mat in bf16 terms: what the tiles of AMX are compared with. Nobody is served by them.
 *
 * Not here: the steps (mul_mat_terms.c). */
#include "table/kernel_types.h"
#include "kernels/mul_mat_terms.h"
#include "formats/quant.h"
#include "lower/unary.h"

enum { STEP = AGK_TERMS_K, TILE = AGK_TERMS_TILE / 2, UNIT = AGK_TERMS_COLS };

static float upper(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t rounded(float x)
{
    uint16_t bits;
    agk_f32_to_bf16_scalar(&x, &bits, 1);
    return bits;
}

static bool split(int terms, float x, uint16_t out[3])
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (int t = 0; t + 1 < terms; ++t) {
        const float term = upper(x);
        out[t] = rounded(term);
        x -= term;
    }
    out[terms - 1] = rounded(x);
    return terms == 1 || agk_terms_can_split(bits);
}

bool agk_mm_terms_cols_scalar(int terms, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
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

bool agk_mm_terms_row_scalar(int terms, int64_t k, const float *x, void *out)
{
    uint16_t *y = out;
    bool fine = true;
    for (int64_t i = 0; i < agk_terms_steps(k) * STEP; ++i) {
        uint16_t term[3];
        fine = split(terms, i < k ? x[i] : 0.0f, term) && fine;
        for (int t = 0; t < terms; ++t) y[(i / STEP * terms + t) * 2 * TILE + i % STEP] = term[t];
    }
    return fine;
}

void agk_mm_terms_bf16_scalar(const void *src, void *out, int64_t k)
{
    for (int64_t i = 0; i < k; i += STEP) {
        const size_t n = (size_t)(k - i < STEP ? k - i : STEP);
        char *to = (char *)out + (size_t)(i / STEP) * 2 * AGK_TERMS_TILE;
        memset(to, 0, 2 * STEP);
        memcpy(to, (const char *)src + 2 * i, 2 * n);
    }
}

/* -- on tiles ------------------------------------------------------------------------------------------------- */

bool agk_mm_tiles_cols_scalar(int terms, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
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

void agk_mm_tiles_rows_scalar(int64_t k, int64_t rows, const void *a, size_t lda, void *out)
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

void agk_mm_iq_bf16_scalar(int type, const void *src, void *out, int64_t n)
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

static float bf16(const char *at, int64_t i)
{
    uint16_t bits;
    float value;
    memcpy(&bits, at + 2 * i, sizeof bits);
    const uint32_t wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static double product(const agk_terms_panel *p, int64_t row, int64_t col)
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

/* The products of a panel on tiles: the terms of both sides as in `product`, which lie otherwise. */
static double product_on_tiles(const agk_terms_panel *p, int64_t row, int64_t col)
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

void agk_mm_tiles_panel_scalar(const agk_terms_panel *p)
{
    const agk_terms_end *e = p->end;
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            float *sum = &p->sums[col / 32 * AGK_TERMS_SUMS + row * 32 + col % 32];
            float x = (float)((p->first ? 0.0 : (double)*sum) + product_on_tiles(p, row, col));
            if (e == NULL) {
                *sum = x;
                continue;
            }
            if (e->bias != NULL) x += e->bias[row];
            if (e->act >= 0) agk_unary_f32_scalar(e->act, 1, &x, &x);
            const char *other = e->other + (size_t)col * e->ld_other;
            if (e->other != NULL) x += ((const float *)(const void *)other)[row];
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

/* -- in lanes ------------------------------------------------------------------------------------------------- */

/* The sums of a pair of units are [32 rows][32 columns] here. */
void agk_mm_terms_tile_scalar(const agk_terms_panel *p)
{
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            float *sum = &p->sums[col / 32 * AGK_TERMS_SUMS + row * 32 + col % 32];
            *sum = (float)((p->first ? 0.0 : (double)*sum) + product(p, row, col));
        }
    }
}

/* Whole numbers: units [k][16 columns], a panel [k / 16][32 rows][16]. */
void agk_mm_lanes_tile_scalar(const agk_terms_panel *p)
{
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            const float *a = (const float *)(const void *)p->a + 16 * row;
            const float *b = (const float *)(const void *)(p->b + (size_t)(col / UNIT) * p->ldb) + col % UNIT;
            float *to = &p->sums[col / 32 * AGK_TERMS_SUMS + row * 32 + col % 32];
            double sum = p->first ? 0.0 : (double)*to;
            for (int64_t k = 0; k < p->k; ++k) {
                sum += (double)a[k / 16 * 16 * AGK_TERMS_ROWS + k % 16] * (double)b[k * UNIT];
            }
            *to = (float)sum;
        }
    }
}

void agk_mm_terms_put_scalar(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t col = 0; col < cols; ++col) {
        float *out = (float *)(void *)((char *)c + (size_t)col * ldc);
        for (int64_t row = 0; row < rows; ++row) {
            out[row] =
                sums[(size_t)(row / 32) * panel_sums + (size_t)(col / 32 * AGK_TERMS_SUMS + row % 32 * 32 + col % 32)];
        }
    }
}
