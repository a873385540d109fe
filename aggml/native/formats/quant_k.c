/* q2_K to q6_K and q8_K: 256 values in groups of 16 or 32, whose scales (and minimums) are themselves quantized.
 *
 * Bytes as recorded, with an importance matrix and without. Here: conversion from floats. Not here: conversion to
 * floats (quant_k_to_f32.c), searches (quant_search.c). */
#include <math.h>
#include <string.h>

#include "quant.h"
#include "quant_search.h"

enum { SUPER = 256 };

/* --- from float: what the types share ------------------------------------------------------------------------- */

static float squares(const float *x, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
}

/* Weights of a group: those of its columns, increased for elements that are large compared with the block. Returns
 * their sum. */
static float weigh(int n, const float *x, const float *imatrix, float mean_square, float *weight)
{
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) {
        weight[i] = imatrix[i] * sqrtf(mean_square + x[i] * x[i]);
        sum += weight[i];
    }
    return sum;
}

static float largest_of(const float *x, int n)
{
    float largest = 0.0f;
    for (int i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* Computes the codes again, now for the scale and minimum as they are stored; with a scale of 0 they stay as they
 * are. */
static void recode_affine(int n, int top, const float *x, float d, float minimum, uint8_t *codes)
{
    if (d == 0.0f) return;
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)agk_clamp_int(agk_nearest((x[i] + minimum) / d), 0, top);
}

static void recode_levels(int n, int top, const float *x, float d, uint8_t *codes)
{
    if (d == 0.0f) return;
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)(agk_clamp_int(agk_nearest(x[i] / d), -top, top - 1) + top);
}

static void put_two_bits(uint8_t *qs, const uint8_t *codes)
{
    for (int half = 0; half < 2; ++half, codes += 128, qs += 32) {
        for (int i = 0; i < 32; ++i) {
            qs[i] = (uint8_t)((codes[i] & 3) | (codes[i + 32] & 3) << 2 | (codes[i + 64] & 3) << 4 |
                              (codes[i + 96] & 3) << 6);
        }
    }
}

/* Defines agk_f32_to_TYPE and agk_quantize_TYPE from TYPE_block(x, weights of its columns or NULL, y). */
#define ROWS(type) \
    void agk_f32_to_##type(const float *src, void *dst, int64_t n) \
    { \
        agk_block_##type *y = dst; \
        for (int64_t i = 0; i < n; i += SUPER, ++y) type##_block(src + i, NULL, y); \
    } \
    void agk_quantize_##type(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix) \
    { \
        agk_block_##type *y = dst; \
        for (int64_t row = 0; row < n_rows; ++row, src += n_per_row) { \
            for (int64_t i = 0; i < n_per_row; i += SUPER, ++y) { \
                type##_block(src + i, imatrix != NULL ? imatrix + i : NULL, y); \
            } \
        } \
    }

/* --- q2_K ----------------------------------------------------------------------------------------------------- */

/* Scales or minimums as codes 0..15, relative to the largest. */
static uint16_t nibbles_of_largest(const float *values, uint8_t *codes)
{
    const float largest = largest_of(values, 16);
    memset(codes, 0, 16);
    if (!(largest > 0.0f)) return 0;
    const float inverse = 15.0f / largest;
    for (int g = 0; g < 16; ++g) codes[g] = (uint8_t)agk_nearest(inverse * values[g]) & 15;
    return agk_f16_from_float(largest / 15.0f);
}

static void q2_k_block(const float *x, const float *imatrix, agk_block_q2_k *y)
{
    static const agk_affine_search plain = {-0.5f, 0.1f, 15, true}, weighted = {-0.9f, 0.05f, 36, false};
    uint8_t codes[SUPER], scale_codes[16], min_codes[16];
    float scales[16], minimums[16], sums[16], weight[16];
    const float mean = squares(x, SUPER) / (float)SUPER;
    for (int g = 0; g < 16; ++g) {
        const float *group = x + 16 * g;
        if (imatrix != NULL) {
            sums[g] = weigh(16, group, imatrix + 16 * g, mean, weight);
        } else {
            for (int i = 0; i < 16; ++i) weight[i] = agk_absf(group[i]);
        }
        scales[g] =
            agk_fit_affine(16, 3, group, weight, imatrix != NULL ? &weighted : &plain, codes + 16 * g, &minimums[g]);
    }
    if (imatrix != NULL) {
        y->d = agk_f16_from_float(agk_fit_positive(16, 15, scales, sums, scale_codes));
        y->m = agk_f16_from_float(agk_fit_positive(16, 15, minimums, sums, min_codes));
    } else {
        y->d = nibbles_of_largest(scales, scale_codes);
        y->m = nibbles_of_largest(minimums, min_codes);
    }
    const float d = agk_f16_to_float(y->d), m = agk_f16_to_float(y->m);
    for (int g = 0; g < 16; ++g) {
        y->scales[g] = (uint8_t)(scale_codes[g] | min_codes[g] << 4);
        recode_affine(16, 3, x + 16 * g, d * (float)scale_codes[g], m * (float)min_codes[g], codes + 16 * g);
    }
    put_two_bits(y->qs, codes);
}
ROWS(q2_k)

