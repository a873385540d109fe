/* iq3_xxs and iq3_s: 4 elements are a point of a codebook, 8 share a byte of signs; bit for bit as recorded.
 *
 * Not here: the fit of a block (quant_iq_fit.c), vectorised rows (kernels/vec/dequant_iq.h). */
#include "quant_iq_fit.h"

#include "quant.h"

static const agk_iq_scheme iq3_xxs = {
    agk_iq3_xxs_book, 32, 15, 0.2f, 1e-8f, 2.0f, true, false, AGK_IQ_THOSE_OFF, AGK_IQ_SQUARE,
};
/* Every group is fitted except a group of zeros. */
static const agk_iq_scheme iq3_s = {
    agk_iq3_s_book, 32, 9, 0.2f, 0x1p-149f, 2.0f, false, false, AGK_IQ_ALL_IF_OFF, AGK_IQ_SQUARE,
};

static void put(float *dst, float d, const uint8_t *magnitude, unsigned signs)
{
    for (int i = 0; i < 4; ++i) dst[i] = d * (float)(signs >> i & 1 ? -magnitude[i] : magnitude[i]);
}

void agk_iq3_xxs_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq3_xxs *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int g = 0; g < 8; ++g) {
            uint32_t word;
            memcpy(&word, x->scales_and_signs + 4 * g, sizeof word);
            const float step = d * (0.5f + (float)(word >> 28)) * 0.5f;
            for (int k = 0; k < 8; ++k, dst += 4) {
                const unsigned signs = agk_iq_even_signs(word >> 7 * (k / 2) & 127);
                put(dst, step, agk_iq3_xxs_grid[x->qs[8 * g + k]], signs >> 4 * (k & 1));
            }
        }
    }
}

void agk_quantize_iq3_xxs(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq3_xxs *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) {
        agk_iq_group group[8];
        const float most = agk_iq_fit_block(&iq3_xxs, src + i, imatrix != NULL ? imatrix + i % n_per_row : NULL, group);
        const float d = most / 31.0f;
        memset(y, 0, sizeof *y);
        if (most == 0.0f) continue;
        y->d = agk_f16_from_float(d * 1.0125f); /* the factor was found by trial; it is ggml's */
        for (int g = 0; g < 8; ++g) {
            uint32_t word = (uint32_t)agk_iq_level(1.0f / d * group[g].scale, 15) << 28;
            for (int k = 0; k < 4; ++k) word |= (uint32_t)group[g].signs[k] << 7 * k;
            for (int k = 0; k < 8; ++k) y->qs[8 * g + k] = (uint8_t)group[g].point[k];
            memcpy(y->scales_and_signs + 4 * g, &word, sizeof word);
        }
    }
}

void agk_iq3_s_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq3_s *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int k = 0; k < 64; ++k, dst += 4) {
            const float step = d * (float)(1 + 2 * (x->scales[k / 16] >> (k & 8) / 2 & 15));
            const int point = x->qs[k] | (x->qh[k / 8] >> (k & 7) & 1) << 8;
            put(dst, step, agk_iq3_s_grid[point], x->signs[k / 2] >> 4 * (k & 1));
        }
    }
}

/* As in ggml, a group of zeros takes no space in qs and signs, though it does in qh and scales. So the groups after
 * it in the block are read back from the wrong place. This is kept because the bytes have to be the same. */
void agk_quantize_iq3_s(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq3_s *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) {
        agk_iq_group group[8];
        const float most = agk_iq_fit_block(&iq3_s, src + i, imatrix != NULL ? imatrix + i % n_per_row : NULL, group);
        const float d = most / 31.0f;
        memset(y, 0, sizeof *y);
        if (most != 0.0f) y->d = agk_f16_from_float(d * 1.033f); /* the factor was found by trial; it is ggml's */
        for (int g = 0, place = 0; g < 8; ++g) {
            if (most != 0.0f) {
                const int scale = agk_iq_level(1.0f / d * group[g].scale, 15);
                y->scales[g / 2] |= (uint8_t)(scale << 4 * (g & 1));
            }
            if (!group[g].fitted) continue;
            memcpy(y->signs + 4 * place, group[g].signs, sizeof group[g].signs);
            for (int k = 0; k < 8; ++k) {
                y->qs[8 * place + k] = (uint8_t)group[g].point[k];
                y->qh[g] |= (uint8_t)(group[g].point[k] >> 8 << k);
            }
            ++place;
        }
    }
}
