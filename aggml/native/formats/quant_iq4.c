/* iq4_nl and iq4_xs: four bits that index a table of uneven levels; xs has a second level of scales over 256.
 *
 * Bytes as recorded, with an importance matrix and without. Not here: the other iq types (quant_iq*.c). */
#include <math.h>
#include <string.h>

#include "quant.h"
#include "quant_search.h"

enum { BLOCK = 32, SUPER = 256, GROUPS = SUPER / BLOCK, TRIALS = 7 };

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* The level nearest to x, the higher of two as near. */
static uint8_t nearest_level(float x)
{
    int low = 0, high = 15;
    if (!(x > (float)levels[0])) return 0;
    if (x >= (float)levels[15]) return 15;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (x < (float)levels[middle])
            high = middle;
        else
            low = middle;
    }
    return (uint8_t)(x - (float)levels[low] < (float)levels[high] - x ? low : high);
}

typedef struct sums {
    float product, square;
} sums;

/* The same for a block: the index is how many of the 15 numbers halfway between levels are not above x. All of them
 * are exact in f32, and so are the differences next to them. */
static void nearest_levels(const float *x, float inverse, uint8_t *codes)
{
    int32_t count[BLOCK] = {0};
    for (int j = 0; j < 15; ++j) {
        const float half = 0.5f * (float)(levels[j] + levels[j + 1]);
        for (int i = 0; i < BLOCK; ++i) count[i] += inverse * x[i] >= half;
    }
    for (int i = 0; i < BLOCK; ++i) codes[i] = (uint8_t)count[i];
}

static sums sums_of(const float *x, const float *weight, float inverse, uint8_t *codes)
{
    sums s = {0.0f, 0.0f};
    nearest_levels(x, inverse, codes);
    for (int i = 0; i < BLOCK; ++i) {
        const float q = (float)levels[codes[i]];
        s.product += weight[i] * q * x[i];
        s.square += weight[i] * q * q;
    }
    return s;
}

/* The scale with the least weighted error among `trials` scales on either side of that of the extreme; 0 trials: the
 * scale of the extreme. */
static float fit(const float *x, const float *weight, int trials, uint8_t *codes)
{
    const float extreme = agk_extreme(BLOCK, x), first = (float)levels[0];
    if (agk_absf(extreme) < AGK_QUANT_TINY) {
        memset(codes, nearest_level(0.0f), BLOCK);
        return 0.0f;
    }
    sums s = sums_of(x, weight, 1.0f / (trials > 0 ? -extreme / first : extreme / first), codes);
    /* without a weight above 0 nothing says which scale is best */
    float d = s.square > 0.0f ? s.product / s.square : 0.0f, gain = d * s.product;
    for (int step = -trials; step <= trials && trials > 0; ++step) {
        uint8_t trial[BLOCK];
        s = sums_of(x, weight, ((float)step + first) / extreme, trial);
        if (s.square > 0.0f && s.product * s.product > gain * s.square) {
            d = s.product / s.square;
            gain = d * s.product;
        }
    }
    return d;
}

/* Weights of a block: x^2, or those of its columns, increased for elements that are large compared with n elements
 * around them. */
static void weigh(const float *x, const float *imatrix, float mean_square, float *weight)
{
    for (int i = 0; i < BLOCK; ++i) {
        weight[i] = imatrix != NULL ? imatrix[i] * sqrtf(mean_square + x[i] * x[i]) : x[i] * x[i];
    }
}

static float twice_mean_square(int n, const float *x)
{
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum * (2.0f / (float)n);
}

static void put_codes(const uint8_t *codes, uint8_t *qs)
{
    for (int i = 0; i < BLOCK / 2; ++i) qs[i] = (uint8_t)(codes[i] | codes[i + BLOCK / 2] << 4);
}

/* --- iq4_nl --- */

/* The row function for ops: no trials. In a block of zeros (d = 0) ggml leaves the codes of the block before. */
void agk_f32_to_iq4_nl(const float *src, void *dst, int64_t n)
{
    agk_block_iq4_nl *y = dst;
    for (int64_t block = 0; block < n / BLOCK; ++block, src += BLOCK, ++y) {
        float weight[BLOCK];
        uint8_t codes[BLOCK];
        weigh(src, NULL, 0.0f, weight);
        y->d = agk_f16_from_float(fit(src, weight, 0, codes));
        put_codes(codes, y->qs);
    }
}

