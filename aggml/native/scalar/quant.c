/* q8_0 and q4_0: the portable quantizers, bit for bit as recorded, and exact dequantization.
 *
 * Not here: vectorised variants of the rows (avx2/types.c, avx512/types.c), products (mul_mat.c). Sources that
 * are not finite give blocks without meaning, but never undefined behaviour. */
#include <math.h>

#include "../kernel_types.h"
#include "quant.h"

enum { BLOCK = 32 };

static inline float absf(float x)
{
    return x < 0.0f ? -x : x;
}

/* Halves away from zero, as ggml's; what does not fit (from infinities, NaN or a subnormal scale) becomes 0. */
static inline int8_t round_i8(float x)
{
    if (!(x > -128.5f && x < 127.5f)) return 0;
    const int whole = (int)x;
    const float rest = x - (float)whole;
    return (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

void agk_f32_to_q8_0_scalar(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        float largest = 0.0f;
        for (int i = 0; i < BLOCK; ++i) largest = absf(src[i]) > largest ? absf(src[i]) : largest;
        const float d = largest / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        y->d = agk_f16_from_float(d);
        for (int i = 0; i < BLOCK; ++i) y->qs[i] = round_i8(src[i] * inverse);
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

/* The element of largest magnitude, with its sign; the first of equals. */
static float extreme(const float *x)
{
    float best = 0.0f;
    for (int i = 0; i < BLOCK; ++i) {
        if (absf(x[i]) > absf(best)) best = x[i];
    }
    return best;
}

/* Code 0..15 of x / d: that extreme gets code 0, so the other sign has one code less. */
static inline uint8_t code_q4_0(float x, float inverse)
{
    const float code = x * inverse + 8.5f;
    if (!(code > 0.0f)) return 0;
    return code < 15.0f ? (uint8_t)code : 15;
}

void agk_f32_to_q4_0(const float *src, void *dst, int64_t n)
{
    agk_block_q4_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        const float d = extreme(src) / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        y->d = agk_f16_from_float(d);
        for (int i = 0; i < BLOCK / 2; ++i) {
            y->qs[i] = (uint8_t)(code_q4_0(src[i], inverse) | code_q4_0(src[i + BLOCK / 2], inverse) << 4);
        }
    }
}

/* -8..7, halves to even: adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum. */
static inline int level(float x)
{
    if (!(x > -8.0f)) return -8;
    if (x > 7.0f) return 7;
    const float shifted = x + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x7fffff) - 0x400000;
}

/* The scale d that minimises sum(weight * (x - d * level)^2) for the levels that `inverse` gives is
 * product / square, and d * product is what it takes off the error. */
static float fit(const float *x, const float *weight, float inverse, int *levels, float *product, float *square)
{
    *product = *square = 0.0f;
    for (int i = 0; i < BLOCK; ++i) {
        levels[i] = level(inverse * x[i]);
        const float l = (float)levels[i];
        *product += weight[i] * x[i] * l;
        *square += weight[i] * l * l;
    }
    return *square > 0.0f ? *product / *square : 0.0f;
}

/* Try 19 scales around that of the extreme and keep the one with the least weighted error. */
static float search(const float *x, const float *weight, int *levels)
{
    const float top = extreme(x);
    if (absf(top) < 1e-15f) {
        for (int i = 0; i < BLOCK; ++i) levels[i] = -8;
        return 0.0f;
    }
    float product, square;
    float d = fit(x, weight, -8.0f / top, levels, &product, &square);
    float gain = d * product;
    for (int step = -9; step <= 9; ++step) {
        int trial[BLOCK];
        if (step == 0) continue;
        const float found = fit(x, weight, -(8.0f + 0.1f * (float)step) / top, trial, &product, &square);
        if (square > 0.0f && product * product > gain * square) {
            memcpy(levels, trial, sizeof trial);
            d = found;
            gain = d * product;
        }
    }
    return d;
}

void agk_quantize_q4_0(const float *src, void *dst, int64_t nrows, int64_t n_per_row, const float *imatrix)
{
    agk_block_q4_0 *y = dst;
    if (imatrix == NULL) {
        agk_f32_to_q4_0(src, dst, nrows * n_per_row);
        return;
    }
    for (int64_t row = 0; row < nrows; ++row, src += n_per_row) {
        float squares = 0.0f;
        for (int64_t i = 0; i < n_per_row; ++i) squares += src[i] * src[i];
        const float mean = squares / (float)n_per_row;
        for (int64_t block = 0; block < n_per_row / BLOCK; ++block, ++y) {
            const float *x = src + block * BLOCK;
            float weight[BLOCK];
            int levels[BLOCK];
            for (int i = 0; i < BLOCK; ++i) weight[i] = imatrix[block * BLOCK + i] * sqrtf(mean + x[i] * x[i]);
            y->d = agk_f16_from_float(search(x, weight, levels));
            for (int i = 0; i < BLOCK / 2; ++i) {
                y->qs[i] = (uint8_t)((levels[i] + 8) | (levels[i + BLOCK / 2] + 8) << 4);
            }
        }
    }
}
