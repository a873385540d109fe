/* Blocks: products of any number of columns. Columns of b are packed, 16 to a unit, and each column becomes a lane.
 * Rows of a are read as they lie, one element (or 4 bytes of k) at a time, and broadcast. A kernel keeps a block of 8
 * rows x 48 columns in registers.
 *
 * Three schemes differ in what they multiply:
 * - blocks_bf16: pairs of bf16, by vdpbf16ps or on matrix tiles;
 * - blocks_q8: q8_0 and q4_0 rows times columns, as bytes;
 * - blocks_f32: floats; rows that are not f32 are widened, 32 at a time.
 *
 * Not here: the kernels (mul_mat_blocks*.c). */
#include "blocks.h"

#include "plain.h"

enum {
    K_BLOCK = 512, /* packed, 48 columns of it are 96 KB, a tenth of L2; a multiple of 64 */
    MIN_ROWS = 96, /* with fewer rows per item, packing b would cost more than 7 % */
    MAX_ROWS = 768,
    ITEMS = 16,            /* as many as are wanted, unless an item would be smaller than a slice */
    TILES_K_BLOCK = 2048,  /* for matrix tiles; packed, 48 columns of it are 192 KB of L2 */
    TILES_PANEL = 1 << 20, /* bytes of a that stay in L2 while all columns are multiplied */
    TILES_ROW_BLOCKS = 8,  /* as many as are wanted */
    /* the least number of groups of 48 columns for which rows are converted once: 3 to 8 % against 2 */
    WIDE_GROUPS = 11,
    /* bytes from which a matrix counts as too large for L2, or the whole result as too large for L3 */
    FAR_A = 1 << 20,
    FAR_C = 8 << 20,
};

static const double tiles_slice_flops = 1e7; /* the work of one thread on matrix tiles in some 10 us */

/* If a is multiplied as it lies (f32, bf16), each item packs its 48 columns of b itself: packing costs 6 / rows of
 * the product, and no data crosses between threads. If rows of a must be converted first, a step of its own packs b,
 * and each item converts 32 rows for some 100 columns. */
typedef struct plan {
    agk_mm_block_fn *product;
    agk_mm_pack_fn *pack;
    agk_mm_conversion rows, columns;
    int64_t per_chunk;       /* items in a chunk; an item is a block of rows times some groups of columns */
    int64_t units_per_chunk; /* units in a chunk of the step that packs */
    int32_t row_blocks;      /* in each batch */
    int32_t groups;          /* of up to 48 columns */
    int32_t groups_per_item, k_block;
    int32_t together; /* rows that are widened at a time */
    agk_mm_unit_form unit;
    bool packs_first; /* a step of its own packs b */
    bool on_tiles;    /* matrix tiles do the multiplication */
    bool a_far, c_far;
} plan;

AGK_PLAN_IN_AUX(plan, plan_of)

/* -- steps ---------------------------------------------------------------------------------------------------- */

/* Columns 16 unit .. 16 unit + 15 of one matrix, elements k0 .. k0 + k - 1. */
static void pack_unit(const agk_task *task, const agk_node *node, const plan *p, const char *b, int64_t unit,
                      int64_t k0, int64_t k, void *out)
{
    const agk_view *view = &node->src[1];
    const int64_t cols = agk_mm_least(AGK_MM_UNIT, view->ne[1] - unit * AGK_MM_UNIT);
    const size_t stride = (size_t)view->nb[1];
    b += (size_t)(unit * AGK_MM_UNIT) * stride + agk_row_size(view->type, k0);
    if (p->columns.form == AGK_MM_AS_IT_IS) {
        p->pack(k, cols, b, stride, out);
        return;
    }
    const size_t bytes = agk_mm_col_bytes(p->columns.form, k);
    for (int64_t j = 0; j < cols; ++j) {
        agk_mm_convert(&p->columns, b + (size_t)j * stride, (char *)task->scratch + (size_t)j * bytes, k);
    }
    p->pack(k, cols, task->scratch, bytes, out);
}

