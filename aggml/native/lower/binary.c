/* add, sub, mul, div with b repeated over a, add1, and scale: f32, f16, bf16. Sums also with quantized a, and with a
 * result in f32.
 *
 * Here: the lowering. Not here: the kernels (binary.c of each folder of kernels/). */
#include "past.h"
#include "table/kernel_types.h"
#include "units.h"

enum { KERNEL, READ_A, WRITE, READ_B, N, STEP_Y, STEP_A, STEP_B, ONE_B, HALVES }; /* slots of node->aux */
enum { TRANSPOSE = READ_A };                                                      /* where all operands are f32 */

/* Rows of f32 without gaps, with one element or one row of b for each: only the strides between rows are needed. */
static agk_status run_rows(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const int64_t *aux = node->aux.i;
    const agk_range units = agk_units_of(node, chunk);
    const agk_binary_rows r = {.y = (char *)agk_data(task, &node->dst) + units.first * aux[STEP_Y],
                               .a = (const char *)agk_data(task, &node->src[0]) + units.first * aux[STEP_A],
                               .b = (const char *)agk_data(task, &node->src[1]) + units.first * aux[STEP_B],
                               .step_y = aux[STEP_Y],
                               .step_a = aux[STEP_A],
                               .step_b = aux[STEP_B],
                               .one_b = aux[ONE_B] != 0};
    ((agk_binary_f32_fn *)node->aux.fn[KERNEL])(node->op, aux[N], units.last - units.first, &r);
    return AGK_OK;
}

/* Where b repeats, a dimension becomes two: one over b, and one over its repetitions, with a stride of 0 in b. */
static agk_loop loop_of(const agk_node *node)
{
    const agk_view *y = &node->dst, *a = &node->src[0], *b = &node->src[1];
    agk_loop loop = {.n_dims = 0, .solid = agk_traits(a->type)->blck_size > 1};
    for (int d = 0; d < 4; ++d) {
        const int64_t n = b->ne[d], times = y->ne[d] / n;
        agk_loop_push(&loop, n, y->nb[d], a->nb[d], n == 1 ? 0 : b->nb[d]);
        agk_loop_push(&loop, times, n * y->nb[d], n * a->nb[d], 0);
    }
    return loop;
}

/* The loop without its dimension 0: rows of rows. */
static agk_loop without_first(const agk_loop *loop)
{
    agk_loop outer = {.n_dims = loop->n_dims - 1};
    for (int d = 0; d < outer.n_dims; ++d) {
        outer.ne[d] = loop->ne[d + 1];
        for (int k = 0; k < 3; ++k) outer.stride[k][d] = loop->stride[k][d + 1];
    }
    return outer;
}

/* The same if b repeats along a row as well: the short rows of dimension 1 are handled in one call. */
static agk_status run_repeated(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const int64_t *aux = node->aux.i;
    const agk_loop loop = loop_of(node), outer = without_first(&loop);
    const agk_range units = agk_units_of(node, chunk);
    agk_cursor cursor = agk_loop_seek(&outer, units.first);
    char *y = agk_data(task, &node->dst);
    const char *a = agk_data(task, &node->src[0]), *b = agk_data(task, &node->src[1]);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const agk_binary_rows r = {.y = y + cursor.at[0],
                                   .a = a + cursor.at[1],
                                   .b = b + cursor.at[2],
                                   .step_y = aux[STEP_Y],
                                   .step_a = aux[STEP_A],
                                   .step_b = aux[STEP_B],
                                   .one_b = aux[ONE_B] != 0};
        ((agk_binary_f32_fn *)node->aux.fn[KERNEL])(node->op, loop.ne[0], loop.ne[1], &r);
        agk_loop_next(&outer, &cursor);
    }
    return AGK_OK;
}

