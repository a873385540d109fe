/* Chains: sums, products, functions, gated units, norms and soft_max of f32, carried out one after the other on each
 * row.
 *
 * A value is stored once for the whole chain instead of once for each operation; a value that one stage stores is
 * still in L1 when the next stage loads it. Here: the stages, the lowering of a chain that begins with a tensor. Not
 * here: chains that begin with a product (mul_mat/mul_mat.c), kernels. */
#include "chain.h"

#include <math.h>

#include "table/kernel_types.h"
#include "units.h"
#include "unary.h"

enum { SEGMENTS };           /* slots of node->aux */
enum { L1_ELEMENTS = 4096 }; /* elements of a block: 16 KB, and as much of the other operand */

static float param(const agk_stage *stage, int i)
{
    float value;
    memcpy(&value, &stage->params[i], sizeof value);
    return value;
}

/* -- lowering ------------------------------------------------------------------------------------------------- */

static agk_any_fn *kernel_of(int op, uint32_t cpu)
{
    switch (agk_ops[op].stage) {
    case AGK_STAGE_BINARY: return (agk_any_fn *)AGK_PICK(binary_f32, cpu);
    case AGK_STAGE_SCALE: return (agk_any_fn *)AGK_PICK(binary_scale_f32, cpu);
    case AGK_STAGE_GATED: return (agk_any_fn *)AGK_PICK(glu_f32, cpu);
    case AGK_STAGE_UNARY: return agk_unary_kernel(op, cpu);
    case AGK_STAGE_SOFT_MAX: return (agk_any_fn *)AGK_PICK(soft_max_f32, cpu);
    default: break;
    }
    return op == AGK_OP_norm       ? (agk_any_fn *)AGK_PICK(norm_f32, cpu)
           : op == AGK_OP_rms_norm ? (agk_any_fn *)AGK_PICK(norm_rms_f32, cpu)
                                   : (agk_any_fn *)AGK_PICK(norm_l2_f32, cpu);
}

static bool rows_of_f32(const agk_view *v)
{
    return v->type == AGK_F32 && (v->nb[0] == 4 || v->ne[0] == 1);
}

/* An operand that has one element, or one row, for each row of dst. It may be repeated over any dimension, but over
 * the first two only in full. */
static bool repeats(const agk_view *v, const agk_view *dst)
{
    return rows_of_f32(v) && (v->ne[0] == dst->ne[0] || v->ne[0] == 1) && (v->ne[1] == dst->ne[1] || v->ne[1] == 1) &&
           v->ne[2] > 0 && dst->ne[2] % v->ne[2] == 0 && v->ne[3] > 0 && dst->ne[3] % v->ne[3] == 0;
}

static bool is_mask(const agk_view *v, const agk_view *dst)
{
    return (v->type == AGK_F16 || v->type == AGK_F32) && v->nb[0] == (int64_t)agk_traits(v->type)->type_size &&
           v->ne[0] == dst->ne[0] && v->ne[1] >= dst->ne[1] && v->ne[2] > 0 && dst->ne[2] % v->ne[2] == 0 &&
           v->ne[3] > 0 && dst->ne[3] % v->ne[3] == 0;
}

static bool operand_fits(const agk_node *node, const agk_stage *stage, agk_stage_kind k)
{
    const bool given = stage->operand >= 0;
    if (given && !agk_has(node, stage->operand)) return false;
    const agk_view *v = given ? &node->src[stage->operand] : NULL, *dst = &node->dst;
    switch (k) {
    case AGK_STAGE_BINARY: return given && repeats(v, dst) && (!stage->first || agk_same_shape(v, dst));
    case AGK_STAGE_GATED: return given && rows_of_f32(v) && agk_same_shape(v, dst);
    case AGK_STAGE_SOFT_MAX: return param(stage, 1) <= 0.0f && (!given || is_mask(v, dst));
    case AGK_STAGE_NORM: return !given && param(stage, 0) >= 0.0f;
    default: return !given;
    }
}