/* --- q3_K ----------------------------------------------------------------------------------------------------- */

static void put_scales_q3(uint8_t *scales, const uint8_t *codes)
{
    memset(scales, 0, 12);
    for (int g = 0; g < 16; ++g) {
        scales[g % 8] |= (uint8_t)((codes[g] & 15) << (g / 8 * 4));
        scales[8 + g % 4] |= (uint8_t)(codes[g] >> 4 << (g / 4 * 2));
    }
}

static void q3_k_block(const float *x, const float *imatrix, agk_block_q3_k *y)
{
    uint8_t codes[SUPER], scale_codes[16];
    float scales[16];
    if (imatrix != NULL) {
        const float mean = 2.0f * squares(x, SUPER) / (float)SUPER;
        float sums[16], weight[16];
        for (int g = 0; g < 16; ++g) {
            sums[g] = weigh(16, x + 16 * g, imatrix + 16 * g, mean, weight);
            scales[g] = agk_fit_levels(16, 4, x + 16 * g, weight, codes + 16 * g);
        }
        y->d = agk_f16_from_float(agk_fit_levels(16, 32, scales, sums, scale_codes));
        put_scales_q3(y->scales, scale_codes);
    } else {
        for (int g = 0; g < 16; ++g) {
            scales[g] = agk_fit_levels_one_by_one(16, 4, x + 16 * g, codes + 16 * g);
        }
        const float extreme = agk_extreme(16, scales);
        memset(y->scales, 0, sizeof y->scales);
        y->d = 0;
        if (extreme != 0.0f) {
            const float inverse = -32.0f / extreme;
            for (int g = 0; g < 16; ++g) {
                scale_codes[g] = (uint8_t)(agk_clamp_int(agk_nearest(inverse * scales[g]), -32, 31) + 32);
            }
            put_scales_q3(y->scales, scale_codes);
            y->d = agk_f16_from_float(1.0f / inverse);
        }
    }
    const float d = agk_f16_to_float(y->d);
    for (int g = 0; g < 16; ++g) {
        recode_levels(16, 4, x + 16 * g, d * (float)agk_scale_q3_k(y->scales, g), codes + 16 * g);
    }
    memset(y->hmask, 0, sizeof y->hmask);
    for (int i = 0; i < SUPER; ++i) y->hmask[i % 32] |= (uint8_t)(codes[i] >> 2 << (i / 32));
    put_two_bits(y->qs, codes);
}
ROWS(q3_k)

/* --- q4_K, q5_K ----------------------------------------------------------------------------------------------- */

static void put_scales_and_mins(uint8_t *out, const uint8_t *scales, const uint8_t *minimums)
{
    for (int g = 0; g < 4; ++g) {
        out[g] = (uint8_t)(scales[g] | scales[g + 4] >> 4 << 6);
        out[g + 4] = (uint8_t)(minimums[g] | minimums[g + 4] >> 4 << 6);
        out[g + 8] = (uint8_t)((scales[g + 4] & 15) | (minimums[g + 4] & 15) << 4);
    }
}

static uint16_t six_bits_of_largest(const float *values, uint8_t *codes)
{
    const float largest = largest_of(values, 8), inverse = largest > 0.0f ? 63.0f / largest : 0.0f;
    for (int g = 0; g < 8; ++g) {
        const uint8_t code = (uint8_t)agk_nearest(inverse * values[g]);
        codes[g] = code < 63 ? code : 63;
    }
    return agk_f16_from_float(largest / 63.0f);
}

