/* opt_step_adamw and opt_step_sgd: one update of the parameters by an optimizer, in place.
 *
 * AdamW (Loshchilov and Hutter, 2019) also updates its two means m and v in place. Here: the lowering and the steps.
 * Not here: the kernels (optimizers.c of each folder of kernels/). */
#include "table/kernel_types.h"
#include "units.h"

enum { A, GRAD, M, V, ADAMW_PARAMS, SGD_PARAMS = 2 };
enum { KERNEL }; /* slot of node->aux */

static float param(const agk_task *task, const agk_view *params, int i)
{
    return agk_load(AGK_F32, (const char *)agk_data(task, params) + i * params->nb[0]);
}

/* A unit is a row. params: alpha, beta1, beta2, eps, wd, 1 / (1 - beta1^t), 1 / (1 - beta2^t) */
static agk_status run_adamw(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *src = node->src;
    float p[7];
    for (int i = 0; i < 7; ++i) p[i] = param(task, &src[ADAMW_PARAMS], i);
    agk_adamw step = {.alpha = p[0],
                      .beta1 = p[1],
                      .beta2 = p[2],
                      .eps = p[3],
                      .keep = 1.0f - p[0] * p[4],
                      .of_m = p[5],
                      .of_v = p[6]};
    char *data[4] = {agk_data(task, &node->dst), agk_data(task, &src[GRAD]), agk_data(task, &src[M]),
                     agk_data(task, &src[V])};
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        step.w = (float *)(void *)(data[0] + agk_row_offset(&node->dst, row));
        step.g = (const float *)(const void *)(data[1] + agk_row_offset(&src[GRAD], row));
        step.m = (float *)(void *)(data[2] + agk_row_offset(&src[M], row));
        step.v = (float *)(void *)(data[3] + agk_row_offset(&src[V], row));
        ((agk_optimizers_adamw_f32_fn *)node->aux.fn[KERNEL])(node->dst.ne[0], &step);
    }
    return AGK_OK;
}

/* A unit is a row. params: alpha, wd */
static agk_status run_sgd(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *grad = &node->src[GRAD];
    const float alpha = param(task, &node->src[SGD_PARAMS], 0),
                keep = 1.0f - alpha * param(task, &node->src[SGD_PARAMS], 1);
    char *to = agk_data(task, &node->dst);
    const char *from = agk_data(task, grad);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        float *w = (float *)(void *)(to + agk_row_offset(&node->dst, row));
        const float *g = (const float *)(const void *)(from + agk_row_offset(grad, row));
        ((agk_optimizers_sgd_f32_fn *)node->aux.fn[KERNEL])(node->dst.ne[0], w, g, alpha, keep);
    }
    return AGK_OK;
}

agk_status agk_lower_optimizers(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const bool adamw = node->op == AGK_OP_opt_step_adamw;
    const agk_view *dst = &node->dst, *params = &node->src[adamw ? ADAMW_PARAMS : SGD_PARAMS];
    for (int i = 0; i < (adamw ? 4 : 2); ++i) {
        const agk_view *v = &node->src[i];
        if (v->type == AGK_F32 && dst->type == AGK_F32 && agk_dense_row(v) && agk_same_shape(v, dst)) continue;
        return agk_refuse(
            lowering, AGK_UNSUPPORTED,
            "operand %d is %s in rows of %lld with elements %lld bytes apart; expected f32 like the result", i,
            agk_type_name(v->type), (long long)v->ne[0], (long long)v->nb[0]);
    }
    const agk_status status = agk_expect(lowering, "the last", params, AGK_F32, adamw ? 7 : 2, 1, 1, 1);
    if (status != AGK_OK || agk_nelements(dst) == 0) return status;
    node->aux.fn[KERNEL] = adamw ? (agk_any_fn *)AGK_PICK(optimizers_adamw_f32, lowering->cpu)
                                 : (agk_any_fn *)AGK_PICK(optimizers_sgd_f32, lowering->cpu);
    agk_add_units(lowering, adamw ? run_adamw : run_sgd, agk_nrows(dst),
                  10.0 + (adamw ? 1.0 : 0.3) * (double)dst->ne[0]);
    return AGK_OK;
}
