/* iq1_s and iq1_m: 8 elements are a point of -1, 0, 1 in a codebook, all shifted by +-1/8; bit for bit as recorded.
 *
 * Here: dequantization, and the fit: elements are sorted, and every cut into three runs of -1, 0 and 1 is tried with
 * either shift. Not here: vectorised rows (kernels/vec/dequant_iq.h). */
#include <float.h>
#include <math.h>

#include "quant.h"
#include "quant_iq_fit.h"

enum { MAX_GROUP = 32 };

/* The values of levels 0, 1, 2 with the shift up, and down. */
static const float up[3] = {-0.875f, 0.125f, 1.125f}, down[3] = {-1.125f, -0.125f, 0.875f};

static void put(float *dst, float d, const int8_t *point, float shift)
{
    for (int i = 0; i < 8; ++i) dst[i] = d * ((float)point[i] + shift);
}

void agk_iq1_s_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq1_s *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int k = 0; k < 32; ++k, dst += 8) {
            const unsigned h = x->qh[k / 4];
            const unsigned point = x->qs[k] | (h >> 3 * (k & 3) & 7) << 8;
            put(dst, d * (float)(2 * (h >> 12 & 7) + 1), agk_iq1_grid[point], h >> 15 ? -0.125f : 0.125f);
        }
    }
}

void agk_iq1_m_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_iq1_m *x = src;
    for (int64_t block = 0; block < n / AGK_IQ_BLOCK; ++block, ++x) {
        uint16_t word[4];
        memcpy(word, x->scales, sizeof word);
        const float d = agk_f16_to_float(
            (uint16_t)(word[0] >> 12 | (word[1] >> 8 & 0xf0) | (word[2] >> 4 & 0xf00) | (word[3] & 0xf000)));
        for (int k = 0; k < 32; ++k, dst += 8) {
            const unsigned h = (unsigned)x->qh[k / 2] >> 4 * (k & 1), scale = word[k / 8] >> k / 2 % 4 * 3 & 7;
            const float shift = h & 8 ? -0.125f : 0.125f;
            put(dst, d * (float)(2 * scale + 1), agk_iq1_grid[x->qs[k] | (h & 7) << 8], shift);
        }
    }
}

/* A group that is being fitted. `order` sorts its elements in ascending order; equal ones keep their order. */
typedef struct cut {
    int n;
    const float *x;
    float weight[MAX_GROUP];
    int order[MAX_GROUP];
    float gain, scale;
    int first, second, shifts; /* elements order[first..second) have level 1, those before 0, those after 2 */
} cut;

static void sort(cut *c)
{
    for (int i = 0; i < c->n; ++i) {
        int at = i;
        for (; at > 0 && c->x[i] < c->x[c->order[at - 1]]; --at) c->order[at] = c->order[at - 1];
        c->order[at] = i;
    }
}

static void consider(cut *c, int first, int second, int shifts, float product, float square)
{
    if (!(square > 0.0f && product * product > c->gain * square)) return;
    c->scale = product / square;
    c->gain = c->scale * product;
    c->first = first;
    c->second = second;
    c->shifts = shifts;
}

/* One shift for the whole group: 0 up, 3 down. */
static void cut_whole(cut *c)
{
    float sx[MAX_GROUP + 1] = {0}, sw[MAX_GROUP + 1] = {0};
    const int n = c->n;
    for (int j = 0; j < n; ++j) {
        const int i = c->order[j];
        sx[j + 1] = sx[j] + c->weight[i] * c->x[i];
        sw[j + 1] = sw[j] + c->weight[i];
    }
    for (int a = 0; a <= n; ++a) {
        for (int b = a; b <= n; ++b) {
            const float x0 = sx[a], x1 = sx[b] - sx[a], x2 = sx[n] - sx[b];
            const float w0 = sw[a], w1 = sw[b] - sw[a], w2 = sw[n] - sw[b];
            for (int shifts = 0; shifts < 4; shifts += 3) {
                const float *v = shifts == 0 ? up : down;
                const float product = x0 * v[0] + x1 * v[1] + x2 * v[2];
                consider(c, a, b, shifts, product, w0 * v[0] * v[0] + w1 * v[1] * v[1] + w2 * v[2] * v[2]);
            }
        }
    }
}