/* A single row is cut by elements. */
static agk_status run_flat(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const int64_t *aux = node->aux.i;
    const agk_range units = agk_units_of(node, chunk);
    const bool one_b = aux[ONE_B] != 0;
    const agk_binary_rows r = {.y = (char *)agk_data(task, &node->dst) + 4 * units.first,
                               .a = (const char *)agk_data(task, &node->src[0]) + 4 * units.first,
                               .b = (const char *)agk_data(task, &node->src[1]) + (one_b ? 0 : 4 * units.first),
                               .one_b = one_b};
    ((agk_binary_f32_fn *)node->aux.fn[KERNEL])(node->op, units.last - units.first, 1, &r);
    return AGK_OK;
}

/* The same, past the caches. */
static agk_status run_past(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_range units = agk_units_of(node, chunk);
    ((agk_binary_past_f32_fn *)node->aux.fn[KERNEL])(node->op, units.last - units.first,
                                                     (float *)agk_data(task, &node->dst) + units.first,
                                                     (const float *)agk_data(task, &node->src[0]) + units.first,
                                                     (const float *)agk_data(task, &node->src[1]) + units.first);
    return AGK_OK;
}

/* -- b is transposed: its columns are contiguous, not its rows, so blocks of it are transposed first ------------- */

enum { STRIP = 64, BLOCK_COLUMNS = 64 }; /* 64 rows: four whole lines of b. A block is 16 KB */

static bool is_transposed(const agk_node *node, const agk_loop *loop)
{
    return node->dst.type == AGK_F32 && node->src[0].type == AGK_F32 && node->src[1].type == AGK_F32 &&
           loop->n_dims > 1 && loop->stride[0][0] == 4 && loop->stride[1][0] == 4 && loop->stride[2][0] > 4 &&
           loop->stride[2][1] == 4;
}

static int64_t strips_of(const agk_loop *loop)
{
    return (loop->ne[1] + STRIP - 1) / STRIP;
}

/* A unit is a strip of rows. */
static agk_status run_transposed(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_loop loop = loop_of(node), outer = without_first(&loop);
    const int64_t strips = strips_of(&loop), n = loop.ne[0], step_b = loop.stride[2][0];
    const agk_range units = agk_units_of(node, chunk);
    char *y = agk_data(task, &node->dst);
    const char *a = agk_data(task, &node->src[0]), *b = agk_data(task, &node->src[1]);
    _Alignas(64) float block[STRIP * BLOCK_COLUMNS];
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t row = unit % strips * STRIP, rest = loop.ne[1] - row, rows = rest < STRIP ? rest : STRIP;
        const agk_cursor at = agk_loop_seek(&outer, unit / strips);
        for (int64_t i = 0; i < n; i += BLOCK_COLUMNS) {
            const int64_t columns = n - i < BLOCK_COLUMNS ? n - i : BLOCK_COLUMNS;
            const agk_binary_rows r = {.y = y + at.at[0] + row * loop.stride[0][1] + 4 * i,
                                       .a = a + at.at[1] + row * loop.stride[1][1] + 4 * i,
                                       .b = (const char *)block,
                                       .step_y = loop.stride[0][1],
                                       .step_a = loop.stride[1][1],
                                       .step_b = BLOCK_COLUMNS * 4};
            ((agk_cpy_transpose_32_fn *)node->aux.fn[TRANSPOSE])(columns, rows, (char *)block, r.step_b,
                                                                 b + at.at[2] + 4 * row + i * step_b, step_b);
            ((agk_binary_f32_fn *)node->aux.fn[KERNEL])(node->op, columns, rows, &r);
        }
    }
    return AGK_OK;
}

typedef struct rows {
    const agk_node *node;
    agk_port y, a, b;
    bool one_b;
} rows;

