/* q4_1, q5_0, q5_1, q8_1: blocks of 32 with one scale, and for the _1 types one minimum (of q8_1: a sum).
 *
 * Bytes as recorded. Not here: q4_0 and q8_0 (quant.c), searches (quant_search.c). */
#include <math.h>
#include <string.h>

#include "quant.h"
#include "quant_search.h"

enum { BLOCK = 32, HALF = BLOCK / 2 };

static uint32_t high_bits(const uint8_t *qh)
{
    uint32_t bits;
    memcpy(&bits, qh, sizeof bits);
    return bits;
}

static void put_nibbles(uint8_t *qs, const uint8_t *codes)
{
    for (int i = 0; i < HALF; ++i) qs[i] = (uint8_t)((codes[i] & 15) | (codes[i + HALF] & 15) << 4);
}

static void put_five_bits(uint8_t *qh, uint8_t *qs, const uint8_t *codes)
{
    uint32_t bits = 0;
    for (int i = 0; i < BLOCK; i += 8) { /* one bit of each of 8 bytes, gathered by a product */
        uint64_t eight;
        memcpy(&eight, codes + i, sizeof eight);
        bits |= (uint32_t)((eight >> 4 & 0x0101010101010101u) * 0x0102040810204080u >> 56) << i;
    }
    memcpy(qh, &bits, sizeof bits);
    put_nibbles(qs, codes);
}

/* --- to float --- */

void agk_q4_1_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q4_1 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d), m = agk_f16_to_float(x->m);
        for (int i = 0; i < HALF; ++i) {
            dst[i] = (float)(x->qs[i] & 15) * d + m;
            dst[i + HALF] = (float)(x->qs[i] >> 4) * d + m;
        }
    }
}

void agk_q5_0_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q5_0 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d);
        const uint32_t high = high_bits(x->qh);
        for (int i = 0; i < HALF; ++i) {
            dst[i] = (float)((int)((x->qs[i] & 15) | (high >> i & 1) << 4) - 16) * d;
            dst[i + HALF] = (float)((int)(x->qs[i] >> 4 | (high >> (i + HALF) & 1) << 4) - 16) * d;
        }
    }
}

void agk_q5_1_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q5_1 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d), m = agk_f16_to_float(x->m);
        const uint32_t high = high_bits(x->qh);
        for (int i = 0; i < HALF; ++i) {
            dst[i] = (float)((x->qs[i] & 15) | (high >> i & 1) << 4) * d + m;
            dst[i + HALF] = (float)(x->qs[i] >> 4 | (high >> (i + HALF) & 1) << 4) * d + m;
        }
    }
}

void agk_q8_1_to_f32(const void *src, float *dst, int64_t n)
{
    const agk_block_q8_1 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d);
        for (int i = 0; i < BLOCK; ++i) dst[i] = (float)x->qs[i] * d;
    }
}

/* --- from float --- */

static void range_of(const float *x, float *least, float *most)
{
    float low[8], high[8];
    for (int k = 0; k < 8; ++k) low[k] = high[k] = x[0]; /* if x[0] is NaN, every comparison below is false */
    for (int i = 0; i < BLOCK; i += 8) {
        for (int k = 0; k < 8; ++k) {
            low[k] = x[i + k] < low[k] ? x[i + k] : low[k];
            high[k] = x[i + k] > high[k] ? x[i + k] : high[k];
        }
    }
    *least = low[0];
    *most = high[0];
    for (int k = 1; k < 8; ++k) {
        *least = low[k] < *least ? low[k] : *least;
        *most = high[k] > *most ? high[k] : *most;
    }
}

/* Codes 0..top of (x - least) / d. */
static float even_codes(const float *x, int top, uint8_t *codes, float *least)
{
    float most;
    range_of(x, least, &most);
    const float d = (most - *least) / (float)top, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    float above[BLOCK];
    for (int i = 0; i < BLOCK; ++i) above[i] = x[i] - *least;
    agk_codes(BLOCK, above, inverse, 0.5f, top, codes);
    return d;
}

