/* The third step of mul_mat_id: experts times blocks of rows. The number of items follows from the shape, the work
 * in an item from the indices. Results are collected in scratch first, because the columns of one expert are
 * scattered in the result. */
#include "experts.h"

enum {
    L1_ELEMENTS = 7168, /* f32 elements of columns: they take 28 of the 48 KB */
    K_GRAIN = 256,      /* a multiple of every block size */
};

/* A part of the product: rows first .. last - 1 of one expert, whose columns are those of `cols` slots from `slots`
 * on. */
typedef struct part {
    const agk_task *task;
    const agk_node *node;
    const agk_experts_plan *p;
    int64_t expert, first, last, cols;
    const int32_t *slots;
    const char *columns; /* as agk_experts_columns_step left them */
    size_t stride;
} part;

/* n rows of the expert's matrix from `rows` on, k elements from k0 on, as f32. */
static void widen(const part *x, const char *rows, int64_t n, int64_t k0, int64_t k, float *out)
{
    const agk_view *a = &x->node->src[0];
    rows += agk_row_size(a->type, k0);
    for (int64_t i = 0; i < n; ++i) x->p->read_a(rows + i * a->nb[1], out + i * k, k);
}

/* Scatters results from [column][rows] to the columns of the result, from row `row` on; columns first .. first +
 * cols - 1 of the expert. A copy of up to 32 rows in one call would become `rep movsq`, which takes as long as copying
 * 32 rows three times. */
static void scatter(const part *x, int64_t first, int64_t cols, int64_t row, int64_t rows, const float *from)
{
    for (int64_t j = 0; j < cols; ++j) {
        char *to = agk_experts_result(x->task, x->node, x->slots[first + j]) + row * 4;
        const float *column = from + j * rows;
        int64_t i = 0;
        for (; i + 16 <= rows; i += 16) memcpy(to + 4 * i, column + i, 16 * sizeof *from);
        for (; i < rows; ++i) memcpy(to + 4 * i, column + i, sizeof *from);
    }
}

static const char *matrix_of(const part *x)
{
    const agk_view *a = &x->node->src[0];
    return (const char *)agk_data(x->task, a) + x->expert * a->nb[2];
}

static void by_dots(const part *x)
{
    const agk_view *a = &x->node->src[0];
    const agk_mm_dots *dots = &x->p->dots;
    const int64_t k = a->ne[0], in_l1 = L1_ELEMENTS / x->cols / K_GRAIN * K_GRAIN;
    const int64_t k_block = dots->columns.form != AGK_MM_AS_IT_IS ? k : agk_mm_least(AGK_EXPERTS_DOT_K, in_l1);
    float *result = x->task->scratch, *widened = result + AGK_EXPERTS_DOTS * AGK_EXPERTS_DOT_ROWS;
    for (int64_t row = x->first; row < x->last; row += AGK_EXPERTS_DOT_ROWS) {
        const int64_t rows = agk_mm_least(AGK_EXPERTS_DOT_ROWS, x->last - row);
        const char *from = matrix_of(x) + row * a->nb[1];
        for (int64_t k0 = 0; k0 < k; k0 += k_block) {
            agk_mm_block block = {.k = agk_mm_least(k_block, k - k0),
                                  .rows = rows,
                                  .cols = x->cols,
                                  .a = from + agk_row_size(a->type, k0),
                                  .lda = (size_t)a->nb[1],
                                  .b = x->columns + (size_t)k0 * sizeof(float),
                                  .ldb = x->stride,
                                  .c = result,
                                  .ldc = (size_t)rows * sizeof(float),
                                  .add = k0 > 0};
            if (dots->rows.form != AGK_MM_AS_IT_IS) {
                widen(x, from, rows, k0, block.k, widened);
                block.a = widened;
                block.lda = (size_t)block.k * sizeof(float);
            }
            dots->product(&block);
        }
        scatter(x, 0, x->cols, row, rows, result);
    }
}

/* Rows row .. row + rows - 1 of the expert, packed: the kept copy, or packed now into scratch behind the results. */
static const char *packed_rows(const part *x, int64_t row, int64_t rows)
{
    const agk_view *a = &x->node->src[0];
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    const int64_t groups = agk_mm_ceil_div(rows, AGK_PACKED_ROWS);
    char *to = (char *)x->task->scratch + AGK_PACKED_MOST * AGK_EXPERTS_BLOCK_ROWS * sizeof(float);
    const int64_t at = x->expert * agk_mm_ceil_div(a->ne[1], AGK_PACKED_ROWS) + row / AGK_PACKED_ROWS;
    const char *found = to;
    for (int64_t i = groups - 1; i >= 0; --i) {
        const int64_t first = row + i * AGK_PACKED_ROWS;
        if (x->p->packed != NULL)
            found = agk_packed_ready(x->p->packed, at + i);
        else
            x->p->pack_rows(a->type, matrix_of(x) + first * a->nb[1], (size_t)a->nb[1],
                            agk_mm_least(AGK_PACKED_ROWS, row + rows - first), a->ne[0],
                            to + (size_t)i * agk_packed_group_bytes(layout, a->ne[0]));
    }
    return found;
}

