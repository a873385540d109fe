/* get_rows_back: adds rows up at the places from which get_rows took them.
 *
 * A first step checks all indices before any byte is written, so that a wrong one changes nothing. Here: the
 * lowering and the steps. */
#include <stdio.h>

#include "table/kernel_types.h"
#include "units.h"

enum { ZERO_ROWS, ADD }; /* slots of node->aux: rows of a chunk; the kernel that adds */
/* columns of a unit: all rows of these columns belong to one thread, which adds them in order */
enum { COLUMNS = 256 };

static int32_t index_at(const agk_node *node, const char *ids, int64_t i)
{
    int32_t index;
    memcpy(&index, ids + i * node->src[1].nb[0], sizeof index);
    return index;
}

static agk_status look(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const char *ids = agk_data(task, &node->src[1]);
    for (int64_t i = 0; i < node->src[1].ne[0]; ++i) {
        const int32_t index = index_at(node, ids, i);
        if (index >= 0 && index < node->dst.ne[1]) continue;
        snprintf(task->message, AGK_MESSAGE, "[get_rows_back] index %d at position %lld is outside 0..%lld", index,
                 (long long)i, (long long)node->dst.ne[1] - 1);
        return AGK_OUT_OF_BOUNDS;
    }
    return AGK_OK;
}

/* Clears whole rows in order, so that memory is written once, from end to end. */
static agk_status zero(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst;
    char *y = agk_data(task, dst);
    const int64_t rows = node->aux.i[ZERO_ROWS];
    for (int64_t row = chunk * rows; row < agk_chunk_end(chunk, rows, dst->ne[1]); ++row) {
        memset(y + row * dst->nb[1], 0, (size_t)dst->ne[0] * sizeof(float));
    }
    return AGK_OK;
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const char *x = agk_data(task, a), *ids = agk_data(task, &node->src[1]);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t first = unit * COLUMNS, rest = dst->ne[0] - first, n = rest < COLUMNS ? rest : COLUMNS;
        for (int64_t i = 0; i < a->ne[1]; ++i) {
            char *sum = y + index_at(node, ids, i) * dst->nb[1] + first * dst->nb[0];
            const char *from = x + i * a->nb[1] + first * a->nb[0];
            float part[COLUMNS];
            const bool direct = a->type == AGK_F32 && a->nb[0] == 4;
            if (!direct) agk_load_row(a->type, from, a->nb[0], n, part);
            const agk_binary_rows rows = {.y = sum, .a = sum, .b = direct ? from : (const char *)part};
            ((agk_binary_f32_fn *)node->aux.fn[ADD])(AGK_OP_add, n, 1, &rows);
        }
    }
    return AGK_OK;
}

agk_status agk_lower_rows_back(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *ids = &node->src[1], *dst = &node->dst;
    if ((a->type != AGK_F32 && a->type != AGK_F16) || ids->type != AGK_I32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "a is %s and the indices are %s; expected f32 or f16 and i32, and a result of f32",
                          agk_type_name(a->type), agk_type_name(ids->type));
    }
    if (a->ne[0] != dst->ne[0] || ids->ne[0] != a->ne[1] || agk_nrows(a) != a->ne[1] || agk_nrows(ids) != 1 ||
        agk_nrows(dst) != dst->ne[1]) {
        return agk_refuse(lowering, AGK_INVALID,
                          "%lld indices for %lld rows of %lld elements: they do not fit together",
                          (long long)ids->ne[0], (long long)a->ne[1], (long long)a->ne[0]);
    }
    if (agk_nelements(dst) == 0 && agk_nelements(a) == 0) return AGK_OK;
    agk_add_step(lowering, look, 1);
    if (agk_nelements(dst) == 0) return AGK_OK;
    node->aux.fn[ADD] = (agk_any_fn *)AGK_PICK(binary_f32, lowering->cpu);
    node->aux.i[ZERO_ROWS] = agk_units_per_chunk(dst->ne[1], 0.2 * (double)dst->ne[0] + 5.0);
    agk_add_step(lowering, zero, agk_chunks(dst->ne[1], node->aux.i[ZERO_ROWS]));
    agk_add_units(lowering, run, (dst->ne[0] + COLUMNS - 1) / COLUMNS, COLUMNS * 0.5 * (double)a->ne[1] + 5.0);
    return AGK_OK;
}
