/* The portable kernels of shorts (mul_mat_shorts.h), with which the variants are compared; no product uses them. */
#include <math.h>

#include "table/kernel_types.h"
#include "kernels/mul_mat_shorts.h"
#include "formats/quant.h"

enum { HALF = 16, BLOCK = AGK_MM_BLOCK, UNIT = AGK_MM_UNIT };

int agk_short_fours(int type)
{
    switch (type) {
    case AGK_Q8_0:
    case AGK_IQ4_NL:
    case AGK_IQ4_XS: return 0;
    case AGK_IQ2_XXS:
    case AGK_IQ2_XS:
    case AGK_IQ2_S:
    case AGK_IQ3_XXS: return 1;
    case AGK_Q6_K: return 2;
    case AGK_Q5_0:
    case AGK_Q5_1:
    case AGK_Q5_K:
    case AGK_MXFP4:
    case AGK_IQ3_S:
    case AGK_IQ1_S: return 4;
    default: return agk_code_traits_of(type).halves ? 4 : 8;
    }
}

static int element(const agk_short_row *x, bool words, int e)
{
    static const int at[4] = {0, 2, 1, 3};
    return words ? x->words[e / 4 * 4 + at[e % 4]] : x->q[e];
}

/* By way of floats. Only the variants use the codes of the type. */
void agk_mm_shorts_rows_scalar(int type, bool words, const void *src, void *out, int64_t n)
{
    const agk_code_traits t = agk_code_traits_of(type);
    const int fours = agk_short_fours(type), most_code = fours == 0 ? 127 : 64 / fours;
    const int64_t at_once = t.wide ? 256 : BLOCK, block = agk_traits(type)->blck_size;
    float x[256];
    char *to = out;
    for (int64_t i = 0; i < n; i += at_once) {
        if (i % block == 0 || block < at_once) {
            agk_traits(type)->to_float((const char *)src + agk_row_size(type, i), x, block > at_once ? block : at_once);
        }
        const float *values = x + (block > at_once ? i % block : 0);
        float most = 0.0f;
        for (int64_t e = 0; e < at_once; ++e) most = fmaxf(most, fabsf(values[e]));
        agk_short_row *first = (agk_short_row *)(void *)to;
        int32_t total = 0;
        for (int64_t j = 0; j < at_once; j += BLOCK, to += agk_short_row_bytes(words)) {
            agk_short_row *y = (agk_short_row *)(void *)to;
            memset(y, 0, agk_short_row_bytes(words));
            y->unit = most / (float)most_code;
            y->d[0] = y->d[1] = y->unit;
            y->factor[0] = y->factor[1] = 0x10001;
            for (int e = 0; e < BLOCK; ++e) {
                const int q = most > 0.0f ? (int)lrintf(values[j + e] / most * (float)most_code) : 0;
                if (words)
                    y->words[e / 4 * 4 + (e % 4 == 1 ? 2 : e % 4 == 2 ? 1 : e % 4)] = (int16_t)q;
                else
                    y->q[e] = (int8_t)q;
                y->start[t.halves ? e / HALF : 0] -= 128 * q;
                total -= 128 * q;
            }
        }
        first->total = total;
    }
}

void agk_mm_shorts_columns_scalar(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_short_unit *y = out;
    for (int64_t i = 0; i < k / BLOCK; ++i, ++y) {
        memset(y, 0, sizeof *y);
        memset(y->q, 128, sizeof y->q);
        for (int64_t j = 0; j < cols; ++j) {
            const char *column = (const char *)b + (size_t)j * ldb;
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)column + i / 2;
            int32_t sum[2] = {0, 0};
            y->d[j] = x->d[i & 1];
            for (int e = 0; e < BLOCK; ++e) {
                const int8_t q = x->q[(i & 1) * BLOCK + e];
                y->q[e / 4][j][e % 4] = (uint8_t)(q + 128);
                sum[halves ? e / HALF : 0] += q;
            }
            for (int h = 0; h < 2; ++h) y->sum[h][j] = (wide ? 1.0f : y->d[j]) * (float)sum[h];
        }
    }
}

void agk_mm_shorts_product_scalar(const agk_mm_panel *p)
{
    for (int64_t col = 0; col < p->cols; ++col) {
        for (int64_t row = 0; row < p->rows; ++row) {
            const char *unit = p->b + (size_t)(col / UNIT) * p->ldb, *a = p->a + (size_t)row * p->lda;
            const agk_short_unit *b = (const agk_short_unit *)(const void *)unit;
            float *to = &p->sums[col / 32 * AGK_PANEL_SUMS + row * 32 + col % 32];
            double sum = p->first ? 0.0 : (double)*to;
            for (int64_t k = 0; k < p->k; ++k) {
                const int e = (int)(k % BLOCK), h = p->halves ? e / HALF : 0;
                const agk_short_row *x =
                    (const agk_short_row *)(const void *)(a + (size_t)(k / BLOCK) * agk_short_row_bytes(p->fours == 0));
                const agk_short_unit *y = &b[k / BLOCK];
                const double value =
                    (double)x->d[h] * element(x, p->fours == 0, e) + (double)(p->minimum ? x->minimum[h] : 0.0f);
                sum += value * (double)y->d[col % UNIT] * (y->q[e / 4][col % UNIT][e % 4] - 128);
            }
            *to = (float)sum;
        }
    }
}