/* Multiplies two groups of 16 rows at a time: they stay in L2 while all columns of the expert are multiplied. */
static void multiply_packed(const part *x)
{
    const agk_view *a = &x->node->src[0];
    const agk_experts_plan *p = x->p;
    const int64_t k = a->ne[0];
    const int64_t together = agk_experts_together(p);
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    for (int64_t row = x->first; row < x->last; row += AGK_EXPERTS_BLOCK_ROWS) {
        const int64_t rows = agk_mm_least(AGK_EXPERTS_BLOCK_ROWS, x->last - row);
        const char *weights = packed_rows(x, row, rows);
        for (int64_t i = 0; i < x->cols; i += together) {
            const int64_t n = agk_mm_least(together, x->cols - i);
            const agk_mm_block block = {.k = k,
                                        .rows = rows,
                                        .cols = n,
                                        .a = weights,
                                        .lda = agk_packed_group_bytes(layout, k),
                                        .b = x->columns + agk_experts_bytes_before(p, layout, i, k),
                                        .c = x->task->scratch,
                                        .ldc = (size_t)rows * sizeof(float)};
            (n <= AGK_PACKED_COLUMNS ? p->packed_lanes : p->packed_tiles)(&block);
            scatter(x, i, n, row, rows, x->task->scratch);
        }
    }
}

/* Multiplies some rows by columns first .. first + cols - 1, k elements from k0 on. */
static void block_of(const part *x, int64_t first, int64_t cols, const char *from, int64_t rows, int64_t k0, int64_t k,
                     float *result)
{
    const agk_view *a = &x->node->src[0];
    const size_t unit = agk_mm_unit_bytes(AGK_MM_UNIT_FLOATS, a->ne[0]);
    float *widened = result + AGK_EXPERTS_BLOCK_COLUMNS * AGK_EXPERTS_BLOCK_ROWS;
    agk_mm_block block = {.k = k,
                          .rows = rows,
                          .a = from + agk_row_size(a->type, k0),
                          .lda = (size_t)a->nb[1],
                          .ldb = unit,
                          .ldc = (size_t)rows * sizeof(float),
                          .add = k0 > 0};
    if (x->p->read_a != NULL) {
        widen(x, from, rows, k0, k, widened);
        block.a = widened;
        block.lda = (size_t)k * sizeof(float);
    }
    const char *columns = x->columns + agk_mm_unit_bytes(AGK_MM_UNIT_FLOATS, k0);
    for (int64_t col = 0; col < cols; col += AGK_MM_MAX_UNITS * AGK_MM_UNIT) {
        block.cols = agk_mm_least(AGK_MM_MAX_UNITS * AGK_MM_UNIT, cols - col);
        block.b = columns + (size_t)((first + col) / AGK_MM_UNIT) * unit;
        block.c = result + col * rows;
        x->p->block(&block);
    }
}

static void by_blocks(const part *x)
{
    const agk_view *a = &x->node->src[0];
    float *result = x->task->scratch;
    for (int64_t first = 0; first < x->cols; first += AGK_EXPERTS_BLOCK_COLUMNS) {
        const int64_t cols = agk_mm_least(AGK_EXPERTS_BLOCK_COLUMNS, x->cols - first);
        for (int64_t row = x->first; row < x->last; row += AGK_EXPERTS_BLOCK_ROWS) {
            const int64_t rows = agk_mm_least(AGK_EXPERTS_BLOCK_ROWS, x->last - row);
            const char *from = matrix_of(x) + row * a->nb[1];
            for (int64_t k0 = 0; k0 < a->ne[0]; k0 += AGK_EXPERTS_BLOCK_K) {
                block_of(x, first, cols, from, rows, k0, agk_mm_least(AGK_EXPERTS_BLOCK_K, a->ne[0] - k0), result);
            }
            scatter(x, first, cols, row, rows, result);
        }
    }
}

agk_status agk_experts_product_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_experts_plan p = agk_experts_plan_of(node);
    const agk_experts t = agk_experts_of(task, node);
    const int64_t m = node->src[0].ne[1], items = p.items_per_expert * agk_experts_most(node);
    const int64_t from = chunk * (int64_t)p.per_chunk;
    for (int64_t i = from; i < agk_mm_least(items, from + p.per_chunk); ++i) {
        const int64_t expert = t.busy[i / p.items_per_expert], first = i % p.items_per_expert * p.rows_per_item;
        if (expert < 0) break;
        const part x = {.task = task,
                        .node = node,
                        .p = &p,
                        .expert = expert,
                        .first = first,
                        .last = agk_mm_least(m, first + p.rows_per_item),
                        .cols = t.start[expert + 1] - t.start[expert],
                        .slots = t.order + t.start[expert],
                        .columns = agk_experts_columns(&t, expert),
                        .stride = t.stride};
        if (p.packs)
            multiply_packed(&x);
        else if (x.cols > AGK_EXPERTS_DOTS)
            by_blocks(&x);
        else
            by_dots(&x);
    }
    return AGK_OK;
}
