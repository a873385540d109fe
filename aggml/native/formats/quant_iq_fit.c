/* The fit of iq2 and iq3 blocks: a scale and the points of a codebook for each group, bit for bit like ggml's.
 *
 * The order of every sum is ggml's, since the smallest difference can change the choice between two points. */
#include "quant_iq_fit.h"

#include <float.h>

/* A group that is being fitted: magnitudes (negative for an element whose sign was flipped), weights, roots of the
 * weights. */
typedef struct fit {
    const agk_iq_scheme *scheme;
    const agk_iq_book *book;
    int points;
    float x[AGK_IQ_GROUP], weight[AGK_IQ_GROUP], root[AGK_IQ_GROUP];
    uint16_t point[8];
    bool off[8]; /* this point is not the one nearest to its elements' levels, but one near it */
} fit;

float agk_iq_mean_square(const float *x, float spread)
{
    float sum = 0.0f;
    for (int i = 0; i < AGK_IQ_BLOCK; ++i) sum += x[i] * x[i];
    return spread * sum / AGK_IQ_BLOCK;
}

/* The best of a list of points for the elements at `first`; the first of equals. */
static uint16_t best_of(const fit *f, const uint16_t *list, int first, float scale)
{
    const int width = f->book->width;
    float least = FLT_MAX;
    uint16_t best = list[1];
    for (int j = 1; j <= list[0]; ++j) {
        const uint8_t *levels = f->book->levels + list[j] * width;
        float error = 0.0f;
        for (int i = 0; i < width; ++i) {
            const float rest = scale * (float)(2 * levels[i] + 1) - f->x[first + i];
            error += f->root[first + i] * rest * rest;
        }
        if (error < least) {
            least = error;
            best = list[j];
        }
    }
    return best;
}

/* Finds point k for a scale; true if it is exactly at the levels nearest to the elements. */
static bool find(const fit *f, int k, float scale, float inverse, uint16_t *point)
{
    const agk_iq_book *book = f->book;
    const int first = k * book->width;
    int code = 0;
    for (int i = 0; i < book->width; ++i) code |= agk_iq_level(inverse * f->x[first + i], book->top) << book->bits * i;
    const int32_t at = book->where[code];
    *point = at >= 0 ? (uint16_t)at : best_of(f, book->near - at - 1, first, scale);
    return at >= 0;
}

/* The scale that minimises the weighted error for given points is product / square. */
static void moments(const fit *f, const uint16_t *point, float *product, float *square)
{
    const int width = f->book->width;
    *product = *square = 0.0f;
    for (int k = 0; k < f->points; ++k) {
        const uint8_t *levels = f->book->levels + point[k] * width;
        for (int i = 0; i < width; ++i) {
            const float w = f->weight[k * width + i], q = (float)(2 * levels[i] + 1);
            *product += w * f->x[k * width + i] * q;
            *square += w * q * q;
        }
    }
}

/* Tries scales that put the largest element near the top level. */
static float try_scales(fit *f, float scale, float largest)
{
    const agk_iq_scheme *scheme = f->scheme;
    const float top = (float)(2 * f->book->top + 1);
    float gain = 0.0f;
    for (int i = -scheme->tries; i <= scheme->tries; ++i) {
        const float inverse = (top + (float)i * scheme->step) / largest;
        uint16_t point[8];
        bool off[8];
        float product, square;
        for (int k = 0; k < f->points; ++k) off[k] = !find(f, k, 1.0f / inverse, inverse, &point[k]);
        moments(f, point, &product, &square);
        if (square > 0.0f && product * product > gain * square) {
            scale = product / square;
            gain = scale * product;
            memcpy(f->point, point, sizeof point);
            memcpy(f->off, off, sizeof off);
        }
    }
    return scale;
}

/* With the best scale, searches the points anew: all of them, or those that were not exact. */
static float seek_again(fit *f, float scale)
{
    const bool only_those = f->scheme->again == AGK_IQ_THOSE_OFF;
    bool any = f->scheme->again == AGK_IQ_ALL;
    for (int k = 0; k < f->points; ++k) any = any || f->off[k];
    if (!any || !(scale > 0.0f)) return scale;
    for (int k = 0; k < f->points; ++k) {
        if (!only_those || f->off[k]) (void)find(f, k, scale, 1.0f / scale, &f->point[k]);
    }
    float product, square;
    moments(f, f->point, &product, &square);
    return square > 0.0f ? product / square : scale;
}

enum { FREE_TOP = 4 };

static int free_level(float x)
{
    const int level = agk_nearest(x);
    return level < FREE_TOP ? level : FREE_TOP;
}

/* Moves one element after the other to the level that is best while all others stay; five rounds at most. Levels are
 * kept in a byte, as in ggml: a level below zero, of an element whose sign was flipped, counts as 255. */
