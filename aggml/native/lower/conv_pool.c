/* pool_1d, pool_2d: the largest element, or the mean, of each window; pool_2d_back: the gradient of pool_2d.
 *
 * A mean in two dimensions counts elements outside the image as zeros; a mean in one dimension leaves them out (as
 * in ggml). A window without any element gives -FLT_MAX, or 0. Here: the lowering and the steps. */
#include <float.h>

#include "table/kernel_types.h"
#include "units.h"

enum { MAX = 0 };

typedef struct window {
    bool max;
    int64_t size[2], stride[2], pad[2];
} window;

static window window_of(const agk_node *node)
{
    const int32_t *p = node->params;
    if (node->op == AGK_OP_pool_1d) return (window){p[0] == MAX, {p[1], 1}, {p[2], 1}, {p[3], 0}};
    return (window){p[0] == MAX, {p[1], p[2]}, {p[3], p[4]}, {p[5], p[6]}};
}

/* One dimension of a window, clipped to n elements. */
static agk_range inside(const window *w, int d, int64_t place, int64_t n)
{
    const int64_t first = place * w->stride[d] - w->pad[d], last = first + w->size[d];
    return (agk_range){first < 0 ? 0 : first, last > n ? n : last};
}

/* A window of contiguous f32; where this is inlined, the width is a constant. */
static inline float pool_one(bool max, int64_t n0, int64_t n1, const char *x, int64_t apart, float *sum)
{
    float most = -FLT_MAX, total = 0.0f;
    for (int64_t i1 = 0; i1 < n1; ++i1, x += apart) {
        const float *line = (const float *)(const void *)x;
        for (int64_t i0 = 0; i0 < n0; ++i0) {
            if (max)
                most = line[i0] > most ? line[i0] : most;
            else
                total += line[i0];
        }
    }
    *sum = total;
    return most;
}

/* Results first .. last - 1 of a row, whose windows are not clipped at the sides. */
static inline void pool_line(bool max, int64_t width, agk_range places, const window *w, const char *x, int64_t lines,
                             int64_t apart, float count, float *to)
{
    for (int64_t o0 = places.first; o0 < places.last; ++o0) {
        float sum;
        const float most = pool_one(max, width, lines, x + 4 * (o0 * w->stride[0] - w->pad[0]), apart, &sum);
        to[o0] = max ? most : sum / count;
    }
}

static void pool_dense(const window *w, agk_range places, const char *x, int64_t lines, int64_t apart, float count,
                       float *to)
{
    if (w->size[0] == 2 && w->max)
        pool_line(true, 2, places, w, x, lines, apart, count, to);
    else if (w->size[0] == 2)
        pool_line(false, 2, places, w, x, lines, apart, count, to);
    else if (w->size[0] == 3 && w->max)
        pool_line(true, 3, places, w, x, lines, apart, count, to);
    else if (w->size[0] == 3)
        pool_line(false, 3, places, w, x, lines, apart, count, to);
    else if (w->max)
        pool_line(true, w->size[0], places, w, x, lines, apart, count, to);
    else
        pool_line(false, w->size[0], places, w, x, lines, apart, count, to);
}

/* The places along a line whose windows are not clipped. */
static agk_range whole_windows(const window *w, int64_t n, int64_t places)
{
    agk_range r = {(w->pad[0] + w->stride[0] - 1) / w->stride[0], 0};
    if (n + w->pad[0] >= w->size[0]) r.last = (n + w->pad[0] - w->size[0]) / w->stride[0] + 1;
    if (r.last > places) r.last = places;
    return r;
}

/* A unit is a row of the result. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const window w = window_of(node);
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const bool plane = node->op == AGK_OP_pool_2d;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t o1 = unit % dst->ne[1], i2 = unit / dst->ne[1] % dst->ne[2], i3 = unit / dst->ne[1] / dst->ne[2];
        const agk_range lines = plane ? inside(&w, 1, o1, a->ne[1]) : (agk_range){o1, o1 + 1};
        const char *from = x + i2 * a->nb[2] + i3 * a->nb[3];
        float *to = (float *)(void *)(y + agk_row_offset(dst, unit));
        agk_range easy = {0, 0};
        if (a->type == AGK_F32 && a->nb[0] == 4 && lines.last > lines.first) {
            easy = whole_windows(&w, a->ne[0], dst->ne[0]);
            if (easy.last < easy.first) easy.last = easy.first;
            pool_dense(&w, easy, from + lines.first * a->nb[1], lines.last - lines.first, a->nb[1],
                       (float)(plane ? w.size[0] * w.size[1] : w.size[0]), to);
        }
        for (int64_t o0 = 0; o0 < dst->ne[0]; ++o0) {
            if (o0 == easy.first && easy.last > easy.first) o0 = easy.last;
            if (o0 == dst->ne[0]) break;
            const agk_range line = inside(&w, 0, o0, a->ne[0]);
            float most = -FLT_MAX, sum = 0.0f;
            for (int64_t i1 = lines.first; i1 < lines.last; ++i1) {
                for (int64_t i0 = line.first; i0 < line.last; ++i0) {
                    const float value = agk_load(a->type, from + i1 * a->nb[1] + i0 * a->nb[0]);
                    sum += value;
                    if (value > most) most = value;
                }
            }
            const int64_t count = plane ? w.size[0] * w.size[1] : line.last - line.first;
            to[o0] = w.max ? most : count > 0 ? sum / (float)count : 0.0f;
        }
    }
    return AGK_OK;
}

/* The position of the first of the largest elements of a window, -1 if the window has no element. */
static void largest(const agk_view *a, const char *x, agk_range lines, agk_range line, int64_t *at)
{
    float most = -FLT_MAX;
    at[0] = at[1] = -1;
    for (int64_t i1 = lines.first; i1 < lines.last; ++i1) {
        for (int64_t i0 = line.first; i0 < line.last; ++i0) {
            const float value = agk_load(a->type, x + i1 * a->nb[1] + i0 * a->nb[0]);
            if (value <= most) continue;
            most = value;
            at[0] = i0;
            at[1] = i1;
        }
    }
}

