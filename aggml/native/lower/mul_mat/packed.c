/* packed_lanes, packed_tiles and packed_pairs: products of packed weights with few columns (kernels/mul_mat_packed.h).
 * A first step quantizes the columns and lays them side by side. Then groups of 16 rows are multiplied; the thread that
 * comes to a group first packs it. Several products with the same columns lay them out once. Pairs (weights of bf16)
 * take columns rounded to bf16 where the processor multiplies bf16, floats as they lie elsewhere.
 *
 * Weights from memory and several columns gain most: on a Sapphire Rapids one column reads 91 to 97 instead of 65 to
 * 75 % of the bandwidth, and eight columns have 2 to 3 times the products a second. Not here: when a group is packed
 * (packing.h), the choice (choice.c). */
#include "lower/chain.h"
#include "lower/strided.h"

#include "convert.h"
#include "packing.h"

enum {
    K_MOST = 2048,        /* k of the columns in a chunk; a multiple of 64 */
    TWO_GROUPS_FROM = 16, /* fewer groups are cut finer, so that both threads get some */
    /* of tiles: four groups before the next claim instead of two save 4 % of a step; 16 threads still get some each */
    FOUR_GROUPS_FROM = 64,
};

/* The work of one thread in some 5 us. The chunk is that small so that two threads finish at about the same time. */
static const double slice_flops = 1.5e6, slice_read = 1e5;

typedef struct plan {
    agk_mm_block_fn *product;
    agk_mm_conversion columns; /* the conversion to agk_mm_col_q8 */
    /* quantizes columns and lays them out for tiles in one pass; NULL: not possible for these columns */
    agk_mm_packed_columns_fn *lay;
    const agk_packed_layout *layout;
    agk_packed *packed;
    int64_t groups_per_chunk;
    int32_t tiles;   /* tiles of columns */
    int32_t k_chunk; /* k of a chunk of them, a multiple of 64 */
    bool on_tiles;
    bool pairs; /* the weights are bf16 */
} plan;

AGK_PLAN_IN_AUX(plan, plan_of)

static int64_t tile_start(const agk_node *node, const plan *p, int64_t tile)
{
    return node->src[1].ne[1] * tile / p->tiles;
}

/* The number of columns, rounded up to whole tiles. */
static int64_t width(int64_t n)
{
    return n <= AGK_PACKED_MOST / 2 ? AGK_PACKED_MOST / 2 : AGK_PACKED_MOST;
}

/* Where the columns of the tile that starts at column `first` begin. */
static char *columns_of(const agk_task *task, const agk_node *node, const plan *p, int64_t tile, int64_t first)
{
    const int64_t k = node->src[0].ne[0];
    if (p->pairs) return (char *)agk_work(task, node) + (size_t)first * agk_mm_col_bytes(AGK_MM_BF16, k);
    const size_t before = p->on_tiles ? (size_t)tile * agk_packed_tiles_bytes(p->layout, AGK_PACKED_MOST, k)
                                      : agk_packed_columns_bytes(first, k);
    return (char *)agk_work(task, node) + before;
}

/* Converts columns to bf16, each by itself. */
static agk_status pairs_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], k0 = chunk * p.k_chunk, kn = agk_mm_least(p.k_chunk, k - k0);
    const char *from = (const char *)agk_data(task, b) + (size_t)k0 * sizeof(float);
    for (int64_t j = 0; j < b->ne[1]; ++j) {
        char *out = columns_of(task, node, &p, 0, j) + (size_t)k0 * sizeof(uint16_t);
        agk_mm_convert(&p.columns, from + j * b->nb[1], out, kn);
    }
    return AGK_OK;
}

static agk_status columns_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], k0 = chunk * p.k_chunk, kn = agk_mm_least(p.k_chunk, k - k0);
    const size_t bytes = agk_mm_col_bytes(AGK_MM_Q8, kn);
    for (int64_t tile = 0; tile < p.tiles; ++tile) {
        const int64_t first = tile_start(node, &p, tile), n = tile_start(node, &p, tile + 1) - first;
        const char *columns = (const char *)agk_data(task, b) + first * b->nb[1] + agk_row_size(b->type, k0);
        char *out = columns_of(task, node, &p, tile, first);
        if (p.lay != NULL) {
            p.lay(p.layout, n, width(n), kn, columns, (size_t)b->nb[1],
                  out + agk_packed_tiles_bytes(p.layout, width(n), k0));
            continue;
        }
        for (int64_t j = 0; j < n; ++j) {
            agk_mm_convert(&p.columns, columns + j * b->nb[1], (char *)task->scratch + (size_t)j * bytes, kn);
        }
        if (p.on_tiles) {
            out += agk_packed_tiles_bytes(p.layout, width(n), k0);
            agk_packed_tiles(p.layout, n, width(n), kn, task->scratch, bytes, out);
        } else {
            out += agk_packed_columns_bytes(n, k0);
            agk_packed_columns(p.layout, n, n, kn, task->scratch, bytes, out);
        }
    }
    return AGK_OK;
}

