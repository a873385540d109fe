/* q2_K to q6_K and q8_K to floats, exact, in plain C. Not here: conversion from floats (quant_k.c), layouts
 * (blocks.h). */
#include "quant.h"

enum { SUPER = 256 };

/* 128 elements share 32 bytes of qs, two bits each: group g of 16 has shift 2 * (g % 8 / 2). */
static inline const uint8_t *two_bits(const uint8_t *qs, int g, int *shift)
{
    *shift = g % 8 / 2 * 2;
    return qs + g / 8 * 32 + g % 2 * 16;
}

void agk_q2_k_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q2_k *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d), m = agk_f16_to_float(x->m);
        for (int g = 0; g < 16; ++g, dst += 16) {
            const float scale = d * (float)(x->scales[g] & 15), minimum = m * (float)(x->scales[g] >> 4);
            int shift;
            const uint8_t *q = two_bits(x->qs, g, &shift);
            for (int i = 0; i < 16; ++i) dst[i] = scale * (float)(q[i] >> shift & 3) - minimum;
        }
    }
}

void agk_q3_k_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q3_k *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int g = 0; g < 16; ++g, dst += 16) {
            const float scale = d * (float)agk_scale_q3_k(x->scales, g);
            const uint8_t *high = x->hmask + g % 2 * 16;
            int shift;
            const uint8_t *q = two_bits(x->qs, g, &shift);
            for (int i = 0; i < 16; ++i) {
                dst[i] = scale * (float)((q[i] >> shift & 3) - (high[i] >> (g / 2) & 1 ? 0 : 4));
            }
        }
    }
}

/* Eight scales and eight minimums of six bits in 12 bytes. */
static inline void scale_and_min(const uint8_t *scales, int g, int *scale, int *minimum)
{
    if (g < 4) {
        *scale = scales[g] & 63;
        *minimum = scales[g + 4] & 63;
    } else {
        *scale = (scales[g + 4] & 15) | scales[g - 4] >> 6 << 4;
        *minimum = scales[g + 4] >> 4 | scales[g] >> 6 << 4;
    }
}

void agk_q4_k_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q4_k *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d), m = agk_f16_to_float(x->m);
        for (int g = 0; g < 8; ++g, dst += 32) {
            int scale, minimum;
            scale_and_min(x->scales, g, &scale, &minimum);
            const float ds = d * (float)scale, mm = m * (float)minimum;
            const uint8_t *q = x->qs + g / 2 * 32;
            const int shift = g % 2 * 4;
            for (int i = 0; i < 32; ++i) dst[i] = ds * (float)(q[i] >> shift & 15) - mm;
        }
    }
}

void agk_q5_k_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q5_k *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d), m = agk_f16_to_float(x->m);
        for (int g = 0; g < 8; ++g, dst += 32) {
            int scale, minimum;
            scale_and_min(x->scales, g, &scale, &minimum);
            const float ds = d * (float)scale, mm = m * (float)minimum;
            const uint8_t *q = x->qs + g / 2 * 32;
            const int shift = g % 2 * 4;
            for (int i = 0; i < 32; ++i) {
                dst[i] = ds * (float)((q[i] >> shift & 15) + (x->qh[i] >> g & 1) * 16) - mm;
            }
        }
    }
}

void agk_q6_k_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q6_k *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int g = 0; g < 16; ++g, dst += 16) { /* 128 elements: 64 bytes of ql, low nibbles first, and 32 of qh */
            const float scale = d * (float)x->scales[g];
            const int at = g % 8 * 16;
            const uint8_t *low = x->ql + g / 8 * 64 + at % 64, *high = x->qh + g / 8 * 32 + at % 32;
            const int low_shift = at / 64 * 4, high_shift = at / 32 * 2;
            for (int i = 0; i < 16; ++i) {
                dst[i] = scale * (float)(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
            }
        }
    }
}

void agk_q8_k_to_f32(const void *src, float *dst, int64_t n)
{
    const agk_block_q8_k *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x, dst += SUPER) {
        for (int i = 0; i < SUPER; ++i) dst[i] = (float)x->qs[i] * x->d;
    }
}
