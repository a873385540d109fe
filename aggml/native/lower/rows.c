/* get_rows and set_rows: read rows by index, and write rows by index.
 *
 * A first step of one chunk checks all indices before any byte is written, so that a wrong one changes nothing.
 * Here: the lowering and the steps; the work is done by row conversions and copies. */
#include <stdio.h>

#include "table/kernel_types.h"
#include "units.h"

enum { COLUMNS, PARTS, READ, WRITE, ROW }; /* slots of node->aux */

static int64_t index_at(const agk_view *ids, const char *data, int64_t i0, int64_t i1, int64_t i2)
{
    const char *p = data + i0 * ids->nb[0] + i1 * ids->nb[1] + i2 * ids->nb[2];
    if (ids->type == AGK_I32) {
        int32_t index;
        memcpy(&index, p, sizeof index);
        return index;
    }
    int64_t index;
    memcpy(&index, p, sizeof index);
    return index;
}

static const agk_view *target_of(const agk_node *node)
{
    return node->op == AGK_OP_get_rows ? &node->src[0] : &node->dst;
}

/* Whether the planes of a set_rows are divided between chunks. */
static bool is_divided(const agk_node *node)
{
    return node->op == AGK_OP_set_rows && node->aux.i[PARTS] > 1;
}

/* Returns whether bit i of a set was set, and sets it. */
static bool mark(uint8_t *set, int64_t i)
{
    const uint8_t bit = (uint8_t)(1 << (i & 7));
    const bool before = (set[i >> 3] & bit) != 0;
    set[i >> 3] |= bit;
    return before;
}

/* If a set_rows is divided, the first byte of the work area then says whether the indices of each plane are
 * distinct. */
static agk_status look(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const agk_view *ids = &node->src[1];
    const int64_t rows = target_of(node)->ne[1];
    const char *data = agk_data(task, ids);
    uint8_t *seen = is_divided(node) ? (uint8_t *)agk_work(task, node) + 1 : NULL;
    bool distinct = true;
    for (int64_t i2 = 0; i2 < ids->ne[2]; ++i2) {
        for (int64_t i1 = 0; i1 < ids->ne[1]; ++i1) {
            if (seen != NULL) memset(seen, 0, (size_t)rows / 8 + 1);
            for (int64_t i0 = 0; i0 < ids->ne[0]; ++i0) {
                const int64_t index = index_at(ids, data, i0, i1, i2);
                if (index >= 0 && index < rows) {
                    if (seen != NULL) distinct = distinct && !mark(seen, index);
                    continue;
                }
                snprintf(task->message, AGK_MESSAGE, "[%s] index %lld at position %lld is outside 0..%lld",
                         agk_op_name(node->op), (long long)index, (long long)((i2 * ids->ne[1] + i1) * ids->ne[0] + i0),
                         (long long)(rows - 1));
                return AGK_OUT_OF_BOUNDS;
            }
        }
    }
    if (seen != NULL) seen[-1] = distinct;
    return AGK_OK;
}

/* Copies a row of n elements from x to y: without conversion (elements of `size` bytes), or by way of f32. */
static void move_row(const agk_node *node, int64_t n, int64_t size, char *y, const char *x)
{
    agk_to_float_fn *read = (agk_to_float_fn *)node->aux.fn[READ];
    agk_from_float_fn *write = (agk_from_float_fn *)node->aux.fn[WRITE];
    if (read == NULL && write == NULL) {
        ((agk_cpy_row_fn *)node->aux.fn[ROW])(n * size, y, x);
    } else if (read == NULL) {
        write((const float *)(const void *)x, y, n);
    } else if (write == NULL) {
        read(x, (float *)(void *)y, n);
    } else {
        const agk_type_traits *to = agk_traits(node->dst.type);
        float middle[AGK_BLOCK];
        for (int64_t i = 0; i < n; i += AGK_BLOCK) {
            const int64_t part = n - i < AGK_BLOCK ? n - i : AGK_BLOCK;
            read(x + 2 * i, middle, part); /* only f16 rows need both conversions */
            write(middle, y + i / to->blck_size * (int64_t)to->type_size, part);
        }
    }
}