/* A shift for each half of the group: bit 1 of `shifts` is the first half's, bit 0 the second's; a set bit means
 * down. Each cut is summed over all elements, not from differences of running sums: ties between cuts are common,
 * and rounding decides them. */
static void cut_halves(cut *c)
{
    for (int a = 0; a <= c->n; ++a) {
        for (int b = a; b <= c->n; ++b) {
            float product[4] = {0}, square[4] = {0};
            for (int j = 0; j < c->n; ++j) {
                const int i = c->order[j], level = (j >= a) + (j >= b), bit = i < c->n / 2 ? 2 : 1;
                for (int shifts = 0; shifts < 4; ++shifts) {
                    const float v = shifts & bit ? down[level] : up[level];
                    product[shifts] += c->weight[i] * v * c->x[i];
                    square[shifts] += c->weight[i] * v * v;
                }
            }
            for (int shifts = 0; shifts < 4; ++shifts) consider(c, a, b, shifts, product[shifts], square[shifts]);
        }
    }
}

/* The point for 8 levels; if these are no point, false, and the near point whose values fit best. */
static bool find(const agk_iq_book *book, const cut *c, int first, const uint8_t *level, const float *value,
                 uint16_t *point)
{
    int code = 0;
    for (int i = 0; i < 8; ++i) code |= level[first + i] << 2 * i;
    const int32_t at = book->where[code];
    if (at >= 0) {
        *point = (uint16_t)at;
        return true;
    }
    const uint16_t *list = book->near - at - 1;
    float least = FLT_MAX;
    *point = list[1];
    for (int j = 1; j <= list[0]; ++j) {
        const uint8_t *levels = book->levels + 8 * list[j];
        float error = 0.0f;
        for (int i = 0; i < 8; ++i) {
            const float rest = c->scale * value[levels[i]] - c->x[first + i];
            error += c->weight[first + i] * rest * rest;
        }
        if (error < least) {
            least = error;
            *point = list[j];
        }
    }
    return false;
}

/* Adds the shares of 8 elements with these values to the best scale, product / square. */
static void add_moments(const float *x, const float *weight, const uint8_t *levels, const float *value, float times,
                        float *product, float *square)
{
    for (int i = 0; i < 8; ++i) {
        const float q = value[levels[i]] * times;
        *product += weight[i] * q * x[i];
        *square += weight[i] * q * q;
    }
}

static const float *values_of(const cut *c, int k)
{
    return (k < c->n / 16 ? c->shifts >> 1 : c->shifts & 1) ? down : up;
}

/* Points, scale and shifts of a group; false if there is nothing to fit. */
static bool fit(cut *c, float least, void (*cut_group)(cut *c), uint16_t *point)
{
    const agk_iq_book *book = agk_iq1_book();
    const int n = c->n;
    uint8_t level[MAX_GROUP];
    float largest = fabsf(c->x[0]), product = 0.0f, square = 0.0f;
    for (int i = 1; i < n; ++i) largest = largest > fabsf(c->x[i]) ? largest : fabsf(c->x[i]);
    if (largest < least) return false;
    sort(c);
    c->gain = -FLT_MAX;
    c->first = -1;
    cut_group(c);
    if (c->first < 0) return false;
    for (int j = 0; j < n; ++j) level[c->order[j]] = (uint8_t)((j >= c->first) + (j >= c->second));
    if (c->scale < 0.0f) { /* scales are unsigned */
        for (int i = 0; i < n; ++i) level[i] = (uint8_t)(2 - level[i]);
        c->scale = -c->scale;
        c->shifts = 3 - c->shifts;
    }
    bool exact = true;
    for (int k = 0; k < n / 8; ++k) exact = find(book, c, 8 * k, level, values_of(c, k), &point[k]) && exact;
    if (exact) return true;
    for (int k = 0; k < n / 8; ++k) {
        const uint8_t *levels = book->levels + 8 * point[k];
        add_moments(c->x + 8 * k, c->weight + 8 * k, levels, values_of(c, k), 1.0f, &product, &square);
    }
    if (product > 0.0f && square > 0.0f) c->scale = product / square;
    return true;
}

