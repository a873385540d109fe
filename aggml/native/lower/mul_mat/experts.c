/* The first two steps of mul_mat_id. The first groups slots by expert. The second brings the columns of each expert
 * together in the form that the kernels read: one by one for dots, in units for blocks, side by side for packed
 * weights. Not here: the products (experts_products.c). */
#include <stdio.h>

#include "experts.h"

agk_status agk_experts_beyond(const agk_task *task, const agk_node *node, int64_t slot, int32_t id)
{
    const int64_t used = node->src[2].ne[0];
    snprintf(task->message, AGK_MESSAGE, "[mul_mat_id] id %d at [%lld, %lld] is beyond the %lld experts", id,
             (long long)(slot % used), (long long)(slot / used), (long long)node->src[0].ne[2]);
    return AGK_OUT_OF_BOUNDS;
}

/* Checks all indices before any byte is written, so that a wrong one changes nothing. Slots without an expert are
 * cleared. */
static agk_status group(const agk_task *task, const agk_node *node)
{
    const agk_view *a = &node->src[0], *ids = &node->src[2];
    const int64_t experts = a->ne[2], slots = ids->ne[0] * ids->ne[1];
    const char *data = agk_data(task, ids);
    const agk_experts t = agk_experts_of(task, node);
    memset(t.start, 0, (size_t)(experts + 1) * sizeof *t.start);
    for (int64_t slot = 0; slot < slots; ++slot) {
        const int32_t id = agk_experts_id(ids, data, slot);
        if (id >= experts) return agk_experts_beyond(task, node, slot, id);
        if (id >= 0) ++t.start[id + 1];
    }
    int64_t busy = 0;
    for (int64_t e = 0; e < experts; ++e) {
        if (t.start[e + 1] > 0) t.busy[busy++] = (int32_t)e;
        t.start[e + 1] += t.start[e];
    }
    while (busy < agk_experts_most(node)) t.busy[busy++] = -1;
    for (int64_t slot = 0; slot < slots; ++slot) {
        const int32_t id = agk_experts_id(ids, data, slot);
        if (id >= 0 && a->ne[0] > 0)
            t.order[t.start[id]++] = (int32_t)slot;
        else
            memset(agk_experts_result(task, node, slot), 0, (size_t)node->dst.ne[0] * sizeof(float));
    }
    /* filling moved each start to the start of the next expert */
    for (int64_t e = experts; e > 0; --e) t.start[e] = t.start[e - 1];
    if (experts > 0) t.start[0] = 0;
    return AGK_OK;
}

/* Chunk 0 groups the slots. The others quantize the columns of b that several slots share: done for each slot, that
 * took a tenth of a product of 64 tokens with 4 experts of 512 x 256. */
agk_status agk_experts_group_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    if (chunk == 0) return group(task, node);
    const agk_experts_plan p = agk_experts_plan_of(node);
    const agk_experts t = agk_experts_of(task, node);
    const agk_view *b = &node->src[1];
    const size_t bytes = agk_mm_col_bytes(AGK_MM_Q8, b->ne[0]);
    const int64_t per = agk_experts_shared_per_chunk(node), end = agk_mm_least(chunk * per, b->ne[1] * b->ne[2]);
    for (int64_t i = (chunk - 1) * per; i < end; ++i) {
        const char *x = (const char *)agk_data(task, b) + i % b->ne[1] * b->nb[1] + i / b->ne[1] * b->nb[2];
        p.read_b(x, task->scratch, b->ne[0]);
        agk_mm_convert(&p.dots.columns, task->scratch, agk_experts_shared(node, &t) + (size_t)i * bytes, b->ne[0]);
    }
    return AGK_OK;
}

/* Elements k0 .. k0 + k - 1 of the column of b for a slot, as f32. */
static void read_column(const agk_task *task, const agk_node *node, const agk_experts_plan *p, int64_t slot, int64_t k0,
                        int64_t k, void *out)
{
    const agk_view *b = &node->src[1];
    const int64_t used = node->src[2].ne[0], i1 = slot % used % b->ne[1], i2 = slot / used;
    const char *column = (const char *)agk_data(task, b) + i1 * b->nb[1] + i2 * b->nb[2];
    p->read_b(column + (int64_t)agk_row_size(b->type, k0), out, k);
}