static void run_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const rows *r = context;
    if (r->node->aux.fn[HALVES] != NULL) {
        const agk_binary_rows whole = {
            .y = agk_port_at(&r->y, at[0], i), .a = agk_port_at(&r->a, at[1], i), .b = agk_port_at(&r->b, at[2], i)};
        ((agk_binary_f16_fn *)r->node->aux.fn[HALVES])(r->node->op, n, 1, &whole);
        return;
    }
    if (r->y.direct && r->a.direct && r->b.direct) {
        const agk_binary_rows whole = {
            .y = agk_port_at(&r->y, at[0], i), .a = agk_port_at(&r->a, at[1], i), .b = agk_port_at(&r->b, at[2], i)};
        ((agk_binary_f32_fn *)r->node->aux.fn[KERNEL])(r->node->op, n, 1, &whole);
        return;
    }
    _Alignas(64) float a_block[AGK_BLOCK], b_block[AGK_BLOCK], y_block[AGK_BLOCK];
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        float *y = agk_port_target(&r->y, at[0], i, y_block);
        const agk_binary_rows block = {.y = (char *)y,
                                       .a = (const char *)agk_port_read(&r->a, at[1], i, n, a_block),
                                       .b = (const char *)agk_port_read(&r->b, at[2], i, n, b_block)};
        ((agk_binary_f32_fn *)r->node->aux.fn[KERNEL])(r->node->op, n, 1, &block);
        agk_port_commit(&r->y, at[0], i, n, y);
    }
}

static agk_status run_strided(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_loop loop = loop_of(node);
    rows r = {.node = node,
              .y = agk_port_of(agk_data(task, &node->dst), node->dst.type, loop.stride[0][0]),
              .a = agk_port_of(agk_data(task, &node->src[0]), node->src[0].type, loop.stride[1][0]),
              .b = agk_port_of(agk_data(task, &node->src[1]), node->src[1].type, loop.stride[2][0])};
    r.y.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    r.a.read = (agk_to_float_fn *)node->aux.fn[READ_A];
    r.b.read = (agk_to_float_fn *)node->aux.fn[READ_B];
    agk_loop_run_chunk(&loop, node, chunk, run_row, &r);
    return AGK_OK;
}

static void scale_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const rows *r = context;
    if (r->y.direct && r->a.direct) {
        ((agk_binary_scale_f32_fn *)r->node->aux.fn[KERNEL])(n, (float *)(void *)agk_port_at(&r->y, at[0], i),
                                                             (const float *)(const void *)agk_port_at(&r->a, at[1], i),
                                                             agk_param_f32(r->node, 0), agk_param_f32(r->node, 1));
        return;
    }
    _Alignas(64) float x_block[AGK_BLOCK], y_block[AGK_BLOCK];
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        const float *x = agk_port_read(&r->a, at[1], i, n, x_block);
        float *y = agk_port_target(&r->y, at[0], i, y_block);
        ((agk_binary_scale_f32_fn *)r->node->aux.fn[KERNEL])(n, y, x, agk_param_f32(r->node, 0),
                                                             agk_param_f32(r->node, 1));
        agk_port_commit(&r->y, at[0], i, n, y);
    }
}

static agk_status run_scale(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_loop loop = agk_loop_pair(&node->dst, &node->src[0]);
    rows r = {.node = node,
              .y = agk_port_of(agk_data(task, &node->dst), AGK_F32, loop.stride[0][0]),
              .a = agk_port_of(agk_data(task, &node->src[0]), AGK_F32, loop.stride[1][0])};
    agk_loop_run_chunk(&loop, node, chunk, scale_row, &r);
    return AGK_OK;
}

static agk_status lower_scale(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_status status = agk_expect_f32_like(lowering, &node->dst, &node->src[0]);
    if (status != AGK_OK || agk_nelements(&node->dst) == 0) return status;
    const agk_loop loop = agk_loop_pair(&node->dst, &node->src[0]);
    const int64_t units = agk_loop_units(&loop);
    node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(binary_scale_f32, lowering->cpu);
    agk_add_units(lowering, run_scale, units, 0.25 * (double)(agk_nelements(&node->dst) / units) + 4.0);
    return AGK_OK;
}