agk_status agk_chain_prepare(agk_lowering *lowering, bool whole_rows)
{
    agk_node *node = lowering->node;
    if (!rows_of_f32(&node->dst)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the result of fused operations must have contiguous rows of f32");
    }
    for (int i = 0; i < node->n_stages; ++i) {
        agk_stage *stage = &node->stage[i];
        const agk_stage_kind k = (agk_stage_kind)agk_ops[stage->op].stage;
        if (k == AGK_STAGE_ALONE || (!whole_rows && (k == AGK_STAGE_NORM || k == AGK_STAGE_SOFT_MAX)) ||
            !operand_fits(node, stage, k)) {
            return agk_refuse(lowering, AGK_UNSUPPORTED, "%s cannot be fused with this operation",
                              agk_op_name(stage->op));
        }
        stage->kernel = kernel_of(stage->op, lowering->cpu);
    }
    lowering->fused = true;
    return AGK_OK;
}

double agk_chain_ns(const agk_node *node, uint32_t cpu)
{
    const bool vectors = !AGK_IS_PLAIN(unary_f32, AGK_PICK(unary_f32, cpu));
    double ns = 0.0;
    for (int i = 0; i < node->n_stages; ++i) {
        const agk_stage_kind k = (agk_stage_kind)agk_ops[node->stage[i].op].stage;
        if (k == AGK_STAGE_UNARY || k == AGK_STAGE_GATED)
            ns += agk_unary_ns(k == AGK_STAGE_GATED ? AGK_OP_silu : node->stage[i].op, vectors);
        else
            ns += k == AGK_STAGE_SOFT_MAX ? (vectors ? 0.3 : 8.0) : k == AGK_STAGE_NORM ? (vectors ? 0.25 : 2.0) : 0.15;
    }
    return ns;
}

/* -- running -------------------------------------------------------------------------------------------------- */

/* Rows that lie `stride` bytes apart. */
typedef struct lines {
    char *data;
    int64_t stride;
} lines;

static inline float *line(lines l, int64_t row)
{
    return (float *)(void *)(l.data + row * l.stride);
}

static lines operand_lines(const agk_task *task, const agk_view *v, const agk_chain_block *b)
{
    char *data = (char *)agk_data(task, v) + b->i2 % v->ne[2] * v->nb[2] + b->i3 % v->ne[3] * v->nb[3];
    if (v->ne[0] > 1) data += b->i0 * v->nb[0];
    return v->ne[1] == 1 ? (lines){data, 0} : (lines){data + b->i1 * v->nb[1], v->nb[1]};
}

static void gate(const agk_stage *stage, int64_t n, float *y, const float *x, const float *g)
{
    ((agk_glu_f32_fn *)stage->kernel)(agk_gate_of(stage->op), n, y, x, g);
}

static void each_row(const agk_stage *stage, agk_stage_kind k, int64_t n, float *y, const float *x, const float *other,
                     const agk_view *v)
{
    if (k == AGK_STAGE_SCALE) {
        ((agk_binary_scale_f32_fn *)stage->kernel)(n, y, x, param(stage, 0), param(stage, 1));
    } else if (k == AGK_STAGE_UNARY) {
        ((agk_unary_f32_fn *)stage->kernel)(stage->op, n, y, x);
    } else if (k == AGK_STAGE_GATED) {
        if (stage->first)
            gate(stage, n, y, other, x);
        else
            gate(stage, n, y, x, other);
    } else if (k == AGK_STAGE_NORM) {
        ((agk_norm_f32_fn *)stage->kernel)(n, y, x, param(stage, 0)); /* the three kernels have the same signature */
    } else {
        const agk_soft_max_row row = {.scale = param(stage, 0),
                                      .slope = 1.0f,
                                      .sink = -INFINITY,
                                      .mask = other,
                                      .mask_f16 = v != NULL && v->type == AGK_F16};
        ((agk_soft_max_f32_fn *)stage->kernel)(n, y, x, &row);
    }
}