static agk_status run_get(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0], *ids = &node->src[1];
    char *y = agk_data(task, dst);
    const char *x = agk_data(task, a), *index = agk_data(task, ids);
    const agk_range rows = agk_units_of(node, chunk);
    int64_t i0 = rows.first % ids->ne[0], i1 = rows.first / ids->ne[0], i2 = i1 / ids->ne[1];
    i1 -= i2 * ids->ne[1];
    for (int64_t row = rows.first; row < rows.last; ++row) {
        const int64_t from = index_at(ids, index, i0, i1, i2);
        move_row(node, a->ne[0], 4, y + i0 * dst->nb[1] + i1 * dst->nb[2] + i2 * dst->nb[3],
                 x + from * a->nb[1] + i1 * a->nb[2] + i2 * a->nb[3]);
        if (++i0 < ids->ne[0]) continue; /* counting takes less time than divisions for each row */
        i0 = 0;
        if (++i1 < ids->ne[1]) continue;
        i1 = 0;
        ++i2;
    }
    return AGK_OK;
}

/* A part of a plane: rows first .. last - 1 of b, n elements of each from `column` on. */
typedef struct part {
    int64_t i2, i3, first, last, column, n;
} part;

static void set_part(const agk_task *task, const agk_node *node, const part *p)
{
    const agk_view *dst = &node->dst, *b = &node->src[0], *ids = &node->src[1];
    const agk_type_traits *to = agk_traits(dst->type), *from = agk_traits(b->type);
    const char *index = agk_data(task, ids);
    char *y = (char *)agk_data(task, dst) + p->i2 * dst->nb[2] + p->i3 * dst->nb[3] +
              p->column / to->blck_size * (int64_t)to->type_size;
    const char *x =
        (const char *)agk_data(task, b) + p->i2 * b->nb[2] + p->i3 * b->nb[3] + p->column * (int64_t)from->type_size;
    const int64_t j2 = p->i2 % ids->ne[1], j3 = p->i3 % ids->ne[2];
    for (int64_t i1 = p->first; i1 < p->last; ++i1) {
        const int64_t row = index_at(ids, index, i1, j2, j3);
        move_row(node, p->n, (int64_t)to->type_size, y + row * dst->nb[1], x + i1 * b->nb[1]);
    }
}

/* A unit is a part of a plane of b: a part of its rows if no two of them go to the same place, else a part of its
 * columns. All rows of these columns belong to one chunk. So, if two rows go to the same place, the later one always
 * wins, whatever the threads do. */
static agk_status run_set(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *b = &node->src[0];
    const int64_t columns = node->aux.i[COLUMNS], parts = node->aux.i[PARTS], rows = b->ne[1];
    const bool by_rows = is_divided(node) && rows >= parts && *(const char *)agk_work(task, node) != 0;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t plane = parts == 1 ? unit : unit / parts, i3 = plane < b->ne[2] ? 0 : plane / b->ne[2];
        const int64_t i = unit - plane * parts, column = i * columns, rest = b->ne[0] - column;
        part p = {.i2 = plane - i3 * b->ne[2], .i3 = i3, .last = rows, .n = b->ne[0]};
        if (by_rows) {
            p.first = rows * i / parts;
            p.last = rows * (i + 1) / parts;
        } else {
            p.column = column;
            p.n = rest < columns ? rest : columns;
        }
        set_part(task, node, &p);
    }
    return AGK_OK;
}

static agk_status look_and_get(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_status status = look(task, node, chunk);
    return status == AGK_OK ? run_get(task, node, chunk) : status;
}

static agk_status look_and_set(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_status status = look(task, node, chunk);
    return status == AGK_OK ? run_set(task, node, chunk) : status;
}

static void add_steps(agk_lowering *lowering, int64_t units, double unit_ns, agk_step_fn *both, agk_step_fn *alone)
{
    agk_node *node = lowering->node;
    const int64_t n_chunks = agk_cut(node, units, agk_units_per_chunk(units, unit_ns));
    if (n_chunks == 1) {
        agk_add_step(lowering, both, 1);
    } else {
        agk_add_step(lowering, look, 1);
        agk_add_step(lowering, alone, n_chunks);
    }
}

static bool dense_row(const agk_view *view)
{
    const agk_type_traits *traits = agk_traits(view->type);
    return view->nb[0] == (int64_t)traits->type_size || view->ne[0] <= traits->blck_size;
}