void agk_quantize_iq4_nl(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq4_nl *y = dst;
    for (int64_t row = 0; row < n_rows; ++row) {
        for (int64_t i = 0; i < n_per_row; i += BLOCK, src += BLOCK, ++y) {
            float weight[BLOCK];
            uint8_t codes[BLOCK];
            weigh(src, imatrix != NULL ? imatrix + i : NULL, twice_mean_square(BLOCK, src), weight);
            const float d = fit(src, weight, TRIALS, codes), inverse = d != 0.0f ? 1.0f / d : 0.0f;
            for (int e = 0; e < BLOCK; ++e) codes[e] = nearest_level(inverse * src[e]);
            y->d = agk_f16_from_float(d);
            put_codes(codes, y->qs);
        }
    }
}

void agk_iq4_nl_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq4_nl *x = src;
    for (int64_t block = 0; block < n / BLOCK; ++block, ++x, dst += BLOCK) {
        const float d = agk_f16_to_float(x->d);
        for (int i = 0; i < BLOCK / 2; ++i) {
            dst[i] = d * (float)levels[x->qs[i] & 15];
            dst[i + BLOCK / 2] = d * (float)levels[x->qs[i] >> 4];
        }
    }
}

/* --- iq4_xs --- */

static void iq4_xs_block(const float *x, const float *imatrix, agk_block_iq4_xs *y)
{
    float scales[GROUPS], weight[BLOCK];
    uint8_t codes[BLOCK];
    const float mean = twice_mean_square(SUPER, x);
    for (int g = 0; g < GROUPS; ++g) {
        weigh(x + g * BLOCK, imatrix != NULL ? imatrix + g * BLOCK : NULL, mean, weight);
        scales[g] = fit(x + g * BLOCK, weight, TRIALS, codes);
    }
    const float d = -agk_extreme(GROUPS, scales) / 32.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    memset(y, 0, sizeof *y);
    y->d = agk_f16_from_float(d);
    for (int g = 0; g < GROUPS; ++g) {
        const int scale = agk_clamp_int(agk_nearest(inverse * scales[g]), -32, 31);
        const float dl = d * (float)scale, inverse_l = dl != 0.0f ? 1.0f / dl : 0.0f;
        for (int i = 0; i < BLOCK; ++i) codes[i] = nearest_level(inverse_l * x[g * BLOCK + i]);
        put_codes(codes, y->qs + g * BLOCK / 2);
        y->scales_l[g / 2] |= (uint8_t)(((scale + 32) & 15) << (g % 2 * 4));
        y->scales_h = (uint16_t)(y->scales_h | (scale + 32) >> 4 << (2 * g));
    }
}

void agk_f32_to_iq4_xs(const float *src, void *dst, int64_t n)
{
    agk_block_iq4_xs *y = dst;
    for (int64_t i = 0; i < n; i += SUPER, ++y) iq4_xs_block(src + i, NULL, y);
}

void agk_quantize_iq4_xs(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq4_xs *y = dst;
    for (int64_t row = 0; row < n_rows; ++row, src += n_per_row) {
        for (int64_t i = 0; i < n_per_row; i += SUPER, ++y) {
            iq4_xs_block(src + i, imatrix != NULL ? imatrix + i : NULL, y);
        }
    }
}

void agk_iq4_xs_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq4_xs *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int g = 0; g < GROUPS; ++g, dst += BLOCK) {
            const int low = x->scales_l[g / 2] >> (g % 2 * 4) & 15, high = x->scales_h >> (2 * g) & 3;
            const float dl = d * (float)((low | high << 4) - 32);
            const uint8_t *qs = x->qs + g * BLOCK / 2;
            for (int i = 0; i < BLOCK / 2; ++i) {
                dst[i] = dl * (float)levels[qs[i] & 15];
                dst[i + BLOCK / 2] = dl * (float)levels[qs[i] >> 4];
            }
        }
    }
}