static agk_status pack_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t units = agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT), all = units * b->ne[2] * b->ne[3], k = b->ne[0];
    const size_t bytes = agk_mm_unit_bytes(p.unit, k);
    for (int64_t i = chunk * p.units_per_chunk; i < agk_mm_least(all, (chunk + 1) * p.units_per_chunk); ++i) {
        const agk_mm_matrices m = agk_mm_matrices_of(task, node, i / units);
        char *out = (char *)agk_work(task, node) + (size_t)i * bytes;
        for (int64_t k0 = 0; k0 < k; k0 += p.k_block) {
            pack_unit(task, node, &p, m.b, i % units, k0, agk_mm_least(p.k_block, k - k0),
                      out + agk_mm_unit_bytes(p.unit, k0));
        }
    }
    return AGK_OK;
}

/* A part of the result: rows first .. last - 1 of one matrix, groups of columns from .. to - 1. */
typedef struct item {
    int64_t batch, first, last, from, to;
} item;

static int64_t first_unit(const agk_node *node, const plan *p, int64_t group)
{
    return agk_mm_ceil_div(node->src[1].ne[1], AGK_MM_UNIT) * group / p->groups;
}

/* Multiplies the rows from `row` on, at most as many as are converted together, by all groups of an item: k elements
 * from k0 on. The columns are at `packed`, which begins with group x->from. */
static void multiply_rows(const agk_task *task, const agk_node *node, const plan *p, const item *x, int64_t row,
                          int64_t k0, int64_t k, const char *packed, size_t unit_bytes)
{
    const agk_view *a = &node->src[0], *c = &node->dst;
    const agk_mm_matrices m = agk_mm_matrices_of(task, node, x->batch);
    const int64_t together = p->rows.form == AGK_MM_AS_IT_IS ? x->last - x->first : p->together;
    agk_mm_block block = {.k = k,
                          .rows = agk_mm_least(together, x->last - row),
                          .a = m.a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0),
                          .lda = (size_t)a->nb[1],
                          .ldb = unit_bytes,
                          .ldc = (size_t)c->nb[1],
                          .add = k0 > 0,
                          .a_far = p->a_far,
                          .c_far = p->c_far};
    if (p->rows.form != AGK_MM_AS_IT_IS) {
        if (p->together == 8 && row + 16 <= a->ne[1]) { /* the kernel prefetches the rows that are widened next */
            block.next = (const char *)block.a + 8 * a->nb[1];
            block.next_lda = (size_t)a->nb[1];
            block.next_width = (int64_t)agk_traits(a->type)->type_size;
        }
        agk_mm_widen_rows(node, &p->rows, block.a, block.rows, k, task->scratch);
        block.a = task->scratch;
        block.lda = agk_mm_row_bytes(p->rows.form, k);
    }
    const int64_t begin = first_unit(node, p, x->from);
    for (int64_t group = x->from; group < x->to; ++group) {
        const int64_t unit = first_unit(node, p, group), end = first_unit(node, p, group + 1);
        block.b = packed + (size_t)(unit - begin) * unit_bytes;
        block.cols = agk_mm_least(end * AGK_MM_UNIT, node->src[1].ne[1]) - unit * AGK_MM_UNIT;
        block.c = (float *)(void *)(m.c + unit * AGK_MM_UNIT * c->nb[1]) + row;
        p->product(&block);
        if (k0 + k >= a->ne[0]) {
            agk_mm_stages(task, node, x->batch, row, block.rows, unit * AGK_MM_UNIT, block.cols);
        }
    }
}

