/* norm, rms_norm, l2_norm: bring each row of f32 to mean 0 and variance 1, to a mean square of 1, to length 1.
 *
 * Here: the lowering. Not here: the kernels (norm.c of each folder of kernels/), groups of channels (group_norm.c). */
#include "table/kernel_types.h"
#include "units.h"

enum { KERNEL, STEP_Y, STEP_X, EVEN }; /* slots of node->aux */

/* The loop over rows; its dimension 0 is dimension 1 of the operands. */
static agk_loop rows_of(const agk_node *node)
{
    const agk_view *y = &node->dst, *x = &node->src[0];
    agk_loop loop = {.n_dims = 0};
    for (int d = 1; d < 4; ++d) agk_loop_push(&loop, y->ne[d], y->nb[d], x->nb[d], 0);
    return loop;
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    agk_norm_f32_fn *kernel = (agk_norm_f32_fn *)node->aux.fn[KERNEL];
    const int64_t *aux = node->aux.i, n = node->dst.ne[0];
    const agk_range units = agk_units_of(node, chunk);
    const float eps = agk_param_f32(node, 0);
    char *y = agk_data(task, &node->dst);
    const char *x = agk_data(task, &node->src[0]);
    if (aux[EVEN]) {
        for (int64_t row = units.first; row < units.last; ++row) {
            kernel(n, (float *)(void *)(y + row * aux[STEP_Y]), (const float *)(const void *)(x + row * aux[STEP_X]),
                   eps);
        }
        return AGK_OK;
    }
    const agk_loop loop = rows_of(node);
    int64_t i = units.first % loop.ne[0];
    agk_cursor cursor = agk_loop_seek(&loop, units.first / loop.ne[0]);
    for (int64_t row = units.first; row < units.last; ++row) {
        kernel(n, (float *)(void *)(y + cursor.at[0] + i * loop.stride[0][0]),
               (const float *)(const void *)(x + cursor.at[1] + i * loop.stride[1][0]), eps);
        if (++i == loop.ne[0]) {
            i = 0;
            agk_loop_next(&loop, &cursor);
        }
    }
    return AGK_OK;
}

agk_status agk_lower_norm(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *y = &node->dst, *x = &node->src[0];
    agk_status status = agk_expect_f32_like(lowering, y, x);
    if (status != AGK_OK || agk_nelements(y) == 0) return status;
    status = agk_expect_dense_rows(lowering, y, x);
    if (status != AGK_OK) return status;
    const float eps = agk_param_f32(node, 0);
    if (!(eps >= 0.0f)) return agk_refuse(lowering, AGK_INVALID, "eps is %g, not 0 or more", (double)eps);

    node->aux.fn[KERNEL] = node->op == AGK_OP_norm       ? (agk_any_fn *)AGK_PICK(norm_f32, lowering->cpu)
                           : node->op == AGK_OP_rms_norm ? (agk_any_fn *)AGK_PICK(norm_rms_f32, lowering->cpu)
                                                         : (agk_any_fn *)AGK_PICK(norm_l2_f32, lowering->cpu);
    agk_any_fn *kernel = node->aux.fn[KERNEL];
    const bool plain =
        AGK_IS_PLAIN(norm_f32, kernel) || AGK_IS_PLAIN(norm_rms_f32, kernel) || AGK_IS_PLAIN(norm_l2_f32, kernel);
    const agk_loop loop = rows_of(node);
    const int64_t rows = agk_nrows(y);
    node->aux.i[EVEN] = loop.n_dims == 1;
    node->aux.i[STEP_Y] = loop.stride[0][0];
    node->aux.i[STEP_X] = loop.stride[1][0];
    agk_add_units(lowering, run, rows, (plain ? 2.0 : 0.25) * (double)y->ne[0] + 10.0);
    return AGK_OK;
}