static agk_status product_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *c = &node->dst;
    const int64_t k = node->src[0].ne[0], m = c->ne[0];
    const int64_t first = chunk * p.groups_per_chunk, row = first * AGK_PACKED_ROWS;
    const int64_t rows = agk_mm_least(p.groups_per_chunk * AGK_PACKED_ROWS, m - row);
    const char *packed = NULL;
    for (int64_t i = agk_mm_ceil_div(rows, AGK_PACKED_ROWS) - 1; i >= 0; --i)
        packed = agk_packed_ready(p.packed, first + i);
    const agk_view *b = &node->src[1];
    for (int64_t tile = 0; tile < p.tiles; ++tile) {
        const int64_t from = tile_start(node, &p, tile);
        agk_mm_block block = {.k = k,
                              .rows = rows,
                              .cols = tile_start(node, &p, tile + 1) - from,
                              .a = packed,
                              .lda = agk_packed_group_bytes(p.layout, k),
                              .b = columns_of(task, node, &p, tile, from),
                              .c = (float *)(void *)((char *)agk_data(task, c) + from * c->nb[1]) + row,
                              .ldc = (size_t)c->nb[1]};
        if (p.pairs) block.ldb = agk_mm_col_bytes(AGK_MM_BF16, k);
        if (p.pairs && p.columns.form == AGK_MM_AS_IT_IS) { /* no step has converted them */
            block.b = (char *)agk_data(task, b) + from * b->nb[1];
            block.ldb = (size_t)b->nb[1];
        }
        p.product(&block);
        agk_breathe(task);
    }
    if (node->n_stages > 0) {
        agk_chain_run(task, node, &(agk_chain_block){.i0 = row, .n = rows, .rows = c->ne[1]}, false);
    }
    return AGK_OK;
}

/* Whether an earlier product of packed weights has the same columns, as for queries, keys and values. */
static bool same_columns(const plan *p, const agk_node *node, const agk_node *earlier)
{
    if (earlier->op != node->op) return false;
    const plan q = plan_of(earlier);
    const agk_view *x = &node->src[1], *y = &earlier->src[1];
    return p->on_tiles == q.on_tiles && p->pairs == q.pairs && p->layout->sums == q.layout->sums &&
           p->layout->offset == q.layout->offset && x->addr == y->addr && x->arena_mask == y->arena_mask &&
           x->type == y->type && memcmp(x->ne, y->ne, sizeof x->ne) == 0 && memcmp(x->nb, y->nb, sizeof x->nb) == 0;
}

/* How many k of the columns one thread lays out in a chunk. That is some 2 us of work at 0.2 to 0.4 ns an element,
 * or at 1 ns where it takes two passes; the number of such chunks is even, for two threads. */
static int32_t k_of_chunk(int64_t k, int64_t n, bool one_pass)
{
    const int64_t elements = one_pass ? 6144 : 2 * K_MOST;
    int64_t chunks = agk_mm_ceil_div(k * n, elements);
    if (one_pass && chunks > 1) chunks += chunks % 2;
    const int64_t least = agk_mm_ceil_div(agk_mm_ceil_div(k, chunks), 64) * 64;
    return (int32_t)agk_mm_least(K_MOST, least);
}

static agk_any_fn *product_of(const agk_mm_problem *p, bool tiles)
{
    return agk_mm_kernel_of_type(tiles ? "mm_packed_tiles_" : "mm_packed_", p->a, p->cpu);
}

static bool serve(const agk_mm_problem *p, bool tiles)
{
    return p->weights && p->batches == 1 && p->k > 0 && p->m >= AGK_PACKED_ROWS &&
           (p->b == AGK_F32 || p->b == AGK_Q8_0) && product_of(p, tiles) != NULL;
}

static bool tiles_serve(const agk_mm_problem *p)
{
    return serve(p, true);
}

static bool lanes_serve(const agk_mm_problem *p)
{
    return serve(p, false);
}

/* Whether weights of bf16 are multiplied by columns of f32: not where vectors of 512 bits multiply rows as they lie. */
static bool pairs_of_floats(uint32_t cpu)
{
    return agk_pick_vector("mm_packed_pairs", cpu) == NULL && (cpu & AGK_AVX512) == 0 &&
           agk_pick_vector("mm_packed_floats", cpu) != NULL;
}

/* All variants except plain C. k is that of the packed rows, which are padded to a multiple of 32. */
static bool pairs_serve(const agk_mm_problem *p)
{
    return p->weights && p->batches == 1 && p->k > 0 && p->k % AGK_MM_BLOCK == 0 && p->m >= AGK_PACKED_ROWS &&
           p->a == AGK_BF16 && p->b == AGK_F32 &&
           (agk_pick_vector("mm_packed_pairs", p->cpu) != NULL || pairs_of_floats(p->cpu));
}

