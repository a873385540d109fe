/* upscale: resamples an image to another size, larger or smaller: nearest, bilinear (also with a filter as wide as the
 * new pixels), bicubic. Dimensions 2 and 3 always take the nearest element.
 *
 * Here: the lowering and the steps. All weights are f32, computed as in ggml; those of a row are computed once for
 * all its lines. */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

enum { NEAREST, BILINEAR, BICUBIC, MODE = 0xff, ALIGN_CORNERS = 1 << 8, ANTIALIAS = 1 << 9 };

typedef struct sampler {
    const agk_view *a;
    float scale[4]; /* new extent over old */
    float offset;   /* of a pixel's centre: 0.5, or 0 where corners are kept */
} sampler;

static sampler sampler_of(const agk_node *node)
{
    const agk_view *a = &node->src[0], *y = &node->dst;
    sampler s = {.a = a, .offset = 0.5f};
    for (int d = 0; d < 4; ++d) s.scale[d] = (float)y->ne[d] / (float)a->ne[d];
    if ((node->params[0] & ALIGN_CORNERS) == 0) return s;
    s.offset = 0.0f;
    for (int d = 0; d < 2; ++d) {
        if (y->ne[d] > 1 && a->ne[d] > 1) s.scale[d] = (float)(y->ne[d] - 1) / (float)(a->ne[d] - 1);
    }
    return s;
}

static int64_t clamp(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i < n ? i : n - 1;
}

static int64_t nearest(const sampler *s, int d, int64_t i)
{
    return clamp((int64_t)((float)i / s->scale[d]), s->a->ne[d]);
}

static float position(const sampler *s, int d, int64_t i)
{
    return ((float)i + s->offset) / s->scale[d] - s->offset;
}

static float share(float x, int64_t first)
{
    return fminf(1.0f, fmaxf(0.0f, x - (float)first));
}

/* Keys' cubic with a = -0.75: the weights of the four pixels around a position that is dx behind the second. */
static void cubic(float dx, float *w)
{
    const float a = -0.75f;
    for (int i = 0; i < 4; ++i) {
        const float t = fabsf(dx + 1.0f - (float)i);
        w[i] = t <= 1.0f ? ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f
                         : ((a * t - 5.0f * a) * t + 8.0f * a) * t - 4.0f * a;
    }
}

typedef struct reach {
    float centre, width;
    int64_t first, last;
} reach;

static reach reach_of(const sampler *s, int d, int64_t i)
{
    reach r = {.centre = ((float)i + s->offset) / s->scale[d], .width = fmaxf(1.0f, 1.0f / s->scale[d])};
    const int64_t first = (int64_t)(r.centre - r.width + s->offset), last = (int64_t)(r.centre + r.width + s->offset);
    r.first = first < 0 ? 0 : first;
    r.last = last < s->a->ne[d] ? last : s->a->ne[d];
    return r;
}

static float triangle(const sampler *s, const reach *r, int64_t i)
{
    return fmaxf(0.0f, 1.0f - fabsf(((float)i - r->centre + s->offset) / r->width));
}

/* The `taps` pixels that make one new pixel along a dimension: their offsets in bytes, and their weights. */
typedef struct taps {
    int64_t *at;
    float *weight;
} taps;

static int mode_of(const agk_node *node)
{
    return node->params[0] & MODE;
}

static bool is_filtered(const agk_node *node)
{
    return (node->params[0] & ANTIALIAS) != 0;
}

/* The greatest number of pixels for one place of a dimension. */
static int64_t taps_of(const agk_node *node, int d)
{
    if (!is_filtered(node)) return mode_of(node) == NEAREST ? 1 : mode_of(node) == BILINEAR ? 2 : 4;
    const sampler s = sampler_of(node);
    return (int64_t)(2.0f * fmaxf(1.0f, 1.0f / s.scale[d])) + 3;
}

/* Fills in those of place i; returns how many there are. */
static int64_t look(const agk_node *node, const sampler *s, int d, int64_t i, int64_t *at, float *weight)
{
    const int64_t n = s->a->ne[d], stride = s->a->nb[d];
    if (is_filtered(node)) {
        const reach r = reach_of(s, d, i);
        for (int64_t k = r.first; k < r.last; ++k) {
            at[k - r.first] = clamp(k, n) * stride;
            weight[k - r.first] = triangle(s, &r, k);
        }
        return r.last > r.first ? r.last - r.first : 0;
    }
    if (mode_of(node) == NEAREST) {
        at[0] = nearest(s, d, i) * stride;
        return 1;
    }
    const float x = position(s, d, i);
    const int64_t first = (int64_t)floorf(x);
    if (mode_of(node) == BILINEAR) {
        at[0] = clamp(first, n) * stride;
        at[1] = clamp(first + 1, n) * stride;
        weight[1] = share(x, clamp(first, n));
        weight[0] = 1.0f - weight[1];
        return 2;
    }
    cubic(x - (float)first, weight);
    for (int k = 0; k < 4; ++k) at[k] = clamp(first - 1 + k, n) * stride;
    return 4;
}

