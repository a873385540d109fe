/* Ops whose values follow from positions: fill, arange, tri, diag, timestep_embedding.
 *
 * Here: the lowering and the steps. A unit is a row of the result, or an element of arange. */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

enum { UPPER_DIAG, UPPER, LOWER_DIAG, LOWER }; /* tri */
enum { KERNEL };                               /* slot of node->aux */

static agk_status run_fill(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst;
    agk_cpy_fill_32_fn *kernel = (agk_cpy_fill_32_fn *)node->aux.fn[KERNEL];
    const int64_t size = (int64_t)agk_traits(dst->type)->type_size, n = dst->ne[0];
    char one[4], *y = agk_data(task, dst);
    agk_store(dst->type, one, agk_param_f32(node, 0));
    if (size == 2) memcpy(one + 2, one, 2);
    uint32_t bits;
    memcpy(&bits, one, sizeof bits);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        char *to = y + agk_row_offset(dst, row);
        const int64_t dense = dst->nb[0] == size ? n * size / 4 * 4 / size : 0; /* elements that fill whole words */
        kernel(dense * size / 4, to, bits);
        for (int64_t i = dense; i < n; ++i) memcpy(to + i * dst->nb[0], one, (size_t)size);
    }
    return AGK_OK;
}

static agk_status run_arange(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const float start = agk_param_f32(node, 0), step = agk_param_f32(node, 2);
    float *y = agk_data(task, &node->dst);
    const agk_range units = agk_units_of(node, chunk);
    int64_t i = units.first;
    if (units.last <= INT32_MAX) { /* integers of 32 bits become floats in vectors on every processor */
        const int32_t last = (int32_t)units.last;
        for (int32_t k = (int32_t)i; k < last; ++k) y[k] = start + step * (float)k;
        i = units.last;
    }
    for (; i < units.last; ++i) y[i] = start + step * (float)i;
    return AGK_OK;
}

static agk_status run_tri(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int32_t triangle = node->params[0];
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        const int64_t i1 = row % dst->ne[1];
        const bool upper = triangle == UPPER || triangle == UPPER_DIAG,
                   diagonal = triangle == UPPER_DIAG || triangle == LOWER_DIAG;
        /* the position where the kept elements begin, or end */
        const int64_t edge = i1 + (upper == diagonal ? 0 : 1);
        const char *from = x + agk_row_offset(a, row);
        float *to = (float *)(void *)(y + agk_row_offset(dst, row));
        const int64_t n = dst->ne[0], cut = edge < n ? edge : n, first = upper ? cut : 0, last = upper ? n : cut;
        memset(to, 0, (size_t)first * sizeof *to);
        agk_gather_32((char *)(to + first), from + first * a->nb[0], a->nb[0], last - first);
        memset(to + last, 0, (size_t)(n - last) * sizeof *to);
    }
    return AGK_OK;
}

static agk_status run_diag(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        const int64_t i1 = row % dst->ne[1], i2 = row / dst->ne[1] % dst->ne[2], i3 = row / dst->ne[1] / dst->ne[2];
        float *to = (float *)(void *)(y + agk_row_offset(dst, row));
        for (int64_t i = 0; i < dst->ne[0]; ++i) to[i] = 0.0f;
        to[i1] = agk_load(AGK_F32, x + i1 * a->nb[0] + i2 * a->nb[2] + i3 * a->nb[3]);
    }
    return AGK_OK;
}

/* Cosines, then sines, of a time at frequencies from 1 down to 1 / max_period. If dim is odd, the last element is 0. */
static agk_status run_timestep(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t half = node->params[0] / 2;
    const float fall = -logf((float)node->params[1]);
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        const float time = agk_load(AGK_F32, x + row * a->nb[0]);
        float *to = (float *)(void *)(y + agk_row_offset(dst, row));
        for (int64_t j = 0; j < half; ++j) {
            const float angle = time * expf(fall * (float)j / (float)half);
            to[j] = cosf(angle);
            to[j + half] = sinf(angle);
        }
        if (dst->ne[0] > 2 * half) to[2 * half] = 0.0f;
    }
    return AGK_OK;
}

agk_status agk_lower_shape_fill(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const bool fill = node->op == AGK_OP_fill;
    if ((dst->type != AGK_F32 && !(fill && dst->type == AGK_F16)) || (node->n_src > 0 && a->type != dst->type)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the result is %s", agk_type_name(dst->type));
    }
    bool fits = true;
    agk_step_fn *run = run_fill;
    double ns = 10.0 + 0.2 * (double)dst->ne[0];
    switch (node->op) {
    case AGK_OP_fill: node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(cpy_fill_32, lowering->cpu); break;
    case AGK_OP_arange:
        run = run_arange;
        fits = agk_nrows(dst) == 1;
        break;
    case AGK_OP_tri:
        run = run_tri;
        fits = agk_same_shape(dst, a) && node->params[0] >= UPPER_DIAG && node->params[0] <= LOWER;
        break;
    case AGK_OP_diag:
        run = run_diag;
        fits = a->ne[1] == 1 && dst->ne[0] == a->ne[0] && dst->ne[1] == a->ne[0] && dst->ne[2] == a->ne[2] &&
               dst->ne[3] == a->ne[3];
        break;
    default:
        run = run_timestep;
        fits = node->params[0] >= 0 && node->params[1] > 0 && dst->ne[0] == node->params[0] && dst->ne[1] == a->ne[0] &&
               agk_nrows(dst) == dst->ne[1];
        ns = 10.0 + 30.0 * (double)dst->ne[0];
    }
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID,
                          "the result is %lld x %lld, which does not fit rows of %lld elements in a",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)a->ne[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    const bool line = node->op == AGK_OP_arange;
    agk_add_units(lowering, run, line ? dst->ne[0] : agk_nrows(dst), line ? 0.5 : ns);
    return AGK_OK;
}
