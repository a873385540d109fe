/* iq2_xxs, iq2_xs, iq2_s: 8 elements are a point of a codebook and signs; bit for bit as recorded.
 *
 * Not here: the fit of a block (quant_iq_fit.c), vectorised rows (kernels/vec/dequant_iq.h). */
#include "quant_iq_fit.h"

#include "quant.h"

static const agk_iq_scheme iq2_xxs = {
    agk_iq2_xxs_book, 32, 6, 0.1f, 1e-15f, 1.0f, true, true, AGK_IQ_ALL, AGK_IQ_SQUARE,
};
static const agk_iq_scheme iq2_xs = {
    agk_iq2_xs_book, 16, 9, 0.1f, 1e-15f, 1.0f, true, false, AGK_IQ_THOSE_OFF, AGK_IQ_SQUARE,
};
static const agk_iq_scheme iq2_s = {
    agk_iq2_s_book, 16, 9, 0.1f, 1e-8f, 2.0f, false, false, AGK_IQ_THOSE_OFF, AGK_IQ_SQUARE_AND_MEAN,
};

/* 8 values of a point; d * (-m) is -(d * m), whatever d. */
static void put(float *dst, float d, const uint8_t *magnitude, unsigned signs)
{
    for (int i = 0; i < 8; ++i) dst[i] = d * (float)(signs >> i & 1 ? -magnitude[i] : magnitude[i]);
}

static float step_of(float d, unsigned scale)
{
    return d * (0.5f + (float)scale) * 0.25f;
}

/* The nibble of each group's scale, in units of `inverse`. */
static unsigned nibble(float inverse, const agk_iq_group *group)
{
    return (unsigned)agk_iq_level(inverse * group->scale, 15);
}

void agk_iq2_xxs_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq2_xxs *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int g = 0; g < 8; ++g) {
            uint32_t word[2];
            memcpy(word, x->qs + 4 * g, sizeof word);
            const float step = step_of(d, word[1] >> 28);
            for (int k = 0; k < 4; ++k, dst += 8) {
                put(dst, step, agk_iq2_xxs_grid[word[0] >> 8 * k & 255], agk_iq_even_signs(word[1] >> 7 * k & 127));
            }
        }
    }
}

void agk_quantize_iq2_xxs(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq2_xxs *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) {
        agk_iq_group group[8];
        const float most = agk_iq_fit_block(&iq2_xxs, src + i, imatrix + i % n_per_row, group);
        const float d = most / 31.0f;
        memset(y, 0, sizeof *y);
        if (most == 0.0f) continue;
        y->d = agk_f16_from_float(d);
        for (int g = 0; g < 8; ++g) {
            uint32_t word[2] = {0, nibble(1.0f / d, &group[g]) << 28};
            for (int k = 0; k < 4; ++k) {
                word[0] |= (uint32_t)group[g].point[k] << 8 * k;
                word[1] |= (uint32_t)group[g].signs[k] << 7 * k;
            }
            memcpy(y->qs + 4 * g, word, sizeof word);
        }
    }
}

void agk_iq2_xs_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq2_xs *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int k = 0; k < 32; ++k, dst += 8) {
            const float step = step_of(d, x->scales[k / 4] >> (k & 2) * 2 & 15);
            put(dst, step, agk_iq2_xs_grid[x->qs[k] & 511], agk_iq_even_signs(x->qs[k] >> 9));
        }
    }
}

void agk_quantize_iq2_xs(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq2_xs *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) {
        agk_iq_group group[16];
        const float most = agk_iq_fit_block(&iq2_xs, src + i, imatrix + i % n_per_row, group);
        const float d = most / 31.0f;
        memset(y, 0, sizeof *y);
        if (most == 0.0f) continue;
        y->d = agk_f16_from_float(d);
        for (int g = 0; g < 16; ++g) {
            y->scales[g / 2] |= (uint8_t)(nibble(1.0f / d, &group[g]) << 4 * (g & 1));
            for (int k = 0; k < 2; ++k) {
                y->qs[2 * g + k] = (uint16_t)(group[g].point[k] | group[g].signs[k] << 9);
            }
        }
    }
}

void agk_iq2_s_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq2_s *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int k = 0; k < 32; ++k, dst += 8) {
            const float step = step_of(d, x->scales[k / 4] >> (k & 2) * 2 & 15);
            const int point = x->qs[k] | (x->qh[k / 4] >> 2 * (k & 3) & 3) << 8;
            put(dst, step, agk_iq2_s_grid[point], x->signs[k]);
        }
    }
}

void agk_quantize_iq2_s(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq2_s *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) {
        agk_iq_group group[16];
        const float most = agk_iq_fit_block(&iq2_s, src + i, imatrix != NULL ? imatrix + i % n_per_row : NULL, group);
        const float d = most / 31.0f;
        memset(y, 0, sizeof *y);
        if (most != 0.0f) y->d = agk_f16_from_float(d * 0.9875f); /* the factor was found by trial; it is ggml's */
        for (int g = 0; g < 16; ++g) {
            if (most != 0.0f) y->scales[g / 2] |= (uint8_t)(nibble(1.0f / d, &group[g]) << 4 * (g & 1));
            for (int k = 2 * g; k < 2 * g + 2; ++k) {
                y->qs[k] = (uint8_t)group[g].point[k & 1];
                y->qh[k / 4] |= (uint8_t)(group[g].point[k & 1] >> 8 << 2 * (k & 3));
                y->signs[k] = group[g].signs[k & 1];
            }
        }
    }
}
