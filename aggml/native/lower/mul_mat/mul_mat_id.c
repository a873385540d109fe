/* mul_mat_id: each column of b times the matrix of that expert which an index names.
 *
 * Three steps. The first looks at all indices, so that a wrong one is found before any byte is written, groups the
 * columns by expert, and clears those without an expert (a negative index). The second brings the columns of an expert
 * together, as the kernels of mul_mat want them: few for dots, many in units for tiles. The third goes over experts and
 * blocks of rows; how many there are follows from the shape, how much an item has to do from the indices. Results of a
 * block lie in scratch first, since columns of one expert are apart in the result. Weights that are packed (mul_mat_packed.h) are
 * multiplied as integers however many columns an expert has; others are widened to f32 where it has many.
 *
 * Not here: the kernels (mul_mat_blocks.c, avx2/, avx512/), products with one matrix (mul_mat.c). */
#include <stdio.h>

#include "kernels/mul_mat_packed.h"
#include "lower/weights.h"
#include "lower/refuse.h"
#include "lower/strided.h"
#include "mul_mat_plan.h"

enum {
    DOT_COLUMNS = 8, /* of an expert, up to which dots are faster than packing for tiles */
    DOT_ROWS = 16,   /* of a at a time */
    DOT_K = 1024,    /* 16 rows of it, widened, are 64 KB */
    L1_ELEMENTS = 7168,
    K_GRAIN = 256, /* a multiple of every block */
    TILE_ROWS = 32,
    TILE_K = 512,       /* 32 rows of it, widened, are 64 KB */
    TILE_COLUMNS = 384, /* whose results, 32 rows of them, are in scratch together: 48 KB */
};

typedef struct plan {
    agk_mm_block_fn *dot, *tile; /* where weights are packed, that of up to 8 and of 9 to 16 columns */
    agk_mm_pack_fn *pack;
    agk_packed *packed;      /* NULL: rows are read as they lie */
    agk_to_float_fn *read_a; /* for tiles; NULL: a is f32 */
    agk_to_float_fn *read_b;
    agk_mm_convert_fn *col_q8; /* columns for the dot; NULL: they stay f32 */
    int64_t rows_per_item, items_per_expert, per_chunk;
    int32_t pack_chunk;
    bool tiles;      /* of AMX, for packed weights */
    bool dot_widens; /* the dot reads f32 rows, a has others */
} plan;