/* Goes block of k by block of k, so that packed columns stay in L2 and converted rows in L1. */
static void multiply(const agk_task *task, const agk_node *node, const plan *p, const item *x)
{
    const agk_view *b = &node->src[1];
    const int64_t k = node->src[0].ne[0], units = agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT);
    const int64_t begin = first_unit(node, p, x->from), end = first_unit(node, p, x->to);
    const int64_t together = p->rows.form == AGK_MM_AS_IT_IS ? x->last - x->first : p->together;
    /* packed columns, if the item packs them itself; they follow the columns that are being converted */
    char *own = task->scratch;
    if (p->columns.form != AGK_MM_AS_IT_IS) {
        own += AGK_MM_UNIT * agk_mm_col_bytes(p->columns.form, agk_mm_least(k, p->k_block));
    }
    int64_t k0 = 0;
    do { /* one pass even if k is 0: the result is zeros */
        const int64_t kn = agk_mm_least(p->k_block, k - k0);
        const size_t unit_bytes = agk_mm_unit_bytes(p->unit, p->packs_first ? k : kn);
        const char *packed = own;
        if (p->packs_first) {
            packed = (char *)agk_work(task, node) + (size_t)(x->batch * units + begin) * unit_bytes +
                     agk_mm_unit_bytes(p->unit, k0);
        } else {
            const agk_mm_matrices m = agk_mm_matrices_of(task, node, x->batch);
            for (int64_t u = begin; u < end; ++u) {
                pack_unit(task, node, p, m.b, u, k0, kn, own + (size_t)(u - begin) * unit_bytes);
            }
        }
        for (int64_t row = x->first; row < x->last; row += together) {
            agk_breathe(task);
            multiply_rows(task, node, p, x, row, k0, kn, packed, unit_bytes);
        }
        k0 += kn;
    } while (k0 < k);
}

static agk_status product_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *dst = &node->dst;
    const int64_t across = agk_mm_ceil_div(p.groups, p.groups_per_item), per_batch = across * p.row_blocks;
    const int64_t all = per_batch * dst->ne[2] * dst->ne[3], eights = agk_mm_ceil_div(dst->ne[0], 8);
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * p.per_chunk); ++i) {
        /* groups vary fastest, so a stays in L2 */
        const int64_t group = i % across, block = i / across % p.row_blocks;
        const item x = {.batch = i / per_batch,
                        .first = eights * block / p.row_blocks * 8,
                        .last = agk_mm_least(eights * (block + 1) / p.row_blocks * 8, dst->ne[0]),
                        .from = group * p.groups_per_item,
                        .to = agk_mm_least((group + 1) * p.groups_per_item, p.groups)};
        multiply(task, node, &p, &x);
    }
    return AGK_OK;
}

/* -- how a node is cut ---------------------------------------------------------------------------------------- */

/* The number of row blocks, chosen so that rows of a stay in L2 while all columns are multiplied. */
static int64_t row_blocks_on_tiles(const plan *p, int64_t m, int64_t batches, double slices)
{
    const int64_t in_l2 = TILES_PANEL / (2 * p->k_block) / 32 * 32, rows = agk_mm_least(in_l2, MAX_ROWS);
    const int64_t by_work = (int64_t)(slices / (double)(p->groups * batches)) + 1; /* no smaller than a slice */
    const int64_t wanted = agk_mm_least(TILES_ROW_BLOCKS, by_work), fewest = agk_mm_ceil_div(m, rows);
    return agk_mm_least(fewest > wanted ? fewest : wanted, agk_mm_ceil_div(m, 32));
}

static int64_t row_blocks_packing(const plan *p, int64_t m, int64_t batches, double slices)
{
    const int64_t items = p->groups * batches;
    int64_t blocks = agk_mm_least(agk_mm_ceil_div(ITEMS, items), (int64_t)(slices / (double)items));
    blocks = agk_mm_least(blocks, m / MIN_ROWS);
    const int64_t fewest = agk_mm_ceil_div(m, MAX_ROWS);
    return blocks > fewest ? blocks : fewest;
}

