/* The portable kernels of bytes (mul_mat_bytes.h), with which the variants are compared; no product uses them. Also
 * here: which types have codes that can be bytes. */
#include <math.h>

#include "table/kernel_types.h"
#include "kernels/mul_mat_bytes.h"
#include "formats/quant.h"

enum { HALF = 16, BLOCK = AGK_MM_BLOCK, UNIT = AGK_MM_UNIT };

/* All quantized types except those that only columns have. */
agk_code_traits agk_code_traits_of(int type)
{
    static const agk_code_traits of[AGK_TYPE_COUNT] = {
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, bytes, alignment, group, dot, reads, writes, fits, write_ns, \
                 scale, lowest) \
    [id] = {.served = (scale) > 0 && AGK_##dot != AGK_NONE, \
            .minimum = (lowest) != 0, \
            .halves = (scale) == 16, \
            .wide = (block) == 256},
#include "table/types.def"
    };
    return type >= 0 && type < AGK_TYPE_COUNT ? of[type] : (agk_code_traits){.served = false};
}

/* By way of floats, rounded to 1 / 127 of the largest of each 32. Only the variants use the codes of the type. */
void agk_mm_bytes_rows_scalar(int type, bool words, const void *src, void *out, int64_t n)
{
    (void)words;
    agk_bytes_row *y = out;
    float x[256];
    const int64_t at_once = agk_traits(type)->blck_size > BLOCK ? agk_traits(type)->blck_size : BLOCK;
    for (int64_t i = 0; i < n; i += at_once) {
        agk_traits(type)->to_float((const char *)src + agk_row_size(type, i), x, at_once);
        for (int64_t j = 0; j < at_once; j += BLOCK, y += 2) {
            float most = 0.0f;
            for (int e = 0; e < BLOCK; ++e) most = fmaxf(most, fabsf(x[j + e]));
            for (int e = 0; e < BLOCK; ++e) {
                y[e / HALF].d = most / 127.0f;
                y[e / HALF].minimum = 0.0f;
                y[e / HALF].q[e % HALF] = (uint8_t)(128 + (most > 0.0f ? (int)lrintf(x[j + e] / most * 127.0f) : 0));
            }
        }
    }
}

/* The same: the scalar product takes every piece's own scale. */
void agk_mm_bytes_scaled_rows_scalar(int type, bool words, const void *src, void *out, int64_t n)
{
    agk_mm_bytes_rows_scalar(type, words, src, out, n);
}

void agk_mm_bytes_columns_scalar(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_bytes_unit *y = out;
    memset(out, 0, (size_t)(k / BLOCK) * sizeof *y);
    for (int64_t i = 0; i < k / BLOCK; ++i, ++y) {
        for (int64_t j = 0; j < cols; ++j) {
            const char *column = (const char *)b + (size_t)j * ldb;
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)column + i / 2;
            y->d[j] = x->d[i & 1];
            for (int e = 0; e < BLOCK; ++e) {
                const int8_t q = x->q[(i & 1) * BLOCK + e];
                y->q[e / 4][j][e % 4] = q;
                y->start[halves ? e / HALF : 0][j] -= 128 * q;
            }
            for (int h = 0; h < 2; ++h) y->sum[h][j] = (wide ? 1.0f : y->d[j]) * (float)(y->start[h][j] / -128);
        }
    }
}

void agk_mm_bytes_floats_scalar(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    enum { MOST = 256 };
    agk_mm_col_q8 q8[UNIT][MOST / (2 * BLOCK)];
    for (int64_t i = 0; i < k; i += MOST) {
        const int64_t n = k - i < MOST ? k - i : MOST;
        for (int64_t j = 0; j < cols; ++j) {
            const float *x = (const float *)(const void *)((const char *)b + (size_t)j * ldb) + i;
            (wide ? agk_mm_columns_q8_wide_scalar : agk_mm_columns_q8_scalar)(x, q8[j], n);
        }
        agk_bytes_unit *y = (agk_bytes_unit *)out + i / BLOCK;
        agk_mm_bytes_columns_scalar(halves, wide, n, cols, q8, sizeof q8[0], y);
    }
}

void agk_mm_bytes_product_scalar(const agk_mm_panel *p)
{
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            const char *unit = p->b + (size_t)(col / UNIT) * p->ldb, *from = p->a + (size_t)row * p->lda;
            const agk_bytes_unit *b = (const agk_bytes_unit *)(const void *)unit;
            const agk_bytes_row *a = (const agk_bytes_row *)(const void *)from;
            float *to = &p->sums[col / 32 * AGK_PANEL_SUMS + row * 32 + col % 32];
            double sum = p->first ? 0.0 : (double)*to;
            for (int64_t k = 0; k < p->k; ++k) {
                const agk_bytes_row *x = &a[k / HALF];
                const agk_bytes_unit *y = &b[k / BLOCK];
                const double value = (double)x->d * (x->q[k % HALF] - 128) + (double)(p->minimum ? x->minimum : 0.0f);
                sum += value * (double)y->d[col % UNIT] * y->q[k % BLOCK / 4][col % UNIT][k % 4];
            }
            *to = (float)sum;
        }
    }
}