void agk_f32_to_q4_1_scalar(const float *src, void *dst, int64_t n)
{
    agk_block_q4_1 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        uint8_t codes[BLOCK];
        float least;
        y->d = agk_f16_from_float(even_codes(src, 15, codes, &least));
        y->m = agk_f16_from_float(least);
        put_nibbles(y->qs, codes);
    }
}

void agk_f32_to_q5_0_scalar(const float *src, void *dst, int64_t n)
{
    agk_block_q5_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        uint8_t codes[BLOCK];
        const float d = agk_extreme(BLOCK, src) / -16.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        agk_codes(BLOCK, src, inverse, 16.5f, 31, codes);
        y->d = agk_f16_from_float(d);
        put_five_bits(y->qh, y->qs, codes);
    }
}

void agk_f32_to_q5_1_scalar(const float *src, void *dst, int64_t n)
{
    agk_block_q5_1 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        uint8_t codes[BLOCK];
        float least;
        y->d = agk_f16_from_float(even_codes(src, 31, codes, &least));
        y->m = agk_f16_from_float(least);
        put_five_bits(y->qh, y->qs, codes);
    }
}

void agk_f32_to_q8_1(const float *src, void *dst, int64_t n)
{
    agk_block_q8_1 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        const float d = agk_absf(agk_extreme(BLOCK, src)) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        int sum = 0;
        for (int i = 0; i < BLOCK; ++i) {
            y->qs[i] = agk_round_i8(src[i] * inverse);
            sum += y->qs[i];
        }
        y->d = agk_f16_from_float(d);
        y->s = agk_f16_from_float((float)sum * d);
    }
}

/* --- with an importance matrix --- */

static const agk_affine_search affine = {-0.9f, 0.05f, 36, false};

/* The weights of one block: those of its columns, increased for elements that are large compared with the row. */
static void weigh(const float *imatrix, const float *x, float mean_square, float *weight)
{
    for (int i = 0; i < BLOCK; ++i) weight[i] = imatrix[i] * sqrtf(mean_square + x[i] * x[i]);
}

static float mean_square(const float *x, int64_t n)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum / (float)n;
}

static void q4_1_block(const float *x, const float *weight, agk_block_q4_1 *y)
{
    uint8_t codes[BLOCK];
    float minimum;
    y->d = agk_f16_from_float(agk_fit_affine(BLOCK, 15, x, weight, &affine, codes, &minimum));
    y->m = agk_f16_from_float(-minimum);
    put_nibbles(y->qs, codes);
}

static void q5_0_block(const float *x, const float *weight, agk_block_q5_0 *y)
{
    uint8_t codes[BLOCK];
    y->d = agk_f16_from_float(agk_fit_levels(BLOCK, 16, x, weight, codes));
    put_five_bits(y->qh, y->qs, codes);
}

static void q5_1_block(const float *x, const float *weight, agk_block_q5_1 *y)
{
    uint8_t codes[BLOCK];
    float minimum;
    y->d = agk_f16_from_float(agk_fit_affine(BLOCK, 31, x, weight, &affine, codes, &minimum));
    y->m = agk_f16_from_float(-minimum);
    put_five_bits(y->qh, y->qs, codes);
}

#define QUANTIZE(name) \
    void agk_quantize_##name(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix) \
    { \
        agk_block_##name *y = dst; \
        if (imatrix == NULL) { \
            agk_f32_to_##name##_scalar(src, dst, n_rows * n_per_row); \
            return; \
        } \
        for (int64_t row = 0; row < n_rows; ++row) { \
            const float mean = mean_square(src, n_per_row); \
            for (int64_t i = 0; i < n_per_row; i += BLOCK, src += BLOCK, ++y) { \
                float weight[BLOCK]; \
                weigh(imatrix + i, src, mean, weight); \
                name##_block(src, weight, y); \
            } \
        } \
    }
QUANTIZE(q4_1)
QUANTIZE(q5_0)
QUANTIZE(q5_1)
