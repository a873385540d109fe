/* add_id: adds to each row of a the row of b that an index names. f32.
 *
 * A first step of one chunk checks all indices before any byte is written, so that a wrong one changes nothing. */
#include <stdio.h>

#include "table/kernel_types.h"
#include "units.h"

enum { KERNEL }; /* slots of node->aux */

static inline int32_t index_at(const agk_view *ids, const char *data, int64_t i0, int64_t i1)
{
    int32_t index;
    memcpy(&index, data + i0 * ids->nb[0] + i1 * ids->nb[1], sizeof index);
    return index;
}

static agk_status look(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const agk_view *ids = &node->src[2];
    const char *data = agk_data(task, ids);
    for (int64_t i1 = 0; i1 < ids->ne[1]; ++i1) {
        for (int64_t i0 = 0; i0 < ids->ne[0]; ++i0) {
            const int32_t index = index_at(ids, data, i0, i1);
            if (index >= 0 && index < node->src[1].ne[1]) continue;
            snprintf(task->message, AGK_MESSAGE, "[add_id] index %d at [%lld, %lld] is outside 0..%lld", index,
                     (long long)i0, (long long)i1, (long long)(node->src[1].ne[1] - 1));
            return AGK_OUT_OF_BOUNDS;
        }
    }
    return AGK_OK;
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2];
    const char *indices = agk_data(task, ids);
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t row = rows.first; row < rows.last; ++row) {
        const int64_t i1 = row % a->ne[1], i2 = row / a->ne[1] % a->ne[2];
        const agk_binary_rows r = {
            .y = (char *)agk_data(task, dst) + agk_row_at(dst, row),
            .a = (const char *)agk_data(task, a) + agk_row_at(a, row),
            .b = (const char *)agk_data(task, b) + index_at(ids, indices, i1, i2) * b->nb[1],
        };
        ((agk_binary_f32_fn *)node->aux.fn[KERNEL])(AGK_OP_add, a->ne[0], 1, &r);
    }
    return AGK_OK;
}

static agk_status look_and_run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_status status = look(task, node, chunk);
    return status == AGK_OK ? run(task, node, chunk) : status;
}

agk_status agk_lower_add_id(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2];
    const agk_status status = agk_expect_like(lowering, dst, a);
    if (status != AGK_OK) return status;
    if (a->type != AGK_F32 || b->type != AGK_F32 || ids->type != AGK_I32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, b is %s, ids are %s; expected f32, f32 and i32",
                          agk_type_name(a->type), agk_type_name(b->type), agk_type_name(ids->type));
    }
    if (b->ne[0] != a->ne[0] || ids->ne[0] != a->ne[1] || ids->ne[1] != a->ne[2]) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "a and b have rows of %lld and %lld elements, there are %lld x %lld indices for %lld x %lld rows",
            (long long)a->ne[0], (long long)b->ne[0], (long long)ids->ne[0], (long long)ids->ne[1], (long long)a->ne[1],
            (long long)a->ne[2]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (a->ne[0] > 1 && (a->nb[0] != 4 || b->nb[0] != 4 || dst->nb[0] != 4)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "rows of a and b must be contiguous, but their elements are %lld and %lld bytes apart",
                          (long long)a->nb[0], (long long)b->nb[0]);
    }
    const int64_t rows = agk_nrows(a);
    node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(binary_f32, lowering->cpu);
    const int64_t n_chunks = agk_cut(node, rows, agk_units_per_chunk(rows, 0.25 * (double)a->ne[0] + 20.0));
    if (n_chunks == 1) {
        agk_add_step(lowering, look_and_run, 1);
    } else {
        agk_add_step(lowering, look, 1);
        agk_add_step(lowering, run, n_chunks);
    }
    return AGK_OK;
}
