/* set and acc: a copy of a in which b is put into a part, or added to that part.
 *
 * First a is copied, unless the result is a view of it; then the part is written. The part is described like a view:
 * by b's extents, and by strides and offset from the parameters. Not here: the copies (copy.c). */
#include "copy.h"
#include "table/kernel_types.h"
#include "units.h"

enum { COPY_PER_CHUNK, COPY_UNITS, PER_CHUNK, UNITS, TRANSPOSE, ROW, FLAT }; /* slots of node->aux */

static agk_view part_of(const agk_node *node)
{
    const agk_view *b = &node->src[1];
    agk_view part = node->dst;
    int64_t layout[4]; /* nb1, nb2, nb3, offset */
    memcpy(layout, node->params, sizeof layout);
    memcpy(part.ne, b->ne, sizeof part.ne);
    memcpy(&part.nb[1], layout, 3 * sizeof layout[0]);
    part.addr += (uintptr_t)layout[3];
    return part;
}

/* If neither a nor the result has gaps, a unit is a byte. */
static agk_status run_copy(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const int64_t per_chunk = node->aux.i[COPY_PER_CHUNK], first = chunk * per_chunk;
    const int64_t last = agk_chunk_end(chunk, per_chunk, node->aux.i[COPY_UNITS]);
    char *y = agk_data(task, &node->dst);
    const char *x = agk_data(task, &node->src[0]);
    if (node->aux.i[FLAT]) {
        ((agk_cpy_row_fn *)node->aux.fn[ROW])(last - first, y + first, x + first);
        return AGK_OK;
    }
    const agk_copy copy = agk_copy_plan(&node->dst, &node->src[0], node->aux.fn[TRANSPOSE], node->aux.fn[ROW]);
    agk_copy_run(&copy, y, x, first, last);
    return AGK_OK;
}

static agk_status run_set(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view part = part_of(node);
    const agk_copy copy = agk_copy_plan(&part, &node->src[1], node->aux.fn[TRANSPOSE], node->aux.fn[ROW]);
    const int64_t per_chunk = node->aux.i[PER_CHUNK];
    agk_copy_run(&copy, agk_data(task, &part), agk_data(task, &node->src[1]), chunk * per_chunk,
                 agk_chunk_end(chunk, per_chunk, node->aux.i[UNITS]));
    return AGK_OK;
}

typedef struct operands {
    char *y;
    const char *b;
    int64_t step_y, step_b;
} operands;

static void add_row(void *context, int64_t n, int64_t i, const int64_t *at)
{
    const operands *o = context;
    char *y = o->y + at[0] + i * o->step_y;
    const char *b = o->b + at[1] + i * o->step_b;
    if (o->step_y == 4 && o->step_b == 4) {
        float *sum = (float *)(void *)y;
        const float *more = (const float *)(const void *)b;
        for (int64_t k = 0; k < n; ++k) sum[k] += more[k];
        return;
    }
    for (int64_t k = 0; k < n; ++k) {
        float v, w;
        memcpy(&v, y + k * o->step_y, sizeof v);
        memcpy(&w, b + k * o->step_b, sizeof w);
        v += w;
        memcpy(y + k * o->step_y, &v, sizeof v);
    }
}

static agk_status run_acc(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view part = part_of(node);
    const agk_loop loop = agk_loop_pair(&part, &node->src[1]);
    operands o = {agk_data(task, &part), agk_data(task, &node->src[1]), loop.stride[0][0], loop.stride[1][0]};
    const int64_t per_chunk = node->aux.i[PER_CHUNK];
    agk_loop_run(&loop, chunk * per_chunk, agk_chunk_end(chunk, per_chunk, node->aux.i[UNITS]), add_row, &o);
    return AGK_OK;
}

/* Whether no two elements of the part share bytes, as far as this can be told for nested strides. */
static bool apart(const agk_view *part)
{
    int64_t least = part->nb[0] * part->ne[0];
    for (int d = 1; d < 4; ++d) {
        if (part->ne[d] > 1 && part->nb[d] < least) return false;
        if (part->ne[d] > 1) least = part->nb[d] * part->ne[d];
    }
    return true;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1];
    const agk_status status = agk_expect_like(lowering, dst, a);
    if (status != AGK_OK) return status;
    const bool known = a->type == AGK_F32 || (node->op == AGK_OP_set && a->type == AGK_I32);
    if (!known || b->type != a->type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, b is %s", agk_type_name(a->type),
                          agk_type_name(b->type));
    }
    if (agk_nelements(b) == 0) return AGK_OK;
    int64_t layout[4];
    memcpy(layout, node->params, sizeof layout);
    int64_t last = layout[3] + b->ne[0] * 4, whole = dst->ne[0] * dst->nb[0];
    for (int d = 1; d < 4; ++d) {
        whole += (dst->ne[d] - 1) * dst->nb[d];
        last += (b->ne[d] - 1) * layout[d - 1];
        if (layout[d - 1] < 0) last = INT64_MAX / 2;
    }
    if (layout[3] < 0 || last > whole) {
        return agk_refuse(lowering, AGK_INVALID, "b takes %lld bytes from byte %lld on, but a has %lld",
                          (long long)last, (long long)layout[3], (long long)whole);
    }
    return AGK_OK;
}

agk_status agk_lower_patch(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1];
    const agk_status status = check(lowering);
    if (status != AGK_OK) return status;
    node->aux.fn[TRANSPOSE] = agk_copy_transpose(dst->type, lowering->cpu);
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    node->aux.i[FLAT] = agk_contiguous(dst) && agk_contiguous(a);
    const bool inplace = dst->addr == a->addr && dst->arena_mask == a->arena_mask;
    if (agk_nelements(dst) > 0 && !inplace) {
        const bool flat = node->aux.i[FLAT] != 0;
        const int64_t units = flat ? 4 * agk_nelements(dst) : agk_copy_plan(dst, a, NULL, NULL).units;
        const int64_t per_chunk = agk_units_per_chunk(units, flat ? 0.05 : agk_copy_ns(dst, units));
        node->aux.i[COPY_UNITS] = units;
        node->aux.i[COPY_PER_CHUNK] = flat && per_chunk < units ? per_chunk & ~(int64_t)4095 : per_chunk;
        agk_add_step(lowering, run_copy, agk_chunks(units, node->aux.i[COPY_PER_CHUNK]));
    }
    if (agk_nelements(b) == 0) return AGK_OK;
    const agk_view part = part_of(node);
    const agk_loop loop = agk_loop_pair(&part, b);
    const bool set = node->op == AGK_OP_set;
    const int64_t units = set ? agk_copy_plan(&part, b, NULL, NULL).units : agk_loop_units(&loop);
    node->aux.i[UNITS] = units;
    node->aux.i[PER_CHUNK] = apart(&part) ? agk_units_per_chunk(units, agk_copy_ns(&part, units)) : units;
    agk_add_step(lowering, set ? run_set : run_acc, agk_chunks(units, node->aux.i[PER_CHUNK]));
    return AGK_OK;
}
