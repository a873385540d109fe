/* mxfp4 and nvfp4: four-bit floats (e2m1) with a scale for each 32 or 16. Neither uses an importance matrix.
 *
 * The table holds twice the value of a code and the scales are halved, so that all products are exact. */
#include <math.h>
#include <string.h>

#include "quant.h"
#include "quant_search.h"

enum { BLOCK = 32, NV_BLOCK = 64, NV_GROUP = 16 };

/* 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, doubled */
static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The nearest e4m3 up to 448, halves up. */
static uint8_t e4m3_of(float x)
{
    if (!(x > 0.0f)) return 0;
    if (x >= 448.0f) return 0x7e;
    if (x < 0x1p-6f) {
        const int fraction = (int)(x * 512.0f + 0.5f);
        return (uint8_t)(fraction < 7 ? fraction : 7);
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t code = (bits - (120u << 23) + (1u << 19)) >> 20; /* exponent and fraction, with the carry */
    return (uint8_t)(code < 0x7e ? code : 0x7e);
}

/* The codes of the nearest values; of two that are equally near, the one nearer to 0; 0 for what is equally far from
 * all. Magnitudes are compared with the 7 numbers halfway between values, which are exact. */
static void nearest_codes(int n, const float *x, float d, uint8_t *codes)
{
    int32_t count[BLOCK] = {0};
    for (int j = 0; j < 7; ++j) {
        const float half = 0.5f * (float)(doubled[j] + doubled[j + 1]) * d;
        for (int i = 0; i < n; ++i) count[i] += agk_absf(x[i]) > half;
    }
    for (int i = 0; i < n; ++i) {
        const bool near = d > 0.0f && agk_absf(x[i]) < INFINITY;
        codes[i] = (uint8_t)(near && count[i] > 0 ? count[i] | (x[i] < 0.0f ? 8 : 0) : 0);
    }
}

/* n elements; those of the second half are in the high nibbles. */
static void put_codes(int n, const float *x, float d, uint8_t *qs)
{
    uint8_t codes[BLOCK];
    nearest_codes(n, x, d, codes);
    for (int i = 0; i < n / 2; ++i) qs[i] = (uint8_t)(codes[i] | codes[i + n / 2] << 4);
}

static void get_codes(int n, const uint8_t *qs, float d, float *y)
{
    for (int i = 0; i < n / 2; ++i) {
        y[i] = (float)doubled[qs[i] & 15] * d;
        y[i + n / 2] = (float)doubled[qs[i] >> 4] * d;
    }
}

void agk_f32_to_mxfp4(const float *src, void *dst, int64_t n)
{
    agk_block_mxfp4 *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        const float largest = agk_absf(agk_extreme(BLOCK, src));
        /* log2f may round up to a whole number just below it, and ggml's exponent does so too. */
        y->e = largest > 0.0f && largest < INFINITY ? (uint8_t)((int)floorf(log2f(largest)) - 2 + 127) : 0;
        put_codes(BLOCK, src, agk_half_of_e8m0(y->e), y->qs);
    }
}

void agk_mxfp4_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_mxfp4 *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, dst += BLOCK, ++x) {
        get_codes(BLOCK, x->qs, agk_half_of_e8m0(x->e), dst);
    }
}

void agk_f32_to_nvfp4(const float *src, void *dst, int64_t n)
{
    agk_block_nvfp4 *y = dst;
    for (int64_t block = 0; block < n / NV_BLOCK; ++block, ++y) {
        for (int g = 0; g < NV_BLOCK / NV_GROUP; ++g, src += NV_GROUP) {
            y->d[g] = e4m3_of(agk_absf(agk_extreme(NV_GROUP, src)) / 6.0f);
            put_codes(NV_GROUP, src, agk_half_of_e4m3(y->d[g]), y->qs + g * NV_GROUP / 2);
        }
    }
}

void agk_nvfp4_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_nvfp4 *x = src;
    for (int64_t block = 0; block < n / NV_BLOCK; ++block, ++x) {
        for (int g = 0; g < NV_BLOCK / NV_GROUP; ++g, dst += NV_GROUP) {
            get_codes(NV_GROUP, x->qs + g * NV_GROUP / 2, agk_half_of_e4m3(x->d[g]), dst);
        }
    }
}
