/* mul_mat_id of one token, as in decoding: each slot is a product with one column, which reads its rows once.
 *
 * Nothing is grouped or scattered. Either all slots share one column, or each has its own. A first step converts the
 * columns to the form that the kernel reads. Then slots and blocks of rows are multiplied, straight into the result.
 * If the node before this one has the same columns and the same indices (up and gate), its converted columns are
 * used again. Not here: several tokens (experts.c). */
#include <stdio.h>

#include "experts.h"

enum {
    /* rows of an item are a multiple of this: two groups of packed weights, or whole blocks of dots */
    GROUPS_ROWS = 32,
    K_MOST = 7168,      /* of floats in L1 at a time */
    COLUMNS_OF = 8192,  /* elements of columns that one thread converts: some 3 us */
    EXPERTS_OF_ONE = 64 /* at most so many slots of one token; more are grouped */
};

/* Times in ns of one thread: how long an item should take, and a node that is not cut. */
static const double item_ns = 5000.0, alone_ns = 8000.0;

typedef struct plan {
    agk_packed *packed; /* NULL: rows are read as they lie */
    agk_mm_block_fn *product;
    agk_mm_conversion columns;
    int64_t rows_per_item, items_per_slot;
    int32_t per_chunk, columns_per_chunk;
} plan;

AGK_PLAN_IN_AUX(plan, plan_of)

static size_t column_bytes(const plan *p, int64_t k)
{
    if (p->packed != NULL) return agk_packed_columns_bytes(1, k);
    return p->columns.form == AGK_MM_AS_IT_IS ? 0 : agk_mm_col_bytes(p->columns.form, k);
}

/* Checks that each index is that of an expert. */
static agk_status check_ids(const agk_task *task, const agk_node *node)
{
    const agk_view *a = &node->src[0], *ids = &node->src[2];
    for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
        const int32_t id = agk_experts_id(ids, agk_data(task, ids), slot);
        if (id >= a->ne[2]) return agk_experts_beyond(task, node, slot, id);
    }
    return AGK_OK;
}

/* Checks the indices, and converts the columns. */
static agk_status columns_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], first = chunk * (int64_t)p.columns_per_chunk;
    const size_t bytes = column_bytes(&p, k);
    if (chunk == 0 && check_ids(task, node) != AGK_OK) return AGK_OUT_OF_BOUNDS;
    if (bytes == 0) return AGK_OK;
    for (int64_t i = first; i < agk_mm_least(b->ne[1], first + p.columns_per_chunk); ++i) {
        const char *column = (const char *)agk_data(task, b) + i * b->nb[1];
        char *out = (char *)agk_work(task, node) + (size_t)i * bytes;
        if (p.packed == NULL) {
            agk_mm_convert(&p.columns, column, out, k);
            continue;
        }
        agk_mm_convert(&p.columns, column, task->scratch, k);
        agk_packed_columns(agk_packed_layout_of(node->src[0].type), 1, 1, k, task->scratch,
                           agk_mm_col_bytes(AGK_MM_Q8, k), out);
    }
    return AGK_OK;
}

/* Rows from `row` on of one expert times one column. */
static void multiply(const agk_task *task, const agk_node *node, const plan *p, int64_t expert, int64_t row,
                     const char *column, agk_mm_block *block)
{
    const agk_view *a = &node->src[0];
    if (p->packed != NULL) {
        const agk_packed_layout *layout = agk_packed_layout_of(a->type);
        const int64_t first = expert * agk_mm_ceil_div(a->ne[1], AGK_PACKED_ROWS) + row / AGK_PACKED_ROWS;
        for (int64_t i = agk_mm_ceil_div(block->rows, AGK_PACKED_ROWS) - 1; i >= 0; --i)
            block->a = agk_packed_ready(p->packed, first + i);
        block->lda = agk_packed_group_bytes(layout, block->k);
        block->b = column;
        p->product(block);
        return;
    }
    const char *from = (const char *)agk_data(task, a) + expert * a->nb[2] + row * a->nb[1];
    const int64_t k = a->ne[0], most = p->columns.form == AGK_MM_Q8 ? k : K_MOST;
    for (int64_t k0 = 0; k0 < k; k0 += most) {
        block->k = agk_mm_least(most, k - k0);
        block->a = from + agk_row_size(a->type, k0);
        block->lda = (size_t)a->nb[1];
        block->b = column + (size_t)k0 * sizeof(float);
        block->add = k0 > 0;
        p->product(block);
    }
}