/* d, m and the 12 bytes of scales, and 256 codes 0..top. */
static void eight_groups(int top, const float *x, const float *imatrix, const agk_affine_search *plain, uint16_t *d_out,
                         uint16_t *m_out, uint8_t *scales_out, uint8_t *codes)
{
    static const agk_affine_search weighted = {-0.9f, 0.05f, 36, false};
    uint8_t scale_codes[8], min_codes[8];
    float scales[8], minimums[8], sums[8], weight[32];
    const float mean = 2.0f * squares(x, SUPER) / (float)SUPER;
    for (int g = 0; g < 8; ++g) {
        const float *group = x + 32 * g;
        if (imatrix != NULL) {
            sums[g] = weigh(32, group, imatrix + 32 * g, mean, weight);
        } else {
            const float root = sqrtf(squares(group, 32) / 32.0f);
            for (int i = 0; i < 32; ++i) weight[i] = root + agk_absf(group[i]);
        }
        scales[g] =
            agk_fit_affine(32, top, group, weight, imatrix != NULL ? &weighted : plain, codes + 32 * g, &minimums[g]);
    }
    if (imatrix != NULL) {
        *d_out = agk_f16_from_float(agk_fit_positive(8, 63, scales, sums, scale_codes));
        *m_out = agk_f16_from_float(agk_fit_positive(8, 63, minimums, sums, min_codes));
    } else {
        *d_out = six_bits_of_largest(scales, scale_codes);
        *m_out = six_bits_of_largest(minimums, min_codes);
    }
    put_scales_and_mins(scales_out, scale_codes, min_codes);
    const float d = agk_f16_to_float(*d_out), m = agk_f16_to_float(*m_out);
    for (int g = 0; g < 8; ++g) {
        recode_affine(32, top, x + 32 * g, d * (float)scale_codes[g], m * (float)min_codes[g], codes + 32 * g);
    }
}

static void put_four_bits(uint8_t *qs, const uint8_t *codes)
{
    for (int pair = 0; pair < 4; ++pair, codes += 64, qs += 32) {
        for (int i = 0; i < 32; ++i) qs[i] = (uint8_t)((codes[i] & 15) | (codes[i + 32] & 15) << 4);
    }
}

static void q4_k_block(const float *x, const float *imatrix, agk_block_q4_k *y)
{
    static const agk_affine_search plain = {-1.0f, 0.1f, 20, false};
    uint8_t codes[SUPER];
    eight_groups(15, x, imatrix, &plain, &y->d, &y->m, y->scales, codes);
    put_four_bits(y->qs, codes);
}
ROWS(q4_k)

static void q5_k_block(const float *x, const float *imatrix, agk_block_q5_k *y)
{
    static const agk_affine_search plain = {-0.5f, 0.1f, 15, false};
    uint8_t codes[SUPER];
    eight_groups(31, x, imatrix, &plain, &y->d, &y->m, y->scales, codes);
    memset(y->qh, 0, sizeof y->qh);
    for (int i = 0; i < SUPER; ++i) y->qh[i % 32] |= (uint8_t)(codes[i] >> 4 << (i / 32));
    put_four_bits(y->qs, codes);
}
ROWS(q5_k)

/* --- q6_K ----------------------------------------------------------------------------------------------------- */

static void q6_k_block(const float *x, const float *imatrix, agk_block_q6_k *y)
{
    uint8_t codes[SUPER];
    float scales[16];
    for (int g = 0; g < 16; ++g) {
        const float *weight = imatrix != NULL ? imatrix + 16 * g : NULL;
        scales[g] = agk_fit_levels(16, 32, x + 16 * g, weight, codes + 16 * g);
    }
    const float extreme = agk_extreme(16, scales);
    if (agk_absf(extreme) < AGK_QUANT_TINY) {
        memset(y, 0, sizeof *y);
        return;
    }
    const float inverse = -128.0f / extreme;
    y->d = agk_f16_from_float(1.0f / inverse);
    const float d = agk_f16_to_float(y->d);
    for (int g = 0; g < 16; ++g) {
        y->scales[g] = (int8_t)agk_clamp_int(agk_nearest(inverse * scales[g]), -128, 127);
        recode_levels(16, 32, x + 16 * g, d * (float)y->scales[g], codes + 16 * g);
    }
    const uint8_t *c = codes;
    for (int half = 0; half < 2; ++half, c += 128) {
        uint8_t *low = y->ql + 64 * half, *high = y->qh + 32 * half;
        for (int i = 0; i < 64; ++i) low[i] = (uint8_t)((c[i] & 15) | (c[i + 64] & 15) << 4);
        for (int i = 0; i < 32; ++i) {
            high[i] = (uint8_t)(c[i] >> 4 | c[i + 32] >> 4 << 2 | c[i + 64] >> 4 << 4 | c[i + 96] >> 4 << 6);
        }
    }
}
ROWS(q6_k)

/* --- q8_K ----------------------------------------------------------------------------------------------------- */

void agk_f32_to_q8_k(const float *src, void *dst, int64_t n)
{
    agk_block_q8_k *y = dst;
    for (int64_t block = 0; block < n / SUPER; ++block, src += SUPER, ++y) {
        const float extreme = agk_extreme(SUPER, src);
        memset(y, 0, sizeof *y);
        if (extreme == 0.0f) continue;
        const float inverse = -127.0f / extreme;
        for (int i = 0; i < SUPER; ++i) {
            y->qs[i] = (int8_t)agk_clamp_int(agk_nearest(inverse * src[i]), -128, 127);
            y->sums[i / 16] = (int16_t)(y->sums[i / 16] + y->qs[i]);
        }
        y->d = 1.0f / inverse;
    }
}