/* add1: the same loop, with one element of b for all. */
static void add1_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const rows *r = context;
    _Alignas(64) float a_block[AGK_BLOCK], y_block[AGK_BLOCK], one;
    const float *b = agk_port_read(&r->b, 0, 0, 1, &one);
    if (r->y.direct && r->a.direct) {
        const agk_binary_rows whole = {
            .y = agk_port_at(&r->y, at[0], i), .a = agk_port_at(&r->a, at[1], i), .b = (const char *)b, .one_b = true};
        ((agk_binary_f32_fn *)r->node->aux.fn[KERNEL])(AGK_OP_add, n, 1, &whole);
        return;
    }
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        float *y = agk_port_target(&r->y, at[0], i, y_block);
        const agk_binary_rows block = {.y = (char *)y,
                                       .a = (const char *)agk_port_read(&r->a, at[1], i, n, a_block),
                                       .b = (const char *)b,
                                       .one_b = true};
        ((agk_binary_f32_fn *)r->node->aux.fn[KERNEL])(AGK_OP_add, n, 1, &block);
        agk_port_commit(&r->y, at[0], i, n, y);
    }
}

static agk_status run_add1(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *y = &node->dst, *a = &node->src[0], *b = &node->src[1];
    const agk_loop loop = agk_loop_pair(y, a);
    rows r = {.node = node,
              .y = agk_port_of(agk_data(task, y), y->type, loop.stride[0][0]),
              .a = agk_port_of(agk_data(task, a), a->type, loop.stride[1][0]),
              .b = agk_port_of(agk_data(task, b), b->type, (int64_t)agk_traits(b->type)->type_size)};
    r.y.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    r.a.read = (agk_to_float_fn *)node->aux.fn[READ_A];
    r.b.read = (agk_to_float_fn *)node->aux.fn[READ_B];
    agk_loop_run_chunk(&loop, node, chunk, add1_row, &r);
    return AGK_OK;
}

static agk_status lower_add1(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const agk_status status = agk_expect_like(lowering, &node->dst, a);
    if (status != AGK_OK) return status;
    const bool plain = a->type == AGK_F32 || a->type == AGK_F16 || a->type == AGK_BF16;
    const bool types = plain ? b->type == AGK_F32 || b->type == a->type : b->type == AGK_F32;
    if (!types || agk_reader(a->type, 0) == NULL || agk_writer(node->dst.type, 0) == NULL || agk_nelements(b) != 1) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "a is %s and b has %lld elements of %s; expected one element of f32 or of the type of a",
                          agk_type_name(a->type), (long long)agk_nelements(b), agk_type_name(b->type));
    }
    if (agk_nelements(a) == 0) return AGK_OK;
    node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(binary_f32, lowering->cpu);
    node->aux.fn[READ_A] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[READ_B] = (agk_any_fn *)agk_reader(b->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(a->type, lowering->cpu);
    const agk_loop loop = agk_loop_pair(&node->dst, a);
    const int64_t units = agk_loop_units(&loop);
    const double ns = plain ? 0.5 : 3.0;
    agk_add_units(lowering, run_add1, units, ns * (double)(agk_nelements(a) / units) + 10.0);
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    agk_view shape = *a;
    const bool quantized = agk_traits(a->type)->blck_size > 1;
    if (node->op == AGK_OP_add && (quantized || node->dst.type == AGK_F32)) shape.type = node->dst.type; /* add_cast */
    const agk_status status = agk_expect_like(lowering, &node->dst, &shape);
    if (status != AGK_OK) return status;
    for (int d = 0; d < 4; ++d) {
        if (b->ne[d] == a->ne[d] || (b->ne[d] > 0 && a->ne[d] % b->ne[d] == 0)) continue;
        return agk_refuse(lowering, AGK_INVALID,
                          "b has %lld elements in dimension %d, which does not divide the %lld of a",
                          (long long)b->ne[d], d, (long long)a->ne[d]);
    }
    const bool plain = a->type == AGK_F32 || a->type == AGK_F16 || a->type == AGK_BF16;
    const bool types = quantized ? node->op == AGK_OP_add && b->type == AGK_F32 && agk_same_shape(a, b)
                                 : plain && (b->type == AGK_F32 || b->type == a->type);
    if (!types) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s and b is %s in rows of %lld, a in rows of %lld",
                          agk_type_name(a->type), agk_type_name(b->type), (long long)b->ne[0], (long long)a->ne[0]);
    }
    if (quantized && (agk_reader(a->type, 0) == NULL || agk_writer(node->dst.type, 0) == NULL || b->nb[0] != 4)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "a is %s, so rows of b must be contiguous, but their elements are %lld bytes apart",
                          agk_type_name(a->type), (long long)b->nb[0]);
    }
    return AGK_OK;
}

