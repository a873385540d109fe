/* Functions of one operand: abs .. leaky_relu of ops.def, on f32, f16 and bf16 of any strides.
 *
 * Here: the lowering, and the exact kernel (libm). Not here: gated units (glu.c), the vector kernels (kernels/vec/unary.h). */
#include <math.h>

#include "table/kernel_types.h"
#include "refuse.h"
#include "strided.h"
#include "unary.h"

enum { PER_CHUNK, UNITS, KERNEL, READ, WRITE, PARAMS }; /* slots of node->aux */

/* 0.5 x (1 + tanh(u)), written so that nothing cancels for negative x; ggml's table ends at 10. */
static inline float gelu(float x)
{
    if (x <= -10.0f) return 0.0f;
    if (x >= 10.0f) return x;
    return x / (1.0f + expf(-2.0f * 0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

/* What is beyond the range of f16 counts as infinite, since ggml's table is one of f16. */
static inline float gelu_quick(float x)
{
    if (fabsf(x) >= 65520.0f) x = copysignf(INFINITY, x);
    return x / (1.0f + expf(-1.702f * x));
}

/* (x + 3) / 6 within 0 and 1; NaN gives 0. */
static inline float hardsigmoid(float x)
{
    return fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
}

#define LOOP(name, expression) \
    case AGK_OP_##name: \
        for (int64_t i = 0; i < n; ++i) { \
            const float v = x[i]; \
            y[i] = (expression); \
        } \
        return;

void agk_unary_f32_scalar(int op, int64_t n, float *y, const float *x)
{
    switch (op) {
        LOOP(abs, fabsf(v))
        LOOP(sgn, v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f)
        LOOP(neg, -v)
        LOOP(step, v > 0.0f ? 1.0f : 0.0f)
        LOOP(tanh, tanhf(v))
        LOOP(elu, v > 0.0f ? v : expm1f(v))
        LOOP(relu, v > 0.0f ? v : 0.0f)
        LOOP(sigmoid, 1.0f / (1.0f + expf(-v)))
        LOOP(gelu, gelu(v))
        LOOP(gelu_quick, gelu_quick(v))
        LOOP(gelu_erf, 0.5f * v * erfcf(v * -0.70710678f))
        LOOP(silu, v / (1.0f + expf(-v)))
        LOOP(exp, expf(v))
        LOOP(expm1, expm1f(v))
        LOOP(softplus, v > 20.0f ? v : log1pf(expf(v)))
        LOOP(hardswish, v * hardsigmoid(v))
        LOOP(hardsigmoid, hardsigmoid(v))
        LOOP(floor, floorf(v))
        LOOP(ceil, ceilf(v))
        LOOP(round, roundf(v))
        LOOP(trunc, truncf(v))
        LOOP(log, logf(v))
        LOOP(sin, sinf(v))
        LOOP(cos, cosf(v))
        LOOP(sqr, v * v)
        LOOP(sqrt, sqrtf(v))
    default: return;
    }
}

/* Functions with parameters. xielu: 1 alpha_n + beta, 2 alpha_p, both after softplus, 3 beta, 4 eps. */
void agk_unary_params_f32_scalar(int op, int64_t n, float *y, const float *x, const float *p)
{
    const float p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3], p4 = p[4];
    switch (op) {
        LOOP(clamp, v < p1 ? (v > p0 ? v : p0) : (p1 > p0 ? p1 : p0)) /* NaN gives max */
        LOOP(leaky_relu, v > 0.0f ? v : v < 0.0f ? v * p0 : 0.0f)
        LOOP(xielu, v > 0.0f ? p2 * v * v + p3 * v : (expm1f(fminf(v, p4)) - v) * p1 + p3 * v)
    default: return;
    }
}

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
    const int64_t first = chunk * node->aux.i[PER_CHUNK];
    const int64_t last = agk_chunk_end(chunk, node->aux.i[PER_CHUNK], node->aux.i[UNITS]);
    apply(node, last - first, (float *)agk_data(task, &node->dst) + first,
          (const float *)agk_data(task, &node->src[0]) + first);
    return AGK_OK;
}

typedef struct rows {
    const agk_node *node;
    agk_port dst, src;
} rows;

static void run_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const rows *r = context;
    float in[AGK_BLOCK], out[AGK_BLOCK];
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
    rows r = {node, agk_port_of(agk_data(task, &node->dst), node->dst.type, loop.step[0][0]),
              agk_port_of(agk_data(task, &node->src[0]), node->dst.type, loop.step[1][0])};
    r.src.read = (agk_to_float_fn *)node->aux.fn[READ];
    r.dst.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    const int64_t per_chunk = node->aux.i[PER_CHUNK];
    agk_loop_run(&loop, chunk * per_chunk, agk_chunk_end(chunk, per_chunk, node->aux.i[UNITS]), run_row, &r);
    return AGK_OK;
}

/* About, per element: 0.2 ns where a load and a store are all, up to 20 ns for a call of libm. */
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
    case AGK_OP_trunc: return vectors ? 0.2 : 0.5;
    case AGK_OP_clamp:
    case AGK_OP_leaky_relu: return vectors ? 0.25 : 0.5;
    case AGK_OP_sin:
    case AGK_OP_cos: return vectors ? 1.0 : 10.0;
    default: return vectors ? 0.4 : 10.0;
    }
}

/* Functions that ggml has for f32 and f16 only. */
static bool no_bf16(int op)
{
    return op == AGK_OP_gelu || op == AGK_OP_gelu_quick || op == AGK_OP_gelu_erf || op == AGK_OP_silu ||
           op == AGK_OP_clamp || op == AGK_OP_leaky_relu;
}

agk_any_fn *agk_unary_kernel(int op, uint32_t cpu)
{
    if (op == AGK_OP_clamp || op == AGK_OP_leaky_relu || op == AGK_OP_xielu) return NULL;
    return (agk_any_fn *)AGK_PICK(unary_f32, cpu);
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
    if (no_bf16(node->op) && a->type == AGK_BF16) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is bf16, which ggml has for other functions only");
    }
    if (agk_nelements(dst) == 0) return AGK_OK;

    node->aux.fn[KERNEL] = agk_unary_kernel(node->op, lowering->cpu);
    node->aux.fn[PARAMS] = (agk_any_fn *)AGK_PICK(unary_params_f32, lowering->cpu);
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    const double ns = agk_unary_ns(node->op, (lowering->cpu & AGK_VECTORS) != 0);
    const agk_loop loop = agk_loop_pair(dst, a);
    const bool flat = loop.n_dims == 1 && a->type == AGK_F32 && loop.step[0][0] == 4 && loop.step[1][0] == 4;
    const int64_t units = flat ? loop.ne[0] : agk_loop_units(&loop);
    const double unit_ns = flat ? ns : (ns + 0.5) * (double)(agk_nelements(dst) / units) + 5.0;
    const int64_t per_chunk = agk_units_per_chunk(units, unit_ns);
    node->aux.i[UNITS] = units;
    node->aux.i[PER_CHUNK] = flat && per_chunk < units ? per_chunk & ~(int64_t)63 : per_chunk;
    agk_add_step(lowering, flat ? run_flat : run_strided, agk_chunks(units, node->aux.i[PER_CHUNK]));
    return AGK_OK;
}