static int scale_code(float scale, float inverse)
{
    return agk_iq_level(inverse * scale, 7);
}

static void fit_iq1_s(const float *x, const float *imatrix, agk_block_iq1_s *y)
{
    const float mean = agk_iq_mean_square(x, 2.0f);
    float scale[8] = {0}, largest = 0.0f;
    bool is_down[8] = {false};
    memset(y, 0, sizeof *y);
    for (int g = 0; g < 8; ++g) {
        cut c = {.n = 32, .x = x + 32 * g};
        uint16_t point[4];
        agk_iq_weigh(c.weight, c.x, imatrix + 32 * g, c.n, mean, 0.0f);
        if (!fit(&c, 1e-12f, cut_whole, point)) continue;
        for (int k = 0; k < 4; ++k) {
            y->qs[4 * g + k] = (uint8_t)point[k];
            y->qh[g] |= (uint16_t)(point[k] >> 8 << 3 * k);
        }
        scale[g] = c.scale;
        is_down[g] = c.shifts != 0;
        largest = largest > scale[g] ? largest : scale[g];
    }
    if (largest == 0.0f) return;
    const float d = largest / 15.0f;
    y->d = agk_f16_from_float(d * 1.125f); /* the factor was found by trial; it is ggml's */
    for (int g = 0; g < 8; ++g) y->qh[g] |= (uint16_t)((scale_code(scale[g], 1.0f / d) | is_down[g] << 3) << 12);
}

void agk_quantize_iq1_s(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq1_s *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) fit_iq1_s(src + i, imatrix + i % n_per_row, y);
}

/* The scale of the block is fitted once more, to all points with the scales of their groups as stored. */
static void fit_iq1_m(const float *x, const float *imatrix, agk_block_iq1_m *y)
{
    const agk_iq_book *book = agk_iq1_book();
    const float mean = agk_iq_mean_square(x, 2.0f);
    cut c[16];
    float largest = 0.0f, product = 0.0f, square = 0.0f;
    uint16_t point[16][2] = {{0}}, word[4] = {0};
    memset(y, 0, sizeof *y);
    for (int g = 0; g < 16; ++g) {
        c[g] = (cut){.n = 16, .x = x + 16 * g};
        agk_iq_weigh(c[g].weight, c[g].x, imatrix != NULL ? imatrix + 16 * g : NULL, 16, mean, 0.0f);
        if (!fit(&c[g], 1e-7f, cut_halves, point[g])) {
            c[g].scale = 0.0f;
            c[g].shifts = 0;
        }
        for (int k = 0; k < 2; ++k) {
            y->qs[2 * g + k] = (uint8_t)point[g][k];
            y->qh[g] |= (uint8_t)(point[g][k] >> 8 << 4 * k);
        }
        largest = largest > c[g].scale ? largest : c[g].scale;
    }
    if (largest == 0.0f) return;
    float d = largest / 15.0f;
    for (int g = 0; g < 16; ++g) {
        const int scale = scale_code(c[g].scale, 1.0f / d);
        word[g / 4] |= (uint16_t)(scale << 3 * (g % 4));
        y->qh[g] |= (uint8_t)((c[g].shifts >> 1) << 3 | (c[g].shifts & 1) << 7);
        for (int k = 0; k < 2; ++k) {
            add_moments(c[g].x + 8 * k, c[g].weight + 8 * k, book->levels + 8 * point[g][k], values_of(&c[g], k),
                        (float)(2 * scale + 1), &product, &square);
        }
    }
    if (square > 0.0f) d = product / square;
    const uint16_t bits = agk_f16_from_float(d * 1.1125f); /* the factor was found by trial; it is ggml's */
    for (int i = 0; i < 4; ++i) word[i] |= (uint16_t)((bits >> 4 * i & 15) << 12);
    memcpy(y->scales, word, sizeof word);
}

void agk_quantize_iq1_m(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    agk_block_iq1_m *y = dst;
    for (int64_t i = 0; i < n_rows * n_per_row; i += AGK_IQ_BLOCK, ++y) {
        fit_iq1_m(src + i, imatrix != NULL ? imatrix + i % n_per_row : NULL, y);
    }
}