_Static_assert(sizeof(plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux");

/* Columns of an expert that are multiplied together where its weights are packed: on tiles 16, in lanes 8. */
static int64_t together(const plan *p)
{
    return p->tiles ? AGK_PACKED_MOST : AGK_PACKED_COLUMNS;
}

/* Where column i of an expert begins, the first of those multiplied together. Up to 8, the last ones, go to lanes. */
static size_t columns_before(const plan *p, const agk_packed_layout *layout, int64_t i, int64_t k)
{
    return p->tiles ? (size_t)(i / AGK_PACKED_MOST) * agk_packed_tiles_bytes(layout, AGK_PACKED_MOST, k)
                    : agk_packed_columns_bytes(i, k);
}

static plan plan_of(const agk_node *node)
{
    plan p;
    memcpy(&p, &node->aux, sizeof p);
    return p;
}

/* The work area: where each expert's columns begin in `order`, the columns by expert, then their elements. */
typedef struct table {
    int32_t *start, *order; /* start[experts] is the number of columns that have an expert */
    char *columns;          /* those of expert e begin at 2 * start[e]: units of 16 need up to twice the room */
    size_t stride;          /* bytes of a column */
} table;

static size_t table_bytes(const agk_node *node)
{
    const size_t n = (size_t)(node->src[0].ne[2] + 1 + node->src[2].ne[0] * node->src[2].ne[1]);
    return (n * sizeof(int32_t) + 63) & ~(size_t)63;
}

static table table_of(const agk_task *task, const agk_node *node)
{
    char *work = agk_work(task, node);
    int32_t *start = (int32_t *)(void *)work;
    return (table){start, start + node->src[0].ne[2] + 1, work + table_bytes(node),
                   agk_mm_col_bytes(AGK_MM_FLOATS, node->src[0].ne[0])};
}

static inline char *expert_columns(const table *t, int64_t expert)
{
    return t->columns + (size_t)(2 * (int64_t)t->start[expert]) * t->stride;
}

/* Column `slot` is [slot % used, slot / used] of ids and of the result. */
static inline char *result_of(const agk_task *task, const agk_node *node, int64_t slot)
{
    const agk_view *dst = &node->dst;
    return (char *)agk_data(task, dst) + slot % dst->ne[1] * dst->nb[1] + slot / dst->ne[1] * dst->nb[2];
}

static inline int32_t expert_of(const agk_view *ids, const char *data, int64_t slot)
{
    int32_t id;
    memcpy(&id, data + slot % ids->ne[0] * ids->nb[0] + slot / ids->ne[0] * ids->nb[1], sizeof id);
    return id;
}

static agk_status group(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const agk_view *a = &node->src[0], *ids = &node->src[2];
    const int64_t experts = a->ne[2], slots = ids->ne[0] * ids->ne[1];
    const char *data = agk_data(task, ids);
    const table t = table_of(task, node);
    memset(t.start, 0, (size_t)(experts + 1) * sizeof *t.start);
    for (int64_t slot = 0; slot < slots; ++slot) {
        const int32_t id = expert_of(ids, data, slot);
        if (id >= experts) {
            snprintf(task->message, AGK_MESSAGE, "[mul_mat_id] id %d at [%lld, %lld] is beyond the %lld experts", id,
                     (long long)(slot % ids->ne[0]), (long long)(slot / ids->ne[0]), (long long)experts);
            return AGK_OUT_OF_BOUNDS;
        }
        if (id >= 0) ++t.start[id + 1];
    }
    for (int64_t e = 0; e < experts; ++e) t.start[e + 1] += t.start[e];
    for (int64_t slot = 0; slot < slots; ++slot) {
        const int32_t id = expert_of(ids, data, slot);
        if (id >= 0 && a->ne[0] > 0)
            t.order[t.start[id]++] = (int32_t)slot;
        else
            memset(result_of(task, node, slot), 0, (size_t)node->dst.ne[0] * sizeof(float));
    }
    for (int64_t e = experts; e > 0; --e) t.start[e] = t.start[e - 1]; /* filling moved each to the next */
    if (experts > 0) t.start[0] = 0;
    return AGK_OK;
}

/* Elements k0 .. k0 + k - 1 of the column of b for a slot, as f32. */
static void read_column(const agk_task *task, const agk_node *node, const plan *p, int64_t slot, int64_t k0, int64_t k,
                        void *out)
{
    const agk_view *b = &node->src[1];
    const int64_t used = node->src[2].ne[0], i1 = slot % used % b->ne[1], i2 = slot / used;
    p->read_b((const char *)agk_data(task, b) + i1 * b->nb[1] + i2 * b->nb[2] + (int64_t)agk_row_size(b->type, k0), out,
              k);
}

/* Columns `at` .. `at` + n - 1 of the order, quantized and laid side by side. */
static void lay_columns(const agk_task *task, const agk_node *node, const plan *p, const table *t, int64_t at,
                        int64_t n, char *out)
{
    const int64_t k = node->src[0].ne[0];
    const size_t bytes = agk_mm_col_bytes(AGK_MM_Q8, k);
    float *floats = (float *)(void *)((char *)task->scratch + AGK_PACKED_MOST * bytes);
    for (int64_t j = 0; j < n; ++j) {
        read_column(task, node, p, t->order[at + j], 0, k, floats);
        p->col_q8(floats, (char *)task->scratch + (size_t)j * bytes, k);
    }
    (n <= AGK_PACKED_COLUMNS ? agk_packed_columns : agk_packed_tiles)(agk_packed_layout_of(node->src[0].type), n,
                                                                      n <= AGK_PACKED_COLUMNS ? n : AGK_PACKED_MOST, k,
                                                                      task->scratch, bytes, out);
}

/* Bring together column `at` of the order: for dots each by itself, for tiles 16 by the first of them. */
static void pack_column(const agk_task *task, const agk_node *node, const plan *p, const table *t, int64_t expert,
                        int64_t at)
{
    const int64_t k = node->src[0].ne[0], first = t->start[expert], count = t->start[expert + 1] - first;
    char *columns = expert_columns(t, expert);
    if (p->packed != NULL) {
        const int64_t i = at - first, n = agk_mm_least(together(p), count - i);
        const agk_packed_layout *layout = agk_packed_layout_of(node->src[0].type);
        if (i % together(p) == 0) lay_columns(task, node, p, t, at, n, columns + columns_before(p, layout, i, k));
        return;
    }
    if (count <= DOT_COLUMNS) {
        char *out = columns + (size_t)(at - first) * t->stride;
        read_column(task, node, p, t->order[at], 0, k, p->col_q8 != NULL ? task->scratch : out);
        if (p->col_q8 != NULL) p->col_q8(task->scratch, out, k);
        return;
    }
    if ((at - first) % AGK_MM_UNIT != 0) return;
    const int64_t cols = agk_mm_least(AGK_MM_UNIT, first + count - at);
    const size_t stride = agk_mm_col_bytes(AGK_MM_FLOATS, TILE_K);
    char *out = columns + (size_t)(at - first) * (size_t)k * sizeof(float);
    for (int64_t k0 = 0; k0 < k; k0 += TILE_K) {
        const int64_t kn = agk_mm_least(TILE_K, k - k0);
        for (int64_t j = 0; j < cols; ++j) {
            read_column(task, node, p, t->order[at + j], k0, kn, (char *)task->scratch + (size_t)j * stride);
        }
        p->pack(kn, cols, task->scratch, stride, out + agk_mm_unit_bytes(AGK_MM_FLOATS, k0));
    }
}

static agk_status pack(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const table t = table_of(task, node);
    const agk_view *ids = &node->src[2];
    const char *data = agk_data(task, ids);
    const int64_t all = t.start[node->src[0].ne[2]];
    for (int64_t at = chunk * p.pack_chunk; at < agk_mm_least(all, (chunk + 1) * p.pack_chunk); ++at) {
        pack_column(task, node, &p, &t, expert_of(ids, data, t.order[at]), at);
    }
    return AGK_OK;
}

/* Rows of an expert's matrix from element k0 on, k of them, as f32. */
static void widen(const agk_view *a, agk_to_float_fn *read, const char *rows, int64_t n, int64_t k0, int64_t k,
                  float *out)
{
    rows += agk_row_size(a->type, k0);
    for (int64_t i = 0; i < n; ++i) read(rows + i * a->nb[1], out + i * k, k);
}

/* From scratch [column][rows] to the columns of the result, rows `row` and following. */
static void scatter(const agk_task *task, const agk_node *node, const int32_t *slots, int64_t cols, int64_t row,
                    int64_t rows, const float *from)
{
    for (int64_t j = 0; j < cols; ++j) {
        memcpy(result_of(task, node, slots[j]) + row * 4, from + j * rows, (size_t)rows * sizeof *from);
    }
}

static void dots(const agk_task *task, const agk_node *node, const plan *p, const table *t, int64_t expert,
                 int64_t first, int64_t last)
{
    const agk_view *a = &node->src[0];
    const int64_t k = a->ne[0], cols = t->start[expert + 1] - t->start[expert];
    const int64_t in_l1 = L1_ELEMENTS / cols / K_GRAIN * K_GRAIN;
    const int64_t k_block = p->col_q8 != NULL ? k : agk_mm_least(DOT_K, in_l1);
    const char *matrix = (const char *)agk_data(task, a) + expert * a->nb[2], *columns = expert_columns(t, expert);
    float *result = task->scratch, *widened = result + DOT_COLUMNS * DOT_ROWS;
    for (int64_t row = first; row < last; row += DOT_ROWS) {
        const int64_t rows = agk_mm_least(DOT_ROWS, last - row);
        const char *from = matrix + row * a->nb[1];
        for (int64_t k0 = 0; k0 < k; k0 += k_block) {
            agk_mm_block block = {.k = agk_mm_least(k_block, k - k0),
                                  .rows = rows,
                                  .cols = cols,
                                  .a = from + agk_row_size(a->type, k0),
                                  .lda = (size_t)a->nb[1],
                                  .b = columns + (size_t)k0 * sizeof(float),
                                  .ldb = t->stride,
                                  .c = result,
                                  .ldc = (size_t)rows * sizeof(float),
                                  .add = k0 > 0};
            if (p->dot_widens) {
                widen(a, p->read_a, from, rows, k0, block.k, widened);
                block.a = widened;
                block.lda = (size_t)block.k * sizeof(float);
            }
            p->dot(&block);
        }
        scatter(task, node, t->order + t->start[expert], cols, row, rows, result);
    }
}

/* Two groups of 16 rows at a time: they stay in L2 while all columns of the expert pass by. */
static void packed(const agk_task *task, const agk_node *node, const plan *p, const table *t, int64_t expert,
                   int64_t first, int64_t last)
{
    const int64_t k = node->src[0].ne[0], all = t->start[expert + 1] - t->start[expert];
    const int64_t group = expert * agk_mm_ceil_div(node->src[0].ne[1], AGK_PACKED_ROWS);
    const char *columns = expert_columns(t, expert);
    const agk_packed_layout *layout = agk_packed_layout_of(node->src[0].type);
    for (int64_t row = first; row < last; row += TILE_ROWS) {
        const int64_t rows = agk_mm_least(TILE_ROWS, last - row), at = group + row / AGK_PACKED_ROWS;
        if (rows > AGK_PACKED_ROWS) agk_packed_ready(p->packed, at + 1);
        const char *a = agk_packed_ready(p->packed, at);
        for (int64_t i = 0; i < all; i += together(p)) {
            const int64_t n = agk_mm_least(together(p), all - i);
            const agk_mm_block block = {.k = k,
                                        .rows = rows,
                                        .cols = n,
                                        .a = a,
                                        .lda = agk_packed_group_bytes(layout, k),
                                        .b = columns + columns_before(p, layout, i, k),
                                        .c = task->scratch,
                                        .ldc = (size_t)rows * sizeof(float)};
            (n <= AGK_PACKED_COLUMNS ? p->dot : p->tile)(&block);
            scatter(task, node, t->order + t->start[expert] + i, n, row, rows, task->scratch);
        }
    }
}

static void tiles(const agk_task *task, const agk_node *node, const plan *p, const table *t, int64_t expert,
                  int64_t first, int64_t last)
{
    const agk_view *a = &node->src[0];
    const int64_t k = a->ne[0], all = t->start[expert + 1] - t->start[expert];
    const size_t unit = agk_mm_unit_bytes(AGK_MM_FLOATS, k);
    const char *matrix = (const char *)agk_data(task, a) + expert * a->nb[2], *units = expert_columns(t, expert);
    float *result = task->scratch, *widened = result + TILE_COLUMNS * TILE_ROWS;
    for (int64_t group = 0; group < all; group += TILE_COLUMNS) {
        const int64_t cols = agk_mm_least(TILE_COLUMNS, all - group);
        for (int64_t row = first; row < last; row += TILE_ROWS) {
            const int64_t rows = agk_mm_least(TILE_ROWS, last - row);
            const char *from = matrix + row * a->nb[1];
            for (int64_t k0 = 0; k0 < k; k0 += TILE_K) {
                agk_mm_block block = {.k = agk_mm_least(TILE_K, k - k0),
                                      .rows = rows,
                                      .a = from + agk_row_size(a->type, k0),
                                      .lda = (size_t)a->nb[1],
                                      .ldb = unit,
                                      .ldc = (size_t)rows * sizeof(float),
                                      .add = k0 > 0};
                if (p->read_a != NULL) {
                    widen(a, p->read_a, from, rows, k0, block.k, widened);
                    block.a = widened;
                    block.lda = (size_t)block.k * sizeof(float);
                }
                for (int64_t col = 0; col < cols; col += AGK_MM_MAX_UNITS * AGK_MM_UNIT) {
                    block.cols = agk_mm_least(AGK_MM_MAX_UNITS * AGK_MM_UNIT, cols - col);
                    block.b =
                        units + (size_t)((group + col) / AGK_MM_UNIT) * unit + agk_mm_unit_bytes(AGK_MM_FLOATS, k0);
                    block.c = result + col * rows;
                    p->tile(&block);
                }
            }
            scatter(task, node, t->order + t->start[expert] + group, cols, row, rows, result);
        }
    }
}

static agk_status multiply(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const table t = table_of(task, node);
    const int64_t m = node->src[0].ne[1], items = p.items_per_expert * node->src[0].ne[2];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(items, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t expert = i / p.items_per_expert, count = t.start[expert + 1] - t.start[expert];
        const int64_t first = i % p.items_per_expert * p.rows_per_item;
        const int64_t last = agk_mm_least(m, first + p.rows_per_item);
        if (p.packed != NULL && count > 0)
            packed(task, node, &p, &t, expert, first, last);
        else if (count > DOT_COLUMNS)
            tiles(task, node, &p, &t, expert, first, last);
        else if (count > 0)
            dots(task, node, &p, &t, expert, first, last);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2], *dst = &node->dst;
    const agk_type_traits *ta = agk_traits(a->type), *tb = agk_traits(b->type);
    if (ta->to_float == NULL || ta->vec_dot_type == AGK_NONE || tb->to_float == NULL ||
        (b->type != AGK_F32 && b->type != (int32_t)ta->vec_dot_type) || ids->type != AGK_I32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "as is %s, b is %s, ids are %s", agk_type_name(a->type),
                          agk_type_name(b->type), agk_type_name(ids->type));
    }
    const bool fits = a->ne[0] == b->ne[0] && a->ne[0] % ta->blck_size == 0 && a->ne[3] == 1 && b->ne[3] == 1 &&
                      ids->ne[1] == b->ne[2] && ids->ne[2] == 1 && ids->ne[3] == 1 &&
                      (b->ne[1] == 0 ? ids->ne[0] == 0 : ids->ne[0] % b->ne[1] == 0) && dst->ne[0] == a->ne[1] &&
                      dst->ne[1] == ids->ne[0] && dst->ne[2] == b->ne[2] && dst->ne[3] == 1;
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID, "rows of %lld and %lld, %lld x %lld ids, %lld x %lld columns",
                          (long long)a->ne[0], (long long)b->ne[0], (long long)ids->ne[0], (long long)ids->ne[1],
                          (long long)b->ne[1], (long long)b->ne[2]);
    }
    if (ids->ne[0] * ids->ne[1] > INT32_MAX / 2) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "%lld columns, more than 2^30",
                          (long long)(ids->ne[0] * ids->ne[1]));
    }
    if (a->nb[0] != (int64_t)ta->type_size || b->nb[0] != (int64_t)tb->type_size || dst->nb[0] != 4) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows must be contiguous, elements are %lld and %lld bytes apart",
                          (long long)a->nb[0], (long long)b->nb[0]);
    }
    return AGK_OK;
}