static void run_stage(const agk_task *task, const agk_node *node, const agk_stage *stage, const agk_chain_block *b,
                      lines y, lines x)
{
    const agk_stage_kind k = (agk_stage_kind)agk_ops[stage->op].stage;
    const agk_view *v = stage->operand >= 0 ? &node->src[stage->operand] : NULL;
    lines other = {NULL, 0};
    if (v != NULL) other = operand_lines(task, v, b);
    if (k == AGK_STAGE_BINARY) {
        const lines first = stage->first ? other : x, second = stage->first ? x : other;
        const agk_binary_rows r = {.y = y.data,
                                   .a = first.data,
                                   .b = second.data,
                                   .step_y = y.stride,
                                   .step_a = first.stride,
                                   .step_b = second.stride,
                                   .one_b = !stage->first && v->ne[0] == 1};
        ((agk_binary_f32_fn *)stage->kernel)(stage->op, b->n, b->rows, &r);
        return;
    }
    for (int64_t row = 0; row < b->rows; ++row) {
        each_row(stage, k, b->n, line(y, row), line(x, row), v == NULL ? NULL : line(other, row), v);
    }
}

void agk_chain_run(const agk_task *task, const agk_node *node, const agk_chain_block *block, bool from_source)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    int64_t at_once = L1_ELEMENTS / (block->n > 0 ? block->n : 1);
    if (at_once < 1) at_once = 1;
    char *y = (char *)agk_data(task, dst) + 4 * block->i0 + block->i2 * dst->nb[2] + block->i3 * dst->nb[3];
    /* if the chain begins with a product, src[0] is the weights, which no stage reads */
    char *x = agk_data(task, src);
    if (from_source) x += 4 * block->i0 + block->i2 * src->nb[2] + block->i3 * src->nb[3];
    const int64_t end = block->i1 + block->rows;
    agk_chain_block part = *block;
    for (; part.i1 < end; part.i1 += at_once) {
        part.rows = end - part.i1 < at_once ? end - part.i1 : at_once;
        const lines to = {y + part.i1 * dst->nb[1], dst->nb[1]};
        for (int i = 0; i < node->n_stages; ++i) {
            const lines from = i == 0 && from_source ? (lines){x + part.i1 * src->nb[1], src->nb[1]} : to;
            run_stage(task, node, &node->stage[i], &part, to, from);
        }
    }
}

/* -- a chain that begins with a tensor ------------------------------------------------------------------------- */

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst;
    const int64_t segments = node->aux.i[SEGMENTS];
    const agk_range units = agk_units_of(node, chunk);
    int64_t unit = units.first;
    while (unit < units.last) {
        const int64_t row = unit / segments, i1 = row % dst->ne[1], plane = row / dst->ne[1];
        agk_chain_block b = {.n = dst->ne[0], .i1 = i1, .rows = 1, .i2 = plane % dst->ne[2], .i3 = plane / dst->ne[2]};
        if (segments > 1) {
            b.i0 = unit % segments * AGK_SEGMENT;
            b.n = dst->ne[0] - b.i0 < AGK_SEGMENT ? dst->ne[0] - b.i0 : AGK_SEGMENT;
        } else {
            b.rows = dst->ne[1] - i1 < units.last - unit ? dst->ne[1] - i1 : units.last - unit;
        }
        agk_chain_run(task, node, &b, true);
        unit += b.rows;
    }
    return AGK_OK;
}

agk_status agk_lower_chain(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *x = &node->src[0];
    const agk_status status = agk_expect_like(lowering, dst, x);
    if (status != AGK_OK) return status;
    if (!rows_of_f32(x)) return agk_refuse(lowering, AGK_UNSUPPORTED, "a must have contiguous rows of f32");
    const agk_status prepared = agk_chain_prepare(lowering, true);
    if (prepared != AGK_OK || agk_nelements(dst) == 0) return prepared;
    bool whole = false;
    for (int i = 0; i < node->n_stages; ++i) {
        const agk_stage_kind k = (agk_stage_kind)agk_ops[node->stage[i].op].stage;
        whole = whole || k == AGK_STAGE_NORM || k == AGK_STAGE_SOFT_MAX;
    }
    const int64_t segments = whole ? 1 : (dst->ne[0] + AGK_SEGMENT - 1) / AGK_SEGMENT;
    const int64_t units = agk_nrows(dst) * segments;
    node->aux.i[SEGMENTS] = segments;
    const double ns = agk_chain_ns(node, lowering->cpu) + 0.1, each = (double)(dst->ne[0] / segments);
    agk_add_units(lowering, run, units, ns * each + 10.0 * node->n_stages);
    return AGK_OK;
}