/* Columns `at` .. `at` + n - 1 of the order, quantized and laid side by side. */
static void lay_for_packed(const agk_task *task, const agk_node *node, const agk_experts_plan *p, const agk_experts *t,
                           int64_t at, int64_t n, char *out)
{
    const int64_t k = node->src[0].ne[0];
    const size_t bytes = agk_mm_col_bytes(AGK_MM_Q8, k);
    float *floats = (float *)(void *)((char *)task->scratch + AGK_PACKED_MOST * bytes);
    const agk_packed_layout *layout = agk_packed_layout_of(node->src[0].type);
    for (int64_t j = 0; j < n; ++j) {
        const int64_t slot = t->order[at + j], used = node->src[2].ne[0], some = node->src[1].ne[1];
        char *to = (char *)task->scratch + (size_t)j * bytes;
        if (agk_experts_share(p, node)) {
            memcpy(to, agk_experts_shared(node, t) + (size_t)(slot / used * some + slot % used % some) * bytes, bytes);
            continue;
        }
        read_column(task, node, p, slot, 0, k, floats);
        agk_mm_convert(&p->dots.columns, floats, to, k);
    }
    if (n <= AGK_PACKED_COLUMNS)
        agk_packed_columns(layout, n, n, k, task->scratch, bytes, out);
    else
        agk_packed_tiles(layout, n, AGK_PACKED_MOST, k, task->scratch, bytes, out);
}

/* Columns at .. at + cols - 1 of the order as a unit. */
static void pack_for_blocks(const agk_task *task, const agk_node *node, const agk_experts_plan *p, const agk_experts *t,
                            int64_t at, int64_t cols, char *out)
{
    const int64_t k = node->src[0].ne[0];
    const size_t stride = agk_mm_col_bytes(AGK_MM_FLOATS, AGK_EXPERTS_BLOCK_K);
    for (int64_t k0 = 0; k0 < k; k0 += AGK_EXPERTS_BLOCK_K) {
        const int64_t kn = agk_mm_least(AGK_EXPERTS_BLOCK_K, k - k0);
        for (int64_t j = 0; j < cols; ++j) {
            read_column(task, node, p, t->order[at + j], k0, kn, (char *)task->scratch + (size_t)j * stride);
        }
        p->pack(kn, cols, task->scratch, stride, out + agk_mm_unit_bytes(AGK_MM_UNIT_FLOATS, k0));
    }
}

/* Converts column `at` of the order. Dots take each column by itself. Blocks and packed weights take several
 * columns, which are converted together with the first of them. */
static void bring_column(const agk_task *task, const agk_node *node, const agk_experts_plan *p, const agk_experts *t,
                         int64_t expert, int64_t at)
{
    const int64_t k = node->src[0].ne[0], first = t->start[expert], count = t->start[expert + 1] - first;
    const int64_t i = at - first;
    char *columns = agk_experts_columns(t, expert);
    if (p->packs) {
        if (i % agk_experts_together(p) != 0) return;
        const size_t before = agk_experts_bytes_before(p, agk_packed_layout_of(node->src[0].type), i, k);
        lay_for_packed(task, node, p, t, at, agk_mm_least(agk_experts_together(p), count - i), columns + before);
    } else if (count <= AGK_EXPERTS_DOTS) {
        char *out = columns + (size_t)i * t->stride;
        const bool convert = p->dots.columns.form != AGK_MM_AS_IT_IS;
        read_column(task, node, p, t->order[at], 0, k, convert ? task->scratch : out);
        if (convert) agk_mm_convert(&p->dots.columns, task->scratch, out, k);
    } else if (i % AGK_MM_UNIT == 0) {
        pack_for_blocks(task, node, p, t, at, agk_mm_least(AGK_MM_UNIT, count - i),
                        columns + (size_t)i * (size_t)k * sizeof(float));
    }
}

agk_status agk_experts_columns_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_experts_plan p = agk_experts_plan_of(node);
    const agk_experts t = agk_experts_of(task, node);
    const agk_view *ids = &node->src[2];
    const char *data = agk_data(task, ids);
    const int64_t all = t.start[node->src[0].ne[2]], first = chunk * (int64_t)p.columns_per_chunk;
    for (int64_t at = first; at < agk_mm_least(all, first + p.columns_per_chunk); ++at) {
        bring_column(task, node, &p, &t, agk_experts_id(ids, data, t.order[at]), at);
    }
    return AGK_OK;
}