/* How many groups are multiplied by rows that were converted once for all of them: some 10 us of work. */
static int32_t groups_per_item(const plan *p, int64_t row_blocks, double group_slices)
{
    const double wanted = (double)row_blocks / (group_slices + 1e-9);
    int64_t n = wanted < 2.0 ? 2 : wanted < (double)p->groups ? (int64_t)wanted : p->groups;
    if (n < WIDE_GROUPS) n = WIDE_GROUPS;
    return (int32_t)agk_mm_least(n, p->groups);
}

/* A Zen 4 multiplies rows of f32 by all of k at a time if the columns of a group stay in L2: rows are then
 * read as one stream, and sums are stored once. 4096 x 4096 times 16 columns, two threads: blocks of 512 k 94 G
 * operations a second, of 2048 162, of 4096 159; times 48 columns 159, 176, 183. */
static int32_t k_in_l2(int64_t units, int64_t k)
{
    enum { ROOM = 768 << 10, LINE = AGK_MM_UNIT * sizeof(float) };
    const int64_t most = ROOM / LINE / agk_mm_least(units, AGK_MM_MAX_UNITS) / 64 * 64;
    return (int32_t)agk_mm_least(k > 0 ? k : 1, most);
}

static int32_t k_of_block(const plan *p, int type, int64_t k, int64_t units, uint32_t cpu)
{
    if (agk_pick_vector("mm_blocks_f32", cpu) == NULL && k > 0 && k < 1 << 30) return (int32_t)k; /* exact sums */
    if (agk_mm_fast_blocks(type, cpu)) return k_in_l2(units, k);
    if (!p->on_tiles) return K_BLOCK;
    return k > TILES_K_BLOCK ? TILES_K_BLOCK : (int32_t)(k > 0 ? k : 1);
}

static bool lower(agk_lowering *lowering, plan p)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    const int64_t k = a->ne[0], m = a->ne[1], units = agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT);
    const int64_t batches = b->ne[2] * b->ne[3];
    p.k_block = k_of_block(&p, a->type, k, units, lowering->cpu);
    p.groups = (int32_t)agk_mm_ceil_div(units, AGK_MM_MAX_UNITS);
    p.groups_per_item = 1;
    p.together = agk_mm_fast_blocks(a->type, lowering->cpu) ? 8 : AGK_MM_WIDENED_ROWS;
    p.packs_first = p.rows.form != AGK_MM_AS_IT_IS || p.on_tiles;
    p.a_far = !p.packs_first && (int64_t)agk_row_size(a->type, k) * m > FAR_A;
    p.c_far = m * b->ne[1] * batches * 4 > FAR_C;
    const double per_slice = p.on_tiles ? tiles_slice_flops : agk_mm_slice_flops;
    const double group_slices = 2.0 * (double)k * (double)m * AGK_MM_MAX_UNITS * AGK_MM_UNIT / per_slice;
    const double slices = group_slices * (double)p.groups * (double)batches;
    int64_t row_blocks;
    if (p.on_tiles) {
        row_blocks = row_blocks_on_tiles(&p, m, batches, slices);
    } else if (p.packs_first) {
        row_blocks = agk_mm_ceil_div(m, AGK_MM_WIDENED_ROWS);
        p.groups_per_item = groups_per_item(&p, row_blocks, group_slices);
    } else {
        row_blocks = row_blocks_packing(&p, m, batches, slices);
    }
    p.row_blocks = (int32_t)row_blocks;
    const int64_t items = agk_mm_ceil_div(p.groups, p.groups_per_item) * row_blocks * batches;
    const double per_chunk = (double)items / (slices + 1e-9);
    p.per_chunk = per_chunk < 1.0 ? 1 : (int64_t)(per_chunk < (double)items ? per_chunk : (double)items);
    if (slices <= 1.5) p.per_chunk = items;

    const int64_t k_most = agk_mm_least(k, p.k_block);
    const bool converts = p.columns.form != AGK_MM_AS_IT_IS, widens = p.rows.form != AGK_MM_AS_IT_IS;
    const size_t columns = converts ? AGK_MM_UNIT * agk_mm_col_bytes(p.columns.form, k_most) : 0;
    if (p.packs_first) {
        const size_t rows = widens ? (size_t)p.together * agk_mm_row_bytes(p.rows.form, k_most) : 0;
        lowering->scratch_size = rows > columns ? rows : columns;
        lowering->work_size = (size_t)(units * batches) * agk_mm_unit_bytes(p.unit, k);
        const int64_t unit_source = 1 + AGK_MM_UNIT * (int64_t)agk_row_size(b->type, k);
        p.units_per_chunk = slices <= 1.5 ? units * batches : 1 + AGK_MM_SLICE_BYTES / unit_source;
        agk_add_step(lowering, pack_step, agk_mm_ceil_div(units * batches, p.units_per_chunk));
    } else {
        lowering->scratch_size = columns + AGK_MM_MAX_UNITS * agk_mm_unit_bytes(p.unit, k_most);
    }
    agk_add_step(lowering, product_step, agk_mm_ceil_div(items, p.per_chunk));
    memcpy(&lowering->node->aux, &p, sizeof p);
    return true;
}

