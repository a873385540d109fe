/* Functions of one operand: abs .. leaky_relu of ops.def, on f32, f16 and bf16 of any strides.
 *
 * Here: the lowering. Not here: gated units (glu.c), the kernels (unary.c of each folder of kernels/). */
#include "table/kernel_types.h"
#include "units.h"
#include "unary.h"

enum { KERNEL, READ, WRITE, PARAMS, HALVES }; /* slots of node->aux */

static inline void apply(const agk_node *node, int64_t n, float *y, const float *x)
{
    agk_unary_f32_fn *kernel = (agk_unary_f32_fn *)node->aux.fn[KERNEL];
    if (kernel != NULL) {
        kernel(node->op, n, y, x);
        return;
    }
    float params[5];
    memcpy(params, node->params, sizeof params);
    ((agk_unary_params_f32_fn *)node->aux.fn[PARAMS])(node->op, n, y, x, params);
}

static agk_status run_flat(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_range units = agk_units_of(node, chunk);
    apply(node, units.last - units.first, (float *)agk_data(task, &node->dst) + units.first,
          (const float *)agk_data(task, &node->src[0]) + units.first);
    return AGK_OK;
}

typedef struct rows {
    const agk_node *node;
    agk_port dst, src;
} rows;

static void run_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const rows *r = context;
    if (r->node->aux.fn[HALVES] != NULL) {
        ((agk_unary_f16_fn *)r->node->aux.fn[HALVES])(r->node->op, n, agk_port_at(&r->dst, at[0], i),
                                                      agk_port_at(&r->src, at[1], i));
        return;
    }
    if (r->dst.direct && r->src.direct) {
        apply(r->node, n, (float *)(void *)agk_port_at(&r->dst, at[0], i),
              (const float *)(const void *)agk_port_at(&r->src, at[1], i));
        return;
    }
    _Alignas(64) float in[AGK_BLOCK], out[AGK_BLOCK];
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        const float *x = agk_port_read(&r->src, at[1], i, n, in);
        float *y = agk_port_target(&r->dst, at[0], i, out);
        apply(r->node, n, y, x);
        agk_port_commit(&r->dst, at[0], i, n, y);
    }
}

static agk_status run_strided(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_loop loop = agk_loop_pair(&node->dst, &node->src[0]);
    rows r = {node, agk_port_of(agk_data(task, &node->dst), node->dst.type, loop.stride[0][0]),
              agk_port_of(agk_data(task, &node->src[0]), node->dst.type, loop.stride[1][0])};
    r.src.read = (agk_to_float_fn *)node->aux.fn[READ];
    r.dst.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    agk_loop_run_chunk(&loop, node, chunk, run_row, &r);
    return AGK_OK;
}

/* Estimated ns for each element: 0.2 if a load and a store are all, up to 20 for a call of libm. */
double agk_unary_ns(int op, bool vectors)
{
    switch (op) {
    case AGK_OP_abs:
    case AGK_OP_sgn:
    case AGK_OP_neg:
    case AGK_OP_step:
    case AGK_OP_relu:
    case AGK_OP_sqr:
    case AGK_OP_sqrt:
    case AGK_OP_hardswish:
    case AGK_OP_hardsigmoid:
    case AGK_OP_floor:
    case AGK_OP_ceil:
    case AGK_OP_round:
    case AGK_OP_trunc: return vectors ? AGK_UNARY_SHORT_NS : 0.5;
    case AGK_OP_clamp:
    case AGK_OP_leaky_relu: return vectors ? 0.25 : 0.5;
    case AGK_OP_sin:
    case AGK_OP_cos: return vectors ? 1.0 : 10.0;
    default: return vectors ? 0.4 : 10.0;
    }
}

agk_any_fn *agk_unary_kernel(int op, uint32_t cpu)
{
    if (agk_ops[op].stage != AGK_STAGE_UNARY) return NULL; /* functions with parameters have no such kernel */
    return (agk_any_fn *)AGK_PICK(unary_f32, cpu);
}

/* The kernel of a short function for rows of f16 or bf16 without gaps, which converts in registers; NULL: there is no
 * vector kernel, or the function is so long that conversions do not matter. gelu of f16 is long, but AVX2 has a shorter
 * formula for it. */
static agk_any_fn *halves_of(const agk_node *node, const agk_loop *loop, uint32_t cpu)
{
    const int type = node->dst.type, op = node->op;
    if (type == AGK_F32 || loop->stride[0][0] != 2 || loop->stride[1][0] != 2) return NULL;
    const bool gelu = op == AGK_OP_gelu && type == AGK_F16 && (cpu & AGK_AVX512) == 0;
    if (agk_unary_ns(op, true) > AGK_UNARY_SHORT_NS && !gelu) return NULL;
    return agk_pick_vector(type == AGK_F16 ? "unary_f16" : "unary_bf16", cpu);
}

agk_status agk_lower_unary(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const agk_status status = agk_expect_like(lowering, dst, a);
    if (status != AGK_OK) return status;
    if (a->type != AGK_F32 && a->type != AGK_F16 && a->type != AGK_BF16) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32, f16 or bf16", agk_type_name(a->type));
    }
    if (agk_is(node->op, AGK_NO_BF16) && a->type == AGK_BF16) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is bf16, which ggml has for other functions only");
    }
    if (agk_nelements(dst) == 0) return AGK_OK;

    node->aux.fn[KERNEL] = agk_unary_kernel(node->op, lowering->cpu);
    node->aux.fn[PARAMS] = (agk_any_fn *)AGK_PICK(unary_params_f32, lowering->cpu);
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    const double ns = agk_unary_ns(node->op, !AGK_IS_PLAIN(unary_params_f32, node->aux.fn[PARAMS]));
    const agk_loop loop = agk_loop_pair(dst, a);
    node->aux.fn[HALVES] = halves_of(node, &loop, lowering->cpu);
    const bool flat = loop.n_dims == 1 && a->type == AGK_F32 && loop.stride[0][0] == 4 && loop.stride[1][0] == 4;
    const int64_t units = flat ? loop.ne[0] : agk_loop_units(&loop);
    const double unit_ns = flat ? ns : (ns + 0.5) * (double)(agk_nelements(dst) / units) + 5.0;
    const int64_t per_chunk = agk_units_per_chunk(units, unit_ns);
    agk_add_step(lowering, flat ? run_flat : run_strided,
                 agk_cut(node, units, flat && per_chunk < units ? per_chunk & ~(int64_t)63 : per_chunk));
    return AGK_OK;
}