static inline float pixel(const char *line, int64_t at)
{
    float value;
    memcpy(&value, line + at, sizeof value);
    return value;
}

/* A row of the result. y has its lines of the image; x has all places of the row, `each` apart, x_count of them
 * used. */
static void row_of(const agk_node *node, const char *plane, taps y, int64_t y_count, taps x, const int64_t *x_count,
                   int64_t each, float *to)
{
    const int64_t n = node->dst.ne[0];
    if (mode_of(node) == NEAREST) {
        const char *line = plane + y.at[0];
        for (int64_t i = 0; i < n; ++i) to[i] = pixel(line, x.at[i]);
        return;
    }
    if (is_filtered(node)) {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t *at = x.at + i * each;
            const float *wx = x.weight + i * each;
            float sum = 0.0f, weights = 0.0f;
            for (int64_t j = 0; j < y_count; ++j) {
                for (int64_t k = 0; k < x_count[i]; ++k) {
                    const float w = wx[k] * y.weight[j];
                    sum += pixel(plane + y.at[j], at[k]) * w;
                    weights += w;
                }
            }
            to[i] = weights > 0.0f ? sum / weights : sum;
        }
        return;
    }
    if (mode_of(node) == BILINEAR) {
        const char *upper = plane + y.at[0], *lower = plane + y.at[1];
        const float w0 = y.weight[0], w1 = y.weight[1];
        for (int64_t i = 0; i < n; ++i) {
            const int64_t *at = x.at + 2 * i;
            const float *wx = x.weight + 2 * i;
            to[i] = pixel(upper, at[0]) * wx[0] * w0 + pixel(upper, at[1]) * wx[1] * w0 +
                    pixel(lower, at[0]) * wx[0] * w1 + pixel(lower, at[1]) * wx[1] * w1;
        }
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t *at = x.at + 4 * i;
        const float *wx = x.weight + 4 * i;
        float sum = 0.0f;
        for (int j = 0; j < 4; ++j) {
            const char *line = plane + y.at[j];
            float part = 0.0f;
            for (int k = 0; k < 4; ++k) part += pixel(line, at[k]) * wx[k];
            sum += part * y.weight[j];
        }
        to[i] = sum;
    }
}

/* A unit is a row of the result. Scratch: offsets of all places of a row, offsets of a line, their numbers; then
 * their weights. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const sampler s = sampler_of(node);
    const char *data = agk_data(task, a);
    char *to = agk_data(task, dst);
    const int64_t each = taps_of(node, 0), n = dst->ne[0], lines = taps_of(node, 1);
    int64_t *count = task->scratch;
    taps x = {.at = count + n}, y = {.at = count + n + n * each};
    x.weight = (float *)(void *)(y.at + lines);
    y.weight = x.weight + n * each;
    for (int64_t i = 0; i < n; ++i) count[i] = look(node, &s, 0, i, x.at + i * each, x.weight + i * each);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i1 = unit % dst->ne[1], i2 = unit / dst->ne[1] % dst->ne[2], i3 = unit / dst->ne[1] / dst->ne[2];
        const char *plane = data + nearest(&s, 2, i2) * a->nb[2] + nearest(&s, 3, i3) * a->nb[3];
        const int64_t y_count = look(node, &s, 1, i1, y.at, y.weight);
        row_of(node, plane, y, y_count, x, count, each, (float *)(void *)(to + agk_row_offset(dst, unit)));
    }
    return AGK_OK;
}

agk_status agk_lower_conv_upscale(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int mode = node->params[0] & MODE;
    if (a->type != AGK_F32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s and the result is %s; both must be f32",
                          agk_type_name(a->type), agk_type_name(dst->type));
    }
    if (mode > BICUBIC || ((node->params[0] & ANTIALIAS) != 0 && mode != BILINEAR)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "there is no mode %d", node->params[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (agk_nelements(a) == 0) return agk_refuse(lowering, AGK_INVALID, "a is empty, but the result is not");
    double ns = mode == NEAREST ? 1.0 : mode == BILINEAR ? 3.0 : 10.0;
    const int64_t each = taps_of(node, 0), lines = taps_of(node, 1), places = dst->ne[0];
    lowering->scratch_size =
        (size_t)(places + places * each + lines) * sizeof(int64_t) + (size_t)(places * each + lines) * sizeof(float);
    if ((node->params[0] & ANTIALIAS) != 0) {
        const sampler s = sampler_of(node);
        ns *= (double)(fmaxf(1.0f, 1.0f / s.scale[0]) * fmaxf(1.0f, 1.0f / s.scale[1]));
    }
    /* A chunk begins by computing the places of a row: at least ten rows share that work. */
    agk_add_units(lowering, run, agk_nrows(dst), fmin(ns * (double)dst->ne[0], 1000.0));
    return AGK_OK;
}
