/* diag_mask_inf, diag_mask_zero: in each row of f32, the elements after position n_past + row become -inf, or 0. */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const int64_t n = a->ne[0];
    const float value = node->op == AGK_OP_diag_mask_inf ? -INFINITY : 0.0f;
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t row = rows.first; row < rows.last; ++row) {
        const char *x = (const char *)agk_data(task, a) + agk_row_at(a, row);
        char *y = (char *)agk_data(task, dst) + agk_row_at(dst, row);
        const int64_t seen = node->params[0] + row % a->ne[1] + 1, kept = seen < n ? seen : n;
        if (dst->nb[0] == 4 && a->nb[0] == 4) {
            float *to = (float *)(void *)y;
            if (y != x) memcpy(y, x, (size_t)kept * sizeof *to);
            for (int64_t i = kept; i < n; ++i) to[i] = value;
            continue;
        }
        if (y != x) {
            for (int64_t i = 0; i < kept; ++i) memcpy(y + i * dst->nb[0], x + i * a->nb[0], sizeof value);
        }
        for (int64_t i = kept; i < n; ++i) memcpy(y + i * dst->nb[0], &value, sizeof value);
    }
    return AGK_OK;
}

agk_status agk_lower_diag_mask(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const agk_status status = agk_expect_f32_like(lowering, dst, a);
    if (status != AGK_OK) return status;
    if (node->params[0] < 0) return agk_refuse(lowering, AGK_INVALID, "n_past is %d, below 0", node->params[0]);
    if (agk_nelements(dst) == 0) return AGK_OK;
    const int64_t rows = agk_nrows(dst);
    agk_add_units(lowering, run, rows, 0.2 * (double)dst->ne[0] + 10.0);
    return AGK_OK;
}
