/* pad (with zeros, or circular), pad_reflect_1d, roll: elements of f32 that appear at other positions.
 *
 * Here: the lowering and one step, which copies rows. For each dimension of the result it computes the index in the
 * source. */
#include "table/kernel_types.h"
#include "units.h"

enum { CIRCULAR = 8 }; /* a slot of node->params */

enum { ROW, PREFETCHES }; /* slots of node->aux: the kernel that copies a run; whether the next row is prefetched */

/* The index along dimension d of the source of what comes to index i of the result; -1: a zero comes there. */
static int64_t source_index(const agk_node *node, int d, int64_t i)
{
    const int64_t n = node->src[0].ne[d];
    const int32_t *p = node->params;
    int64_t at = i;
    switch (node->op) {
    case AGK_OP_roll:
        at = i - p[d];
        if (at < -n || at >= n) at %= n; /* worth testing for, since it saves a division for each row */
        return at < 0 ? at + n : at;
    case AGK_OP_pad_reflect_1d:
        if (d > 0) return i;
        at = i - p[0];
        return at < 0 ? -at : at < n ? at : 2 * (n - 1) - at;
    default: at = i - p[2 * d];
    }
    if (p[CIRCULAR] == 0) return at >= 0 && at < n ? at : -1;
    at %= n;
    return at < 0 ? at + n : at;
}

/* n elements from `from` on, in reverse order. */
static void copy_reversed(float *to, const char *from, int64_t stride, int64_t n)
{
    if (stride == 4) {
        const float *x = (const float *)(const void *)from;
        for (int64_t k = 0; k < n; ++k) to[k] = x[-k];
        return;
    }
    for (int64_t k = 0; k < n; ++k) to[k] = agk_load(AGK_F32, from - k * stride);
}

/* Copies a row of the source to a row of the result, in runs of neighbouring elements. */
static void copy_row(const agk_node *node, float *to, const char *from)
{
    const int64_t stride = node->src[0].nb[0], n = node->src[0].ne[0], all = node->dst.ne[0];
    const bool reflects = node->op == AGK_OP_pad_reflect_1d;
    agk_cpy_row_fn *copy = (agk_cpy_row_fn *)node->aux.fn[ROW];
    for (int64_t i = 0, run = 1; i < all; i += run) {
        const int64_t at = source_index(node, 0, i), ahead = all - i;
        if (reflects && (i < node->params[0] || i >= node->params[0] + n)) { /* a reflected part runs backwards */
            run = i < node->params[0] ? at : ahead;
            copy_reversed(to + i, from + at * stride, stride, run);
            continue;
        }
        if (at < 0) { /* before the source begins, or after it ends */
            const int64_t before = node->params[0] - i;
            run = before > 0 && before < ahead ? before : ahead;
            memset(to + i, 0, (size_t)run * sizeof *to);
            continue;
        }
        run = n - at < ahead ? n - at : ahead;
        if (stride == 4)
            copy(4 * run, to + i, from + at * stride);
        else
            agk_gather_32((char *)(to + i), from + at * stride, stride, run);
    }
}

/* A unit is a row of the result. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    agk_row at = agk_row_of(dst, units.first);
    for (int64_t row = units.first; row < units.last; ++row, agk_row_next(dst, &at)) {
        const int64_t i1 = source_index(node, 1, at.i1), i2 = source_index(node, 2, at.i2),
                      i3 = source_index(node, 3, at.i3);
        float *to = (float *)(void *)(y + at.i1 * dst->nb[1] + at.i2 * dst->nb[2] + at.i3 * dst->nb[3]);
        if (i1 < 0 || i2 < 0 || i3 < 0) {
            memset(to, 0, (size_t)dst->ne[0] * sizeof *to);
            continue;
        }
        const char *from = x + i1 * a->nb[1] + i2 * a->nb[2] + i3 * a->nb[3];
        if (node->aux.i[PREFETCHES])
            for (int64_t i = 0; i < 4 * a->ne[0]; i += 64) __builtin_prefetch(from + a->nb[1] + i);
        copy_row(node, to, from);
    }
    return AGK_OK;
}

agk_status agk_lower_shape_pad(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int32_t *p = node->params;
    if (a->type != AGK_F32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32", agk_type_name(a->type));
    }
    for (int d = 0; d < 4; ++d) {
        int64_t n = a->ne[d];
        if (node->op == AGK_OP_pad) n += (int64_t)p[2 * d] + p[2 * d + 1];
        if (node->op == AGK_OP_pad_reflect_1d && d == 0) n += (int64_t)p[0] + p[1];
        const bool reflects =
            node->op != AGK_OP_pad_reflect_1d || (p[0] >= 0 && p[1] >= 0 && p[0] < a->ne[0] && p[1] < a->ne[0]);
        if (n == dst->ne[d] && reflects) continue;
        return agk_refuse(lowering, AGK_INVALID,
                          "the result has %lld elements in dimension %d, which does not fit the %lld of a",
                          (long long)dst->ne[d], d, (long long)a->ne[d]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (agk_nelements(a) == 0 && (node->op != AGK_OP_pad || p[CIRCULAR] != 0)) {
        return agk_refuse(lowering, AGK_INVALID, "a is empty, but the result is not");
    }
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    /* The two runs of a row begin anywhere in a line. 1024 x 1024 on two threads of a Zen 5, from the L3: 41 us instead
     * of 44; pad is not faster. */
    node->aux.i[PREFETCHES] =
        node->op == AGK_OP_roll && (lowering->cpu & AGK_ZEN5) != 0 && agk_nelements(dst) >= 1 << 18;
    agk_add_units(lowering, run, agk_nrows(dst), 30.0 + 0.3 * (double)dst->ne[0]);
    return AGK_OK;
}
