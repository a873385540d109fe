/* Gated units: f(x) * g, where x and g are the halves of each row of a, or a and b. f32 and f16.
 *
 * Here: the lowering. Not here: the functions f themselves (unary.c), the kernels (glu.c of each folder of
 * kernels/). */
#include "past.h"
#include "table/kernel_types.h"
#include "units.h"
#include "unary.h"

enum { KERNEL, READ, WRITE, X_OFFSET, G_OFFSET, FUNCTION }; /* slots of node->aux */

typedef struct rows {
    agk_any_fn *kernel;
    const agk_node *node;
    int op;              /* of f; -1: it is limited */
    float alpha, offset; /* of limited ones */
    agk_port dst, x, g;
} rows;

static inline void apply(const rows *r, int64_t n, float *y, const float *x, const float *g)
{
    if (r->op >= 0)
        ((agk_glu_f32_fn *)r->kernel)(r->op, n, y, x, g);
    else
        ((agk_glu_limited_f32_fn *)r->kernel)(n, y, x, g, r->alpha, agk_param_f32(r->node, 3), r->offset);
}

static void run_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const rows *r = context;
    if (r->dst.direct && r->x.direct && r->g.direct) {
        apply(r, n, (float *)(void *)agk_port_at(&r->dst, at[0], i),
              (const float *)(const void *)agk_port_at(&r->x, at[1], i),
              (const float *)(const void *)agk_port_at(&r->g, at[2], i));
        return;
    }
    _Alignas(64) float x_block[AGK_BLOCK], g_block[AGK_BLOCK], out[AGK_BLOCK];
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        const float *x = agk_port_read(&r->x, at[1], i, n, x_block);
        const float *g = agk_port_read(&r->g, at[2], i, n, g_block);
        float *y = agk_port_target(&r->dst, at[0], i, out);
        apply(r, n, y, x, g);
        agk_port_commit(&r->dst, at[0], i, n, y);
    }
}

static agk_loop loop_of(const agk_node *node)
{
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = agk_has(node, 1) ? &node->src[1] : a;
    agk_loop loop = {.n_dims = 0};
    for (int d = 0; d < 4; ++d) agk_loop_push(&loop, dst->ne[d], dst->nb[d], a->nb[d], b->nb[d]);
    return loop;
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_loop loop = loop_of(node);
    char *a = agk_data(task, &node->src[0]), *b = agk_has(node, 1) ? agk_data(task, &node->src[1]) : a;
    const int type = node->dst.type;
    rows r = {.kernel = node->aux.fn[KERNEL],
              .node = node,
              .op = (int)node->aux.i[FUNCTION],
              .alpha = node->op == AGK_OP_swiglu_oai ? agk_param_f32(node, 2) : 1.0f,
              .offset = node->op == AGK_OP_swiglu_oai ? 1.0f : 0.0f,
              .dst = agk_port_of(agk_data(task, &node->dst), type, loop.stride[0][0]),
              .x = agk_port_of(a + node->aux.i[X_OFFSET], type, loop.stride[1][0]),
              .g = agk_port_of(b + node->aux.i[G_OFFSET], type, loop.stride[2][0])};
    r.x.read = r.g.read = (agk_to_float_fn *)node->aux.fn[READ];
    r.dst.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    agk_loop_run_chunk(&loop, node, chunk, run_row, &r);
    return AGK_OK;
}

/* Operands without gaps, a result past the caches. */
static agk_status run_past(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_range units = agk_units_of(node, chunk);
    const int64_t all = agk_nelements(&node->dst), first = units.first * AGK_SEGMENT, end = units.last * AGK_SEGMENT;
    ((agk_glu_past_f32_fn *)node->aux.fn[KERNEL])(
        (int)node->aux.i[FUNCTION], (end < all ? end : all) - first, (float *)agk_data(task, &node->dst) + first,
        (const float *)agk_data(task, &node->src[0]) + first, (const float *)agk_data(task, &node->src[1]) + first);
    return AGK_OK;
}

/* The kernel for that; NULL: results are stored as usual. */
static agk_any_fn *past_of(const agk_node *node, const agk_loop *loop, uint32_t cpu)
{
    if (!agk_has(node, 1) || agk_gate_of(node->op) < 0 || loop->n_dims != 1 || !agk_worth_passing(node)) return NULL;
    for (int k = 0; k < 3; ++k)
        if (loop->stride[k][0] != 4) return NULL;
    return agk_pick_vector("glu_past_f32", cpu);
}

int agk_gate_of(int op)
{
    switch (op) {
    case AGK_OP_reglu: return AGK_OP_relu;
    case AGK_OP_geglu: return AGK_OP_gelu;
    case AGK_OP_swiglu: return AGK_OP_silu;
    case AGK_OP_geglu_erf: return AGK_OP_gelu_erf;
    case AGK_OP_swiglu_oai:
    case AGK_OP_swiglu_clamp: return -1;
    default: return AGK_OP_gelu_quick;
    }
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0];
    if (a->type != AGK_F32 && a->type != AGK_F16) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32 or f16", agk_type_name(a->type));
    }
    if (node->op == AGK_OP_swiglu_oai && a->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32", agk_type_name(a->type));
    }
    if (agk_has(node, 1)) {
        const agk_status status = agk_expect_like(lowering, dst, a);
        if (status != AGK_OK) return status;
        if (node->src[1].type != a->type || !agk_same_shape(&node->src[1], a)) {
            return agk_refuse(lowering, AGK_INVALID, "b is %s in rows of %lld, a is %s in rows of %lld",
                              agk_type_name(node->src[1].type), (long long)node->src[1].ne[0], agk_type_name(a->type),
                              (long long)a->ne[0]);
        }
        return AGK_OK;
    }
    if (dst->type != a->type || a->ne[0] / 2 != dst->ne[0] || agk_nrows(dst) != agk_nrows(a)) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "a has rows of %lld %s, the result rows of %lld %s; they must be half as long, of the same type",
            (long long)a->ne[0], agk_type_name(a->type), (long long)dst->ne[0], agk_type_name(dst->type));
    }
    return AGK_OK;
}

agk_status agk_lower_glu(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(dst) == 0) return status;

    const bool halves = !agk_has(node, 1), swapped = node->params[1] != 0;
    const int64_t half = dst->ne[0] * a->nb[0];
    node->aux.i[X_OFFSET] = halves && swapped ? half : 0;
    node->aux.i[G_OFFSET] = halves && !swapped ? half : 0;
    node->aux.i[FUNCTION] = agk_gate_of(node->op);
    node->aux.fn[KERNEL] = node->aux.i[FUNCTION] < 0 ? (agk_any_fn *)AGK_PICK(glu_limited_f32, lowering->cpu)
                                                     : (agk_any_fn *)AGK_PICK(glu_f32, lowering->cpu);
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    const agk_loop loop = loop_of(node);
    const int64_t units = agk_loop_units(&loop);
    agk_any_fn *kernel = node->aux.fn[KERNEL];
    const double ns = AGK_IS_PLAIN(glu_f32, kernel) || AGK_IS_PLAIN(glu_limited_f32, kernel) ? 10.0 : 0.4;
    agk_any_fn *past = past_of(node, &loop, lowering->cpu);
    if (past != NULL) node->aux.fn[KERNEL] = past;
    agk_add_units(lowering, past != NULL ? run_past : run, units, ns * (double)(agk_nelements(dst) / units) + 5.0);
    return AGK_OK;
}