/* A unit is a plane. Windows overlap, so one thread adds up a plane. src: gradient, forward input. */
static agk_status run_back(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const window w = window_of(node);
    const agk_view *grad = &node->src[0], *a = &node->src[1], *dst = &node->dst;
    const float share = 1.0f / (float)(w.size[0] * w.size[1]);
    const char *g = agk_data(task, grad), *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const int64_t n0 = dst->ne[0], n1 = dst->ne[1];
    float *sum = task->scratch;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i2 = unit % dst->ne[2], i3 = unit / dst->ne[2];
        for (int64_t i = 0; i < n0 * n1; ++i) sum[i] = 0.0f;
        for (int64_t o1 = 0; o1 < grad->ne[1]; ++o1) {
            const agk_range lines = inside(&w, 1, o1, n1);
            for (int64_t o0 = 0; o0 < grad->ne[0]; ++o0) {
                const agk_range line = inside(&w, 0, o0, n0);
                const float value =
                    agk_load(AGK_F32, g + o0 * grad->nb[0] + o1 * grad->nb[1] + i2 * grad->nb[2] + i3 * grad->nb[3]);
                if (w.max) {
                    int64_t at[2];
                    largest(a, x + i2 * a->nb[2] + i3 * a->nb[3], lines, line, at);
                    if (at[0] >= 0) sum[at[1] * n0 + at[0]] += value;
                    continue;
                }
                for (int64_t i1 = lines.first; i1 < lines.last; ++i1) {
                    for (int64_t i0 = line.first; i0 < line.last; ++i0) sum[i1 * n0 + i0] += value * share;
                }
            }
        }
        for (int64_t i1 = 0; i1 < n1; ++i1) {
            memcpy(y + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3], sum + i1 * n0, (size_t)n0 * sizeof *sum);
        }
    }
    return AGK_OK;
}

agk_status agk_lower_conv_pool(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const bool back = node->op == AGK_OP_pool_2d_back, plane = node->op != AGK_OP_pool_1d;
    const agk_view *dst = &node->dst, *image = back ? dst : &node->src[0], *places = back ? &node->src[0] : dst;
    const window w = window_of(node);
    const int type = back ? node->src[1].type : image->type;
    if ((type != AGK_F32 && type != AGK_F16) || places->type != AGK_F32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "images of %s cannot be pooled; expected f32 or f16, and f32 for the pooled ones",
                          agk_type_name(type));
    }
    if (node->params[0] < 0 || node->params[0] > 1) {
        return agk_refuse(lowering, AGK_INVALID, "pool %d is neither 0 (max) nor 1 (avg)", node->params[0]);
    }
    bool fits = image->ne[2] == places->ne[2] && image->ne[3] == places->ne[3] &&
                (plane || image->ne[1] == places->ne[1]) && (!back || agk_same_shape(dst, &node->src[1]));
    for (int d = 0; d < 2; ++d) fits = fits && w.size[d] > 0 && w.stride[d] > 0 && w.pad[d] >= 0;
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID,
                          "windows of %lld x %lld with strides of %lld x %lld do not fit images of %lld x %lld",
                          (long long)w.size[0], (long long)w.size[1], (long long)w.stride[0], (long long)w.stride[1],
                          (long long)image->ne[0], (long long)image->ne[1]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    const double ns = 2.0 + 1.0 * (double)(w.size[0] * w.size[1]);
    if (back) {
        lowering->scratch_size = (size_t)(dst->ne[0] * dst->ne[1]) * sizeof(float);
        agk_add_units(lowering, run_back, dst->ne[2] * dst->ne[3], ns * (double)(places->ne[0] * places->ne[1]));
    } else {
        agk_add_units(lowering, run, agk_nrows(dst), ns * (double)dst->ne[0]);
    }
    return AGK_OK;
}