/* Dots multiply f32, f16 and bf16 rows as they lie, some quantized ones with quantized columns; others are widened. */
static void pick_kernels(plan *p, int a, int b, uint32_t cpu)
{
    p->pack = AGK_PICK(mm_blocks_pack_f32, cpu);
    p->tile = AGK_PICK(mm_blocks_f32, cpu);
    p->read_a = a == AGK_F32 ? NULL : agk_reader(a, cpu);
    p->read_b = agk_reader(b, cpu);
    agk_mm_block_fn *as_q8 = agk_mm_quantized_dot(a, cpu);
    if (as_q8 != NULL) {
        p->dot = as_q8;
        p->col_q8 = AGK_PICK(mm_columns_q8, cpu);
    } else if (a == AGK_F16) {
        p->dot = AGK_PICK(mm_dots_f16, cpu);
    } else if (a == AGK_BF16) {
        p->dot = AGK_PICK(mm_dots_bf16, cpu);
    } else {
        p->dot = AGK_PICK(mm_dots_f32, cpu);
        p->dot_widens = a != AGK_F32;
    }
}

/* Packed weights are multiplied as integers, whatever the number of columns. */
static void pick_packed(plan *p, agk_lowering *lowering)
{
    const agk_view *a = &lowering->node->src[0];
    const uint32_t cpu = lowering->cpu, needs = AGK_AMX_INT8 | AGK_AVX512;
    agk_mm_block_fn *lanes = agk_packed_product(a->type, false, cpu);
    if (lowering->weights == NULL || lanes == NULL || a->ne[1] < AGK_PACKED_ROWS) return;
    p->packed = lowering->packed = agk_packed_acquire(lowering->weights, a);
    if (p->packed == NULL) return;
    p->dot = lanes;
    p->tiles = (cpu & needs) == needs;
    p->tile = agk_packed_product(a->type, true, cpu);
}