static agk_status lower_get(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *ids = &node->src[1];
    const bool whole = a->type == AGK_F32 || a->type == AGK_I32;
    if (ids->type != AGK_I32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "indices are %s, not i32", agk_type_name(ids->type));
    }
    if ((!whole && agk_traits(a->type)->to_float == NULL) || dst->type != (a->type == AGK_I32 ? AGK_I32 : AGK_F32)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows of %s cannot be written as %s", agk_type_name(a->type),
                          agk_type_name(dst->type));
    }
    if (a->ne[2] != ids->ne[1] || a->ne[3] != ids->ne[2] || ids->ne[3] != 1 || dst->ne[0] != a->ne[0] ||
        dst->ne[1] != ids->ne[0] || dst->ne[2] != ids->ne[1] || dst->ne[3] != ids->ne[2]) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "b has %lld x %lld x %lld x %lld indices, which do not fit the extents 2 and 3 of a, %lld x %lld",
            (long long)ids->ne[0], (long long)ids->ne[1], (long long)ids->ne[2], (long long)ids->ne[3],
            (long long)a->ne[2], (long long)a->ne[3]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (!dense_row(a) || !dense_row(dst)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows must be contiguous, but their elements are %lld bytes apart",
                          (long long)(dense_row(a) ? dst->nb[0] : a->nb[0]));
    }
    node->aux.fn[READ] = whole ? NULL : (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    node->aux.fn[WRITE] = NULL;
    add_steps(lowering, agk_nrows(dst), (whole ? 0.2 : 0.5) * (double)a->ne[0] + 10.0, look_and_get, run_get);
    return AGK_OK;
}

static agk_status check_set(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *b = &node->src[0], *ids = &node->src[1];
    if (b->type != AGK_F32 && b->type != AGK_F16) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows are %s, not f32 or f16", agk_type_name(b->type));
    }
    if (ids->type != AGK_I32 && ids->type != AGK_I64) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "indices are %s, not i32 or i64", agk_type_name(ids->type));
    }
    if (dst->type != AGK_I32 && agk_traits(dst->type)->from_float == NULL) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "there is no conversion from floats to %s",
                          agk_type_name(dst->type));
    }
    const bool fits = b->ne[0] == dst->ne[0] && b->ne[2] == dst->ne[2] && b->ne[3] == dst->ne[3] &&
                      ids->ne[0] == b->ne[1] && ids->ne[3] == 1 &&
                      (agk_nelements(b) == 0 ||
                       (ids->ne[1] > 0 && ids->ne[2] > 0 && b->ne[2] % ids->ne[1] == 0 && b->ne[3] % ids->ne[2] == 0));
    if (!fits) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "c has %lld x %lld x %lld indices for the %lld x %lld x %lld rows of b; expected one for each",
            (long long)ids->ne[0], (long long)ids->ne[1], (long long)ids->ne[2], (long long)b->ne[1],
            (long long)b->ne[2], (long long)b->ne[3]);
    }
    if (!dense_row(b) || !dense_row(dst)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows must be contiguous, but their elements are %lld bytes apart",
                          (long long)(dense_row(b) ? dst->nb[0] : b->nb[0]));
    }
    return AGK_OK;
}

static agk_status lower_set(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *b = &node->src[0];
    const agk_status status = check_set(lowering);
    if (status != AGK_OK || agk_nelements(b) == 0) return status;
    const bool whole = b->type == dst->type;
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    node->aux.fn[READ] = whole || b->type == AGK_F32 ? NULL : (agk_any_fn *)agk_reader(b->type, lowering->cpu);
    agk_from_float_fn *write =
        /* i32 is not a float type */
        dst->type == AGK_I32 ? agk_i32_from_float : agk_writer(dst->type, lowering->cpu);
    node->aux.fn[WRITE] = whole || dst->type == AGK_F32 ? NULL : (agk_any_fn *)write;
    const double ns = agk_traits(dst->type)->blck_size > 1 ? agk_traits(dst->type)->write_ns : 0.5;
    const double plane_ns = (double)b->ne[1] * (ns * (double)b->ne[0] + 10.0);
    const bool split = plane_ns > 20000.0 && b->ne[0] >= 2 * AGK_BLOCK;
    node->aux.i[COLUMNS] = split ? AGK_BLOCK : b->ne[0];
    node->aux.i[PARTS] = (b->ne[0] + node->aux.i[COLUMNS] - 1) / node->aux.i[COLUMNS];
    const int64_t parts = node->aux.i[PARTS];
    if (parts > 1) lowering->work_size = (size_t)dst->ne[1] / 8 + 2;
    add_steps(lowering, b->ne[2] * b->ne[3] * parts, plane_ns / (double)parts, look_and_set, run_set);
    return AGK_OK;
}

agk_status agk_lower_rows(agk_lowering *lowering)
{
    return lowering->node->op == AGK_OP_get_rows ? lower_get(lowering) : lower_set(lowering);
}
