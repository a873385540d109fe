/* upscale: an image seen at another resolution, larger or smaller: nearest, bilinear (also with a filter as wide as the
 * new pixels), bicubic. Dimensions 2 and 3 always take the nearest.
 *
 * Here: the lowering and the steps. All weights are f32, formed as ggml forms them. */
#include <math.h>

#include "../kernel_types.h"
#include "../units.h"

enum { NEAREST, BILINEAR, BICUBIC, MODE = 0xff, ALIGN_CORNERS = 1 << 8, ANTIALIAS = 1 << 9 };

typedef struct sampler {
    const agk_view *a;
    const char *plane;
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

static int64_t clamped(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i < n ? i : n - 1;
}

static int64_t nearest(const sampler *s, int d, int64_t i)
{
    return clamped((int64_t)((float)i / s->scale[d]), s->a->ne[d]);
}

static float pixel(const sampler *s, int64_t i0, int64_t i1)
{
    return agk_load(AGK_F32,
                    s->plane + clamped(i0, s->a->ne[0]) * s->a->nb[0] + clamped(i1, s->a->ne[1]) * s->a->nb[1]);
}

static float position(const sampler *s, int d, int64_t i)
{
    return ((float)i + s->offset) / s->scale[d] - s->offset;
}

static float share(float x, int64_t first)
{
    return fminf(1.0f, fmaxf(0.0f, x - (float)first));
}

static float bilinear(const sampler *s, int64_t i0, int64_t i1)
{
    const float x = position(s, 0, i0), y = position(s, 1, i1);
    const int64_t x0 = (int64_t)floorf(x), y0 = (int64_t)floorf(y);
    const float dx = share(x, clamped(x0, s->a->ne[0])), dy = share(y, clamped(y0, s->a->ne[1]));
    return pixel(s, x0, y0) * (1.0f - dx) * (1.0f - dy) + pixel(s, x0 + 1, y0) * dx * (1.0f - dy) +
           pixel(s, x0, y0 + 1) * (1.0f - dx) * dy + pixel(s, x0 + 1, y0 + 1) * dx * dy;
}

/* Keys' cubic with a = -0.75: weights of the four pixels around a place dx behind the second. */
static void cubic(float dx, float *w)
{
    const float a = -0.75f;
    for (int i = 0; i < 4; ++i) {
        const float t = fabsf(dx + 1.0f - (float)i);
        w[i] = t <= 1.0f ? ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f
                         : ((a * t - 5.0f * a) * t + 8.0f * a) * t - 4.0f * a;
    }
}

static float bicubic(const sampler *s, int64_t i0, int64_t i1)
{
    const float x = position(s, 0, i0), y = position(s, 1, i1);
    const int64_t x0 = (int64_t)floorf(x), y0 = (int64_t)floorf(y);
    float wx[4], wy[4], sum = 0.0f;
    cubic(x - (float)x0, wx);
    cubic(y - (float)y0, wy);
    for (int j = 0; j < 4; ++j) {
        float line = 0.0f;
        for (int i = 0; i < 4; ++i) line += pixel(s, x0 - 1 + i, y0 - 1 + j) * wx[i];
        sum += line * wy[j];
    }
    return sum;
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

static float filtered(const sampler *s, int64_t i0, int64_t i1)
{
    const reach x = reach_of(s, 0, i0), y = reach_of(s, 1, i1);
    float sum = 0.0f, weights = 0.0f;
    for (int64_t j = y.first; j < y.last; ++j) {
        const float wy = triangle(s, &y, j);
        for (int64_t i = x.first; i < x.last; ++i) {
            const float w = triangle(s, &x, i) * wy;
            sum += pixel(s, i, j) * w;
            weights += w;
        }
    }
    return weights > 0.0f ? sum / weights : sum;
}

/* A unit is a row of the result. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    sampler s = sampler_of(node);
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const int mode = node->params[0] & MODE;
    const bool wide = (node->params[0] & ANTIALIAS) != 0;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i1 = unit % dst->ne[1], i2 = unit / dst->ne[1] % dst->ne[2], i3 = unit / dst->ne[1] / dst->ne[2];
        float *to = (float *)(void *)(y + agk_row_offset(dst, unit));
        s.plane = x + nearest(&s, 2, i2) * a->nb[2] + nearest(&s, 3, i3) * a->nb[3];
        for (int64_t i0 = 0; i0 < dst->ne[0]; ++i0) {
            switch (mode) {
            case NEAREST: to[i0] = pixel(&s, nearest(&s, 0, i0), nearest(&s, 1, i1)); break;
            case BILINEAR: to[i0] = wide ? filtered(&s, i0, i1) : bilinear(&s, i0, i1); break;
            default: to[i0] = bicubic(&s, i0, i1);
            }
        }
    }
    return AGK_OK;
}

agk_status agk_lower_conv_upscale(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int mode = node->params[0] & MODE;
    if (a->type != AGK_F32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "%s as %s", agk_type_name(a->type), agk_type_name(dst->type));
    }
    if (mode > BICUBIC || ((node->params[0] & ANTIALIAS) != 0 && mode != BILINEAR)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "there is no mode %d", node->params[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (agk_nelements(a) == 0) return agk_refuse(lowering, AGK_INVALID, "nothing to be seen in a");
    double ns = mode == NEAREST ? 3.0 : mode == BILINEAR ? 10.0 : 40.0;
    if ((node->params[0] & ANTIALIAS) != 0) {
        const sampler s = sampler_of(node);
        ns *= (double)(fmaxf(1.0f, 1.0f / s.scale[0]) * fmaxf(1.0f, 1.0f / s.scale[1]));
    }
    agk_add_units(lowering, run, agk_nrows(dst), ns * (double)dst->ne[0]);
    return AGK_OK;
}