/* The kernel for three operands of one 16-bit type whose rows have no gaps; NULL: there is no vector kernel. */
static agk_any_fn *halves_of(const agk_node *node, const agk_loop *loop, uint32_t cpu)
{
    const int type = node->dst.type;
    if ((type != AGK_F16 && type != AGK_BF16) || node->src[0].type != type || node->src[1].type != type) return NULL;
    for (int k = 0; k < 3; ++k) {
        if (loop->stride[k][0] != 2) return NULL;
    }
    return agk_pick_vector(type == AGK_F16 ? "binary_f16" : "binary_bf16", cpu);
}

agk_status agk_lower_binary(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    if (node->op == AGK_OP_scale) return lower_scale(lowering);
    if (node->op == AGK_OP_add1) return lower_add1(lowering);
    const agk_view *y = &node->dst, *a = &node->src[0], *b = &node->src[1];
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(y) == 0) return status;

    node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(binary_f32, lowering->cpu);
    node->aux.fn[READ_A] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[READ_B] = (agk_any_fn *)agk_reader(b->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(y->type, lowering->cpu);
    const agk_loop loop = loop_of(node);
    const int64_t step_b = loop.stride[2][0];
    node->aux.fn[HALVES] = halves_of(node, &loop, lowering->cpu);
    const bool dense = a->type == AGK_F32 && b->type == AGK_F32 && loop.stride[0][0] == 4 && loop.stride[1][0] == 4 &&
                       (step_b == 4 || step_b == 0);
    node->aux.i[ONE_B] = step_b == 0;
    node->aux.i[N] = loop.ne[0];
    node->aux.i[STEP_Y] = loop.stride[0][1];
    node->aux.i[STEP_A] = loop.stride[1][1];
    node->aux.i[STEP_B] = loop.stride[2][1];
    const bool flat = dense && loop.n_dims == 1, by_rows = dense && loop.n_dims == 2 && loop.ne[0] <= AGK_SEGMENT;
    const bool repeated = dense && loop.n_dims > 2 && loop.ne[0] * loop.ne[1] <= AGK_SEGMENT;
    if (is_transposed(node, &loop)) {
        const int64_t strips = agk_loop_rows(&loop) / loop.ne[1] * strips_of(&loop);
        node->aux.fn[TRANSPOSE] = (agk_any_fn *)AGK_PICK(cpy_transpose_32, lowering->cpu);
        agk_add_units(lowering, run_transposed, strips, 0.5 * (double)(agk_nelements(y) / strips) + 10.0);
        return AGK_OK;
    }
    agk_any_fn *past =
        flat && step_b == 4 && agk_worth_passing(node) ? agk_pick_vector("binary_past_f32", lowering->cpu) : NULL;
    if (past != NULL) node->aux.fn[KERNEL] = past;
    const int64_t units = flat       ? loop.ne[0]
                          : by_rows  ? loop.ne[1]
                          : repeated ? agk_loop_rows(&loop) / loop.ne[1]
                                     : agk_loop_units(&loop);
    const double ns = dense ? 0.25 : agk_traits(y->type)->blck_size > 1 ? agk_traits(y->type)->write_ns : 0.6;
    const double each = (double)(agk_nelements(y) / units);
    const int64_t per_chunk = agk_units_per_chunk(units, flat ? ns : ns * each + (by_rows ? 2.0 : 10.0));
    agk_add_step(lowering,
                 past != NULL ? run_past
                 : flat       ? run_flat
                 : by_rows    ? run_rows
                 : repeated   ? run_repeated
                              : run_strided,
                 agk_cut(node, units, flat && per_chunk < units ? per_chunk & ~(int64_t)63 : per_chunk));
    return AGK_OK;
}