/* -- the three schemes ---------------------------------------------------------------------------------------- */

static bool serves_bf16(const agk_mm_problem *p)
{
    return p->a == AGK_BF16 && agk_pick_vector("mm_blocks_bf16", p->cpu) != NULL;
}

static bool serves_q8(const agk_mm_problem *p)
{
    return agk_traits(p->a)->blck_size > 1 && agk_mm_kernel_of_type("mm_blocks_rows_", p->a, p->cpu) != NULL;
}

static bool serves_f32(const agk_mm_problem *p)
{
    (void)p; /* serves every product that mul_mat accepts */
    return true;
}

static bool lower_bf16(agk_lowering *lowering)
{
    const uint32_t cpu = lowering->cpu;
    return lower(lowering, (plan){.product = AGK_PICK(mm_blocks_bf16, cpu),
                                  .pack = AGK_PICK(mm_blocks_pack_bf16, cpu),
                                  .columns = agk_mm_to_floats(lowering->node->src[1].type, cpu),
                                  .unit = AGK_MM_UNIT_PAIRS,
                                  .on_tiles = agk_pick_vector("mm_tiles_product", cpu) != NULL});
}

static bool lower_q8(agk_lowering *lowering)
{
    const uint32_t cpu = lowering->cpu;
    agk_any_fn *rows = agk_mm_kernel_of_type("mm_blocks_rows_", lowering->node->src[0].type, cpu);
    return lower(lowering, (plan){.product = AGK_PICK(mm_blocks_q8, cpu),
                                  .pack = AGK_PICK(mm_blocks_pack_q8, cpu),
                                  .rows = {AGK_MM_Q8_ROWS, rows},
                                  .columns = agk_mm_to_q8(lowering->node->src[1].type, cpu),
                                  .unit = AGK_MM_UNIT_Q8});
}

static bool lower_f32(agk_lowering *lowering)
{
    const uint32_t cpu = lowering->cpu;
    return lower(lowering, (plan){.product = AGK_PICK(mm_blocks_f32, cpu),
                                  .pack = AGK_PICK(mm_blocks_pack_f32, cpu),
                                  .rows = agk_mm_to_floats(lowering->node->src[0].type, cpu),
                                  .columns = agk_mm_to_floats(lowering->node->src[1].type, cpu),
                                  .unit = AGK_MM_UNIT_FLOATS});
}

const agk_mm_scheme agk_mm_blocks_bf16 = {"blocks_bf16", serves_bf16, lower_bf16, false};
const agk_mm_scheme agk_mm_blocks_q8 = {"blocks_q8", serves_q8, lower_q8, false};
const agk_mm_scheme agk_mm_blocks_f32 = {"blocks_f32", serves_f32, lower_f32, true};