static agk_status product_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2];
    const int64_t items = p.items_per_slot * ids->ne[0];
    const size_t bytes = column_bytes(&p, a->ne[0]);
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(items, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t slot = i / p.items_per_slot, row = i % p.items_per_slot * p.rows_per_item;
        const int64_t rows = agk_mm_least(p.rows_per_item, a->ne[1] - row), at = slot % b->ne[1];
        const int32_t id = agk_experts_id(ids, agk_data(task, ids), slot);
        float *to = (float *)(void *)agk_experts_result(task, node, slot) + row;
        if (id < 0) {
            memset(to, 0, (size_t)rows * sizeof *to);
            continue;
        }
        const char *column = bytes > 0 ? (const char *)agk_work(task, node) + (size_t)at * bytes
                                       : (const char *)agk_data(task, b) + at * b->nb[1];
        agk_mm_block block = {
            .k = a->ne[0], .rows = rows, .cols = 1, .c = to, .ldb = bytes, .ldc = (size_t)rows * sizeof *to};
        multiply(task, node, &p, id, row, column, &block);
        agk_breathe(task);
    }
    return AGK_OK;
}

/* Whether the converted columns of an earlier product can be used again. They depend on src[1] alone, and the
 * earlier product has checked the same indices. */
static bool same_columns(const plan *p, const agk_node *node, const agk_node *earlier)
{
    if (earlier->op != node->op || earlier->src[0].ne[2] != node->src[0].ne[2]) return false;
    const plan q = plan_of(earlier);
    for (int i = 1; i <= 2; ++i) {
        const agk_view *x = &node->src[i], *y = &earlier->src[i];
        if (x->addr != y->addr || x->arena_mask != y->arena_mask || x->type != y->type ||
            memcmp(x->ne, y->ne, sizeof x->ne) != 0 || memcmp(x->nb, y->nb, sizeof x->nb) != 0)
            return false;
    }
    if ((p->packed == NULL) != (q.packed == NULL) || p->columns.form != q.columns.form ||
        p->columns.with != q.columns.with)
        return false;
    if (p->packed == NULL) return true;
    const agk_packed_layout *x = agk_packed_layout_of(node->src[0].type);
    const agk_packed_layout *y = agk_packed_layout_of(earlier->src[0].type);
    return x->sums == y->sums && x->offset == y->offset;
}

/* How many rows an item has, and how many items a chunk. */
static void choose_sizes(plan *p, const agk_node *node)
{
    const agk_view *a = &node->src[0];
    const int64_t k = a->ne[0], m = a->ne[1], slots = node->src[2].ne[0];
    /* 20 bytes per ns from memory; an element of a block takes 0.03 ns if packed, 0.1 ns as it lies */
    const double read = (double)agk_row_size(a->type, k) / 20.0;
    const double made = agk_traits(a->type)->blck_size > 1 ? (double)k * (p->packed != NULL ? 0.03 : 0.1) : 0.0;
    const double row_ns = (read > made ? read : made) + 1.0;
    const int64_t rows = agk_mm_ceil_div((int64_t)(item_ns / row_ns) + 1, GROUPS_ROWS) * GROUPS_ROWS;
    p->rows_per_item = agk_mm_least(rows, agk_mm_ceil_div(m, GROUPS_ROWS) * GROUPS_ROWS);
    p->items_per_slot = agk_mm_ceil_div(m, p->rows_per_item);
    const int64_t items = p->items_per_slot * slots;
    p->per_chunk = (int32_t)(row_ns * (double)(m * slots) < alone_ns ? items : agk_mm_ceil_div(items, 500000));
    p->columns_per_chunk = (int32_t)agk_mm_ceil_div(COLUMNS_OF, k);
}

bool agk_experts_token_lower(agk_lowering *lowering, const agk_experts_plan *kernels)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2];
    if (ids->ne[1] != 1 || ids->ne[0] > EXPERTS_OF_ONE) return false;
    plan p = {.packed = kernels->packed, .product = kernels->dots.product, .columns = kernels->dots.columns};
    if (p.packed != NULL) {
        p.product = kernels->packed_lanes;
        p.columns = agk_mm_to_q8(b->type, lowering->cpu);
    } else if (b->type != AGK_F32 || kernels->dots.rows.form != AGK_MM_AS_IT_IS) {
        return false; /* these kernels read columns of f32 and rows as they lie */
    }
    choose_sizes(&p, node);
    const int64_t k = a->ne[0];
    lowering->work_size = (size_t)b->ne[1] * column_bytes(&p, k);
    lowering->scratch_size = p.packed != NULL ? agk_mm_col_bytes(AGK_MM_Q8, k) : 0;
    lowering->lays_columns = lowering->work_size > 0;
    if (!lowering->lays_columns || lowering->columns == NULL || !same_columns(&p, node, lowering->columns)) {
        const int64_t chunks = column_bytes(&p, k) > 0 ? agk_mm_ceil_div(b->ne[1], p.columns_per_chunk) : 1;
        agk_add_step(lowering, columns_step, chunks);
    }
    agk_add_step(lowering, product_step, agk_mm_ceil_div(p.items_per_slot * ids->ne[0], p.per_chunk));
    memcpy(&node->aux, &p, sizeof p);
    return true;
}