static size_t scratch_bytes(const plan *p, int64_t k)
{
    if (p->packed != NULL) {
        const size_t columns = AGK_PACKED_MOST * agk_mm_col_bytes(AGK_MM_Q8, k) + (size_t)k * sizeof(float);
        const size_t product = (size_t)(AGK_PACKED_MOST * TILE_ROWS) * sizeof(float);
        return columns > product ? columns : product;
    }
    const size_t dots = (size_t)(DOT_COLUMNS * DOT_ROWS + (p->dot_widens ? DOT_ROWS * DOT_K : 0)) * sizeof(float);
    const size_t product = (size_t)(TILE_ROWS * (TILE_COLUMNS + (p->read_a != NULL ? TILE_K : 0))) * sizeof(float);
    const size_t unit = AGK_MM_UNIT * agk_mm_col_bytes(AGK_MM_FLOATS, TILE_K);
    const size_t column = p->col_q8 != NULL ? (size_t)k * sizeof(float) : 0;
    size_t most = dots > product ? dots : product;
    most = unit > most ? unit : most;
    return column > most ? column : most;
}

agk_status agk_lower_mul_mat_id(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(&node->dst) == 0) return status;
    const agk_view *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2];
    const int64_t k = a->ne[0], m = a->ne[1], experts = a->ne[2], slots = ids->ne[0] * ids->ne[1];
    agk_add_step(lowering, group, 1);
    lowering->work_size = table_bytes(node);
    if (k == 0 || experts == 0) return AGK_OK; /* every row is cleared */

    plan p = {0};
    pick_kernels(&p, a->type, b->type, lowering->cpu);
    pick_packed(&p, lowering);
    /* ns of one thread: 4 for 1000 products, 0.3 for an element of a that is widened, 0.1 for one that is read */
    const double columns = (double)slots / (double)agk_mm_least(slots, experts);
    const double row_ns = (double)k * (columns * 0.004 * 2.0 + (p.read_a != NULL ? 0.3 : 0.1)) + 10.0;
    const double all_ns = row_ns * (double)m * (double)agk_mm_least(slots, experts);
    const double rows = 10000.0 / row_ns;
    const int64_t wanted = rows < (double)m ? ((int64_t)rows + TILE_ROWS) / TILE_ROWS * TILE_ROWS : m;
    p.rows_per_item = agk_mm_least(wanted, m);
    p.items_per_expert = agk_mm_ceil_div(m, p.rows_per_item);
    const int64_t items = p.items_per_expert * experts;
    p.per_chunk = all_ns < 15000.0 ? items : agk_mm_ceil_div(items, 500000);
    const int64_t pack_chunk = agk_units_per_chunk(slots, 0.4 * (double)k + 20.0);
    p.pack_chunk = (int32_t)(agk_mm_ceil_div(pack_chunk, AGK_MM_UNIT) * AGK_MM_UNIT);
    lowering->scratch_size = scratch_bytes(&p, k);
    lowering->work_size += (size_t)(2 * slots) * agk_mm_col_bytes(AGK_MM_FLOATS, k);
    agk_add_step(lowering, pack, agk_mm_ceil_div(slots, p.pack_chunk));
    agk_add_step(lowering, multiply, agk_mm_ceil_div(items, p.per_chunk));
    memcpy(&node->aux, &p, sizeof p);
    return AGK_OK;
}
