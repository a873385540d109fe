/* soft_max over rows of f32: scale, mask (f16 or f32, repeated over dimensions 2 and 3), ALiBi, sinks.
 *
 * Here: the lowering. Not here: the kernel (soft_max.c of each folder of kernels/), whole attention (attention/). */
#include <math.h>

#include "alibi.h"
#include "table/kernel_types.h"
#include "units.h"

enum { KERNEL }; /* slots of node->aux */

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    agk_soft_max_f32_fn *kernel = (agk_soft_max_f32_fn *)node->aux.fn[KERNEL];
    const agk_view *dst = &node->dst, *a = &node->src[0], *m = &node->src[1];
    char *y = agk_data(task, dst);
    const char *x = agk_data(task, a);
    const char *mask = agk_has(node, 1) ? agk_data(task, m) : NULL;
    const char *sinks = agk_has(node, 2) ? agk_data(task, &node->src[2]) : NULL;
    const float max_bias = agk_param_f32(node, 1);
    agk_soft_max_row row = {.scale = agk_param_f32(node, 0), .slope = 1.0f, .sink = -INFINITY};
    row.mask_f16 = mask != NULL && m->type == AGK_F16;
    const agk_range units = agk_units_of(node, chunk);
    int64_t i1 = units.first % a->ne[1], i2 = units.first / a->ne[1] % a->ne[2], i3 = units.first / a->ne[1] / a->ne[2];
    for (int64_t r = units.first, head = -1; r < units.last; ++r) {
        if (head != i2) {
            head = i2;
            if (max_bias > 0.0f) row.slope = agk_alibi_slope(head, a->ne[2], max_bias);
            if (sinks != NULL) memcpy(&row.sink, sinks + head * node->src[2].nb[0], sizeof row.sink);
        }
        if (mask != NULL) row.mask = mask + i1 * m->nb[1] + i2 % m->ne[2] * m->nb[2] + i3 % m->ne[3] * m->nb[3];
        kernel(a->ne[0], (float *)(void *)(y + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]),
               (const float *)(const void *)(x + i1 * a->nb[1] + i2 * a->nb[2] + i3 * a->nb[3]), &row);
        if (++i1 < a->ne[1]) continue;
        i1 = 0;
        if (++i2 < a->ne[2]) continue;
        i2 = 0;
        ++i3;
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *m = &node->src[1], *sinks = &node->src[2];
    agk_status status = agk_expect_f32_like(lowering, &node->dst, a);
    if (status == AGK_OK) status = agk_expect_dense_rows(lowering, &node->dst, a);
    if (status != AGK_OK) return status;
    if (agk_has(node, 1)) {
        if (m->type != AGK_F32 && m->type != AGK_F16) {
            return agk_refuse(lowering, AGK_UNSUPPORTED, "the mask is %s, not f32 or f16", agk_type_name(m->type));
        }
        const bool fits = m->ne[0] == a->ne[0] && m->ne[1] >= a->ne[1] && m->ne[2] > 0 && m->ne[3] > 0 &&
                          a->ne[2] % m->ne[2] == 0 && a->ne[3] % m->ne[3] == 0;
        if (!fits || m->nb[0] != (int64_t)agk_traits(m->type)->type_size) {
            return agk_refuse(lowering, AGK_INVALID,
                              "a mask of %lld x %lld x %lld x %lld for %lld x %lld x %lld x %lld", (long long)m->ne[0],
                              (long long)m->ne[1], (long long)m->ne[2], (long long)m->ne[3], (long long)a->ne[0],
                              (long long)a->ne[1], (long long)a->ne[2], (long long)a->ne[3]);
        }
    } else if (agk_param_f32(node, 1) > 0.0f) {
        return agk_refuse(lowering, AGK_INVALID, "max_bias is %g without a mask", (double)agk_param_f32(node, 1));
    }
    if (agk_has(node, 2) && (sinks->type != AGK_F32 || agk_nelements(sinks) != a->ne[2] || sinks->ne[0] != a->ne[2])) {
        return agk_refuse(lowering, AGK_INVALID, "there are %lld sinks of %s; expected f32, one for each of %lld heads",
                          (long long)agk_nelements(sinks), agk_type_name(sinks->type), (long long)a->ne[2]);
    }
    return AGK_OK;
}

agk_status agk_lower_soft_max(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(&node->dst) == 0) return status;
    const int64_t rows = agk_nrows(&node->dst);
    node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(soft_max_f32, lowering->cpu);
    const double ns = AGK_IS_PLAIN(soft_max_f32, node->aux.fn[KERNEL]) ? 8.0 : 0.3;
    agk_add_units(lowering, run, rows, ns * (double)node->dst.ne[0] + 15.0);
    return AGK_OK;
}
