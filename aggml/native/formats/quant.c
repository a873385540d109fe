/* q8_0 and q4_0: the portable quantizers, bit for bit as recorded, and exact dequantization.
 *
 * Not here: vector variants (to_f32.c and f32_to.c of each folder of kernels/). Sources that are not finite give
 * meaningless blocks, but never undefined behaviour. */
#include <math.h>

#include "table/kernel_types.h"
#include "quant.h"
#include "quant_search.h"

enum { BLOCK = 32 };

void agk_f32_to_q8_0_scalar(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        float largest = 0.0f;
        for (int i = 0; i < BLOCK; ++i) largest = agk_absf(src[i]) > largest ? agk_absf(src[i]) : largest;
        const float d = largest / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        y->d = agk_f16_from_float(d);
        for (int i = 0; i < BLOCK; ++i) y->qs[i] = agk_round_i8(src[i] * inverse);
    }
}

void agk_q8_0_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d);
        for (int i = 0; i < BLOCK; ++i) dst[i] = (float)x->qs[i] * d;
    }
}

void agk_q4_0_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d);
        for (int i = 0; i < BLOCK / 2; ++i) {
            dst[i] = (float)((x->qs[i] & 15) - 8) * d;
            dst[i + BLOCK / 2] = (float)((x->qs[i] >> 4) - 8) * d;
        }
    }
}

/* The extreme gets code 0, so the opposite sign has one code less. */
void agk_f32_to_q4_0_scalar(const float *src, void *dst, int64_t n)
{
    agk_block_q4_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        const float d = agk_extreme(BLOCK, src) / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        y->d = agk_f16_from_float(d);
        uint8_t codes[BLOCK];
        agk_codes(BLOCK, src, inverse, 8.5f, 15, codes);
        for (int i = 0; i < BLOCK / 2; ++i) y->qs[i] = (uint8_t)(codes[i] | codes[i + BLOCK / 2] << 4);
    }
}

void agk_quantize_q4_0(const float *src, void *dst, int64_t nrows, int64_t n_per_row, const float *imatrix)
{
    agk_block_q4_0 *y = dst;
    if (imatrix == NULL) {
        agk_f32_to_q4_0_scalar(src, dst, nrows * n_per_row);
        return;
    }
    for (int64_t row = 0; row < nrows; ++row, src += n_per_row) {
        float squares = 0.0f;
        for (int64_t i = 0; i < n_per_row; ++i) squares += src[i] * src[i];
        const float mean = squares / (float)n_per_row;
        for (int64_t block = 0; block < n_per_row / BLOCK; ++block, ++y) {
            const float *x = src + block * BLOCK;
            float weight[BLOCK];
            uint8_t codes[BLOCK];
            for (int i = 0; i < BLOCK; ++i) weight[i] = imatrix[block * BLOCK + i] * sqrtf(mean + x[i] * x[i]);
            y->d = agk_f16_from_float(agk_fit_levels(BLOCK, 8, x, weight, codes));
            for (int i = 0; i < BLOCK / 2; ++i) y->qs[i] = (uint8_t)(codes[i] | codes[i + BLOCK / 2] << 4);
        }
    }
}