/* Groups of a chunk: some 5 us of work. They are multiplied two at a time, on tiles four at a time. */
static int64_t groups_of_chunk(const plan *p, int64_t groups, int64_t k, int64_t n)
{
    const double group = (double)agk_packed_group_bytes(p->layout, k);
    const double slices = group / slice_read + 2.0 * AGK_PACKED_ROWS * (double)(k * n) / slice_flops;
    int64_t chunk = slices * (double)groups <= 3.0 ? groups : slices >= 1.0 ? 1 : (int64_t)(1.0 / slices);
    if (groups >= TWO_GROUPS_FROM) chunk = (chunk + 1) / 2 * 2;
    if (p->on_tiles && groups >= FOUR_GROUPS_FROM) chunk = (chunk + 3) / 4 * 4;
    return chunk;
}

static bool lower(agk_lowering *lowering, bool tiles)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const agk_mm_problem problem = agk_mm_problem_of(lowering);
    const int64_t k = problem.k, n = problem.n, groups = agk_mm_ceil_div(problem.m, AGK_PACKED_ROWS);
    plan p = {.product = (agk_mm_block_fn *)product_of(&problem, tiles),
              .layout = agk_packed_layout_of(a->type),
              .on_tiles = tiles};
    if ((p.packed = agk_packed_keep(lowering)) == NULL) return false;
    p.columns = agk_mm_to_q8(b->type, lowering->cpu);
    if (tiles && b->type == AGK_F32) p.lay = AGK_PICK(mm_packed_columns, lowering->cpu);
    p.tiles = (int32_t)agk_mm_ceil_div(n, tiles ? AGK_PACKED_MOST : AGK_PACKED_COLUMNS);
    p.groups_per_chunk = groups_of_chunk(&p, groups, k, n);
    p.k_chunk = k_of_chunk(k, n, p.lay != NULL);
    lowering->scratch_size = AGK_PACKED_MOST * agk_mm_col_bytes(AGK_MM_Q8, agk_mm_least(k, p.k_chunk));
    lowering->work_size =
        tiles ? (size_t)p.tiles * agk_packed_tiles_bytes(p.layout, AGK_PACKED_MOST, k) : agk_packed_columns_bytes(n, k);
    lowering->lays_columns = true;
    if (lowering->columns == NULL || !same_columns(&p, node, lowering->columns)) {
        agk_add_step(lowering, columns_step, agk_mm_ceil_div(k, p.k_chunk));
    }
    agk_add_step(lowering, product_step, agk_mm_ceil_div(groups, p.groups_per_chunk));
    lowering->weights_at = p.packed->data;
    lowering->chunk_bytes = (size_t)p.groups_per_chunk * agk_packed_group_bytes(p.layout, k);
    memcpy(&node->aux, &p, sizeof p);
    return true;
}

static bool tiles_lower(agk_lowering *lowering)
{
    return lower(lowering, true);
}

static bool lanes_lower(agk_lowering *lowering)
{
    return lower(lowering, false);
}

static bool pairs_lower(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_mm_problem problem = agk_mm_problem_of(lowering);
    const int64_t k = problem.k, n = problem.n, groups = agk_mm_ceil_div(problem.m, AGK_PACKED_ROWS);
    const bool floats = pairs_of_floats(lowering->cpu);
    plan p = {.product = floats ? AGK_PICK(mm_packed_floats, lowering->cpu) : AGK_PICK(mm_packed_pairs, lowering->cpu),
              .layout = agk_packed_layout_of(AGK_BF16),
              .pairs = true};
    if (!floats) p.columns = (agk_mm_conversion){AGK_MM_BF16, (agk_any_fn *)AGK_PICK(f32_to_bf16, lowering->cpu)};
    if ((p.packed = agk_packed_keep(lowering)) == NULL) return false;
    p.tiles = (int32_t)agk_mm_ceil_div(n, AGK_PACKED_COLUMNS);
    p.groups_per_chunk = groups_of_chunk(&p, groups, k, n);
    if (!floats) {
        p.k_chunk = k_of_chunk(k, n, true);
        lowering->work_size = (size_t)n * agk_mm_col_bytes(AGK_MM_BF16, k);
        lowering->lays_columns = true;
        if (lowering->columns == NULL || !same_columns(&p, node, lowering->columns)) {
            agk_add_step(lowering, pairs_step, agk_mm_ceil_div(k, p.k_chunk));
        }
    }
    agk_add_step(lowering, product_step, agk_mm_ceil_div(groups, p.groups_per_chunk));
    lowering->weights_at = p.packed->data;
    lowering->chunk_bytes = (size_t)p.groups_per_chunk * agk_packed_group_bytes(p.layout, k);
    memcpy(&node->aux, &p, sizeof p);
    return true;
}

const agk_mm_scheme agk_mm_packed_pairs = {"packed_pairs", pairs_serve, pairs_lower, false};
const agk_mm_scheme agk_mm_packed_tiles = {"packed_tiles", tiles_serve, tiles_lower, false};
const agk_mm_scheme agk_mm_packed_lanes = {"packed_lanes", lanes_serve, lanes_lower, false};
