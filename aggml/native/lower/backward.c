/* Gradients: silu_back, rms_norm_back, soft_max_back, cross_entropy_loss_back. f32; silu_back also f16.
 *
 * Here: the lowering. Not here: the kernels (backward.c of each folder of kernels/). The result may overwrite an
 * operand of its shape: a kernel reads everything that it needs of a whole row before it writes the row's first
 * element. */
#include "table/kernel_types.h"
#include "units.h"

enum { READ, WRITE, KERNEL }; /* slots of node->aux */

/* -- silu ------------------------------------------------------------------------------------------------------- */

typedef struct ports {
    agk_backward_silu_f32_fn *kernel;
    agk_port dst, grad, x;
} ports;

static void silu_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const ports *p = context;
    float grads[AGK_BLOCK], xs[AGK_BLOCK], out[AGK_BLOCK];
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        const float *grad = agk_port_read(&p->grad, at[1], i, n, grads);
        const float *x = agk_port_read(&p->x, at[2], i, n, xs);
        float *y = agk_port_target(&p->dst, at[0], i, out);
        p->kernel(n, y, grad, x);
        agk_port_commit(&p->dst, at[0], i, n, y);
    }
}

static agk_loop silu_loop(const agk_node *node)
{
    const agk_view *dst = &node->dst, *grad = &node->src[0], *x = &node->src[1];
    agk_loop loop = {.n_dims = 0};
    for (int d = 0; d < 4; ++d) agk_loop_push(&loop, dst->ne[d], dst->nb[d], grad->nb[d], x->nb[d]);
    return loop;
}

static agk_status run_silu(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_loop loop = silu_loop(node);
    const int type = node->dst.type;
    ports p = {(agk_backward_silu_f32_fn *)node->aux.fn[KERNEL],
               agk_port_of(agk_data(task, &node->dst), type, loop.stride[0][0]),
               agk_port_of(agk_data(task, &node->src[0]), type, loop.stride[1][0]),
               agk_port_of(agk_data(task, &node->src[1]), type, loop.stride[2][0])};
    p.grad.read = p.x.read = (agk_to_float_fn *)node->aux.fn[READ];
    p.dst.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    agk_loop_run_chunk(&loop, node, chunk, silu_row, &p);
    return AGK_OK;
}

/* -- whole rows --------------------------------------------------------------------------------------------------- */

static agk_status run_rows(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const bool entropy = node->op == AGK_OP_cross_entropy_loss_back;
    const agk_view *dst = &node->dst, *a = &node->src[entropy ? 1 : 0], *b = &node->src[entropy ? 2 : 1];
    const int64_t n = dst->ne[0];
    const float param = agk_param_f32(node, 0);
    float grad = 0.0f;
    if (entropy) memcpy(&grad, agk_data(task, &node->src[0]), sizeof grad);
    const double times = (double)grad / (double)agk_nrows(dst);
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t row = rows.first; row < rows.last; ++row) {
        float *y = (float *)(void *)((char *)agk_data(task, dst) + agk_row_at(dst, row));
        const float *x = (const float *)(const void *)((const char *)agk_data(task, a) + agk_row_at(a, row));
        const float *z = (const float *)(const void *)((const char *)agk_data(task, b) + agk_row_at(b, row));
        if (entropy)
            ((agk_backward_entropy_f32_fn *)node->aux.fn[KERNEL])(n, y, x, z, times);
        else /* the kernel of rms_norm has the same signature */
            ((agk_backward_soft_max_f32_fn *)node->aux.fn[KERNEL])(n, y, x, z, param);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const bool silu = node->op == AGK_OP_silu_back, entropy = node->op == AGK_OP_cross_entropy_loss_back;
    const agk_view *dst = &node->dst, *a = &node->src[entropy ? 1 : 0], *b = &node->src[entropy ? 2 : 1];
    const agk_status status = agk_expect_like(lowering, dst, b);
    if (status != AGK_OK) return status;
    if ((b->type != AGK_F32 && !(silu && b->type == AGK_F16)) || a->type != b->type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the operands are %s and %s, which have no kernel of this op",
                          agk_type_name(a->type), agk_type_name(b->type));
    }
    if (!agk_same_shape(a, b)) {
        return agk_refuse(lowering, AGK_INVALID,
                          "the operands have %lld and %lld elements in rows of %lld and %lld; both must be alike",
                          (long long)agk_nelements(a), (long long)agk_nelements(b), (long long)a->ne[0],
                          (long long)b->ne[0]);
    }
    if (entropy && (node->src[0].type != AGK_F32 || agk_nelements(&node->src[0]) != 1)) {
        return agk_refuse(lowering, AGK_INVALID, "the gradient of the loss has %lld elements, not one",
                          (long long)agk_nelements(&node->src[0]));
    }
    if (!silu && dst->ne[0] > 1 && (a->nb[0] != 4 || b->nb[0] != 4 || dst->nb[0] != 4)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "rows must be contiguous, but their elements are %lld and %lld bytes apart",
                          (long long)a->nb[0], (long long)b->nb[0]);
    }
    if (node->op == AGK_OP_soft_max_back && agk_param_f32(node, 1) != 0.0f) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "max_bias is %g, not 0", (double)agk_param_f32(node, 1));
    }
    return AGK_OK;
}

agk_status agk_lower_backward(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst;
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(dst) == 0) return status;
    const bool silu = node->op == AGK_OP_silu_back;
    const agk_loop loop = silu_loop(node);
    const int64_t units = silu ? agk_loop_units(&loop) : agk_nrows(dst);
    const uint32_t cpu = lowering->cpu;
    node->aux.fn[KERNEL] = silu                               ? (agk_any_fn *)AGK_PICK(backward_silu_f32, cpu)
                           : node->op == AGK_OP_rms_norm_back ? (agk_any_fn *)AGK_PICK(backward_rms_norm_f32, cpu)
                           : node->op == AGK_OP_cross_entropy_loss_back
                               ? (agk_any_fn *)AGK_PICK(backward_entropy_f32, cpu)
                               : (agk_any_fn *)AGK_PICK(backward_soft_max_f32, cpu);
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(dst->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    agk_any_fn *kernel = node->aux.fn[KERNEL];
    const bool exp = AGK_IS_PLAIN(backward_silu_f32, kernel) || AGK_IS_PLAIN(backward_entropy_f32, kernel);
    const bool sums = AGK_IS_PLAIN(backward_rms_norm_f32, kernel) || AGK_IS_PLAIN(backward_soft_max_f32, kernel);
    const bool has_exp = silu || node->op == AGK_OP_cross_entropy_loss_back;
    const double ns = exp ? 12.0 : sums ? 4.0 : has_exp ? 1.0 : 0.5;
    agk_add_units(lowering, silu ? run_silu : run_rows, units, ns * (double)(agk_nelements(dst) / units) + 10.0);
    return AGK_OK;
}
