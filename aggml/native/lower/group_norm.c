/* group_norm: channels (dimension 2) form groups; each group of f32 is brought to mean 0 and variance 1.
 *
 * A group has ceil(channels / n_groups) channels; the last may have fewer, or none. One unit of work is a group. */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

enum { SIZE, GROUPS, ROW_SUM, ROW_SCALE }; /* slots of node->aux */

static inline float *row_of(char *data, const agk_view *view, int64_t i1, int64_t i2, int64_t i3)
{
    return (float *)(void *)(data + i1 * view->nb[1] + i2 * view->nb[2] + i3 * view->nb[3]);
}

static bool dense_plane(const agk_view *view)
{
    return view->ne[1] == 1 || view->nb[1] == 4 * view->ne[0];
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0];
    char *y = agk_data(task, dst), *x = agk_data(task, a);
    const int64_t n = a->ne[0], groups = node->aux.i[GROUPS];
    const int64_t size = node->aux.i[SIZE];
    agk_norm_sum_f32_fn *row_sum = (agk_norm_sum_f32_fn *)node->aux.fn[ROW_SUM];
    agk_norm_scale_f32_fn *row_scale = (agk_norm_scale_f32_fn *)node->aux.fn[ROW_SCALE];
    const double eps = (double)agk_param_f32(node, 1);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i3 = unit / groups, first = unit % groups * size;
        const int64_t last = first + size < a->ne[2] ? first + size : a->ne[2];
        const double count = (double)(n * a->ne[1] * (last - first));
        /* Channels without gaps are one row. */
        const bool whole = dense_plane(a) && dense_plane(dst);
        const int64_t lines = whole ? 1 : a->ne[1], width = whole ? n * a->ne[1] : n;
        double sum = 0.0, square = 0.0;
        for (int64_t i2 = first; i2 < last; ++i2) {
            for (int64_t i1 = 0; i1 < lines; ++i1) sum += row_sum(false, width, row_of(x, a, i1, i2, i3), 0.0f);
        }
        const float mean = (float)(sum / count);
        for (int64_t i2 = first; i2 < last; ++i2) {
            for (int64_t i1 = 0; i1 < lines; ++i1) square += row_sum(true, width, row_of(x, a, i1, i2, i3), mean);
        }
        const float scale = (float)(1.0 / sqrt(square / count + eps));
        for (int64_t i2 = first; i2 < last; ++i2) {
            for (int64_t i1 = 0; i1 < lines; ++i1) {
                row_scale(width, row_of(y, dst, i1, i2, i3), row_of(x, a, i1, i2, i3), mean, scale);
            }
        }
    }
    return AGK_OK;
}

agk_status agk_lower_group_norm(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *y = &node->dst, *x = &node->src[0];
    agk_status status = agk_expect_f32_like(lowering, y, x);
    if (status != AGK_OK) return status;
    const float eps = agk_param_f32(node, 1);
    if (node->params[0] < 1 || !(eps >= 0.0f)) {
        return agk_refuse(lowering, AGK_INVALID, "n_groups is %d and eps %g; expected 1 or more, and 0 or more",
                          node->params[0], (double)eps);
    }
    if (agk_nelements(y) == 0) return AGK_OK;
    status = agk_expect_dense_rows(lowering, y, x);
    if (status != AGK_OK) return status;
    const int64_t channels = x->ne[2], size = (channels + node->params[0] - 1) / node->params[0];
    node->aux.fn[ROW_SUM] = (agk_any_fn *)AGK_PICK(norm_sum_f32, lowering->cpu);
    node->aux.fn[ROW_SCALE] = (agk_any_fn *)AGK_PICK(norm_scale_f32, lowering->cpu);
    node->aux.i[SIZE] = size;
    node->aux.i[GROUPS] = (channels + size - 1) / size; /* without empty groups */
    const int64_t units = node->aux.i[GROUPS] * x->ne[3];
    agk_add_units(lowering, run, units,
                  (AGK_IS_PLAIN(norm_sum_f32, node->aux.fn[ROW_SUM]) ? 3.0 : 0.5) * (double)(agk_nelements(y) / units) +
                      20.0);
    return AGK_OK;
}