static void descend(const fit *f, uint8_t *level, float *product, float *square)
{
    const int n = f->scheme->group;
    for (int round = 0, changed = 1; round < 5 && changed != 0; ++round) {
        changed = 0;
        for (int i = 0; i < n; ++i) {
            const float w = f->weight[i], x = f->x[i];
            float p = *product - w * x * (float)level[i], s = *square - w * (float)level[i] * (float)level[i];
            if (!(p > 0.0f && s > 0.0f)) continue;
            const int next = free_level(x * s / p);
            if (next == level[i]) continue;
            p += w * x * (float)next;
            s += w * (float)next * (float)next;
            if (p * p * *square > *product * *product * s) {
                level[i] = (uint8_t)next;
                *product = p;
                *square = s;
                ++changed;
            }
        }
    }
}

/* The scale of the best fit to levels 0..4, without codebook; 0 if there is nothing to fit. */
static float free_scale(const fit *f, float largest)
{
    const int n = f->scheme->group;
    float inverse = (float)FREE_TOP / largest, least = 0.0f;
    uint8_t level[AGK_IQ_GROUP];
    for (int i = 0; i < n; ++i) {
        level[i] = (uint8_t)agk_nearest(inverse * f->x[i]);
        const float rest = f->x[i] - 1.0f / inverse * (float)level[i];
        least += f->weight[i] * rest * rest;
    }
    for (int i = -4; i <= 4; ++i) {
        if (i == 0) continue;
        const float other = (0.1f * (float)i + (float)FREE_TOP) / largest;
        float error = 0.0f;
        for (int j = 0; j < n; ++j) {
            const float rest = f->x[j] - 1.0f / other * (float)free_level(other * f->x[j]);
            error += f->weight[j] * rest * rest;
        }
        if (error < least) {
            least = error;
            inverse = other;
        }
    }
    float product = 0.0f, square = 0.0f;
    for (int i = 0; i < n; ++i) {
        const int l = free_level(inverse * f->x[i]);
        level[i] = (uint8_t)l;
        product += f->weight[i] * f->x[i] * (float)l;
        square += f->weight[i] * (float)l * (float)l;
    }
    descend(f, level, &product, &square);
    return square > 0.0f ? product / square : 0.0f;
}

/* Magnitudes of 8 elements; bit i of the result: element i is negative. If the number of negative elements has to be
 * even, the element whose weighted square is least is flipped. */
static uint8_t take_signs(const float *x, const float *weight, bool even, float *magnitude)
{
    unsigned signs = 0, odd = 0;
    for (int i = 0; i < 8; ++i) {
        const unsigned negative = x[i] >= 0.0f ? 0u : 1u;
        magnitude[i] = negative ? -x[i] : x[i];
        signs |= negative << i;
        odd ^= negative;
    }
    if (even && odd) {
        int least = 0;
        for (int i = 1; i < 8; ++i) {
            if (weight[i] * x[i] * x[i] < weight[least] * x[least] * x[least]) least = i;
        }
        magnitude[least] = -magnitude[least];
        signs ^= 1u << least;
    }
    return (uint8_t)signs;
}

static void fit_group(fit *f, const float *x, agk_iq_group *group)
{
    const agk_iq_scheme *scheme = f->scheme;
    const int n = scheme->group;
    uint8_t signs[4] = {0};
    memset(group, 0, sizeof *group);
    for (int i = 0; i < n; ++i) f->root[i] = sqrtf(f->weight[i]);
    for (int i = 0; i < n / 8; ++i)
        signs[i] = take_signs(x + 8 * i, f->weight + 8 * i, scheme->even_signs, f->x + 8 * i);
    float largest = f->x[0];
    for (int i = 1; i < n; ++i) largest = largest > f->x[i] ? largest : f->x[i];
    if (largest < scheme->least) return;

    memset(f->point, 0, sizeof f->point);
    for (int k = 0; k < 8; ++k) f->off[k] = scheme->again == AGK_IQ_ALL_IF_OFF;
    float scale = largest / (float)(2 * f->book->top + 1);
    if (scheme->free_start) {
        scale = free_scale(f, largest);
        largest = scale * (float)(f->book->top + 1);
        if (largest <= 0.0f) return;
    }
    scale = seek_again(f, try_scales(f, scale, largest));
    if (scale < 0.0f) { /* scales are unsigned */
        scale = -scale;
        for (int i = 0; i < n / 8; ++i) signs[i] = (uint8_t)~signs[i];
    }
    group->fitted = true;
    group->scale = scale;
    memcpy(group->point, f->point, sizeof f->point);
    for (int i = 0; i < n / 8; ++i) group->signs[i] = scheme->even_signs ? signs[i] & 127 : signs[i];
}

float agk_iq_fit_block(const agk_iq_scheme *scheme, const float *x, const float *imatrix, agk_iq_group *groups)
{
    fit f = {.scheme = scheme, .book = scheme->book()};
    f.points = scheme->group / f.book->width;
    const float mean = agk_iq_mean_square(x, scheme->spread);
    const float added = scheme->weight == AGK_IQ_SQUARE ? 0.0f : 0.25f * mean;
    float largest = 0.0f;
    for (int i = 0; i < AGK_IQ_BLOCK; i += scheme->group, ++groups) {
        agk_iq_weigh(f.weight, x + i, imatrix != NULL ? imatrix + i : NULL, scheme->group, mean, added);
        fit_group(&f, x + i, groups);
        largest = largest > groups->scale ? largest : groups->scale;
    }
    return largest;
}
