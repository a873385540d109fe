/* Products by panels and units: how a node is cut, the step that packs columns, and the second step in lanes.
 *
 * An item is a block of rows times up to 512 columns. It goes block of k by block of k: 32 rows at a time are packed
 * to a panel, which is then multiplied by all columns. So what is packed stays in L2 for all rows of the item, and
 * the sums stay with the thread. Not here: what units and panels hold (tiles.c, bytes.c, shorts.c, pairs.c,
 * floats.c), the second step on matrix tiles (tiles_items.c), the kernels. */
#include "panels.h"

#include "ends.h"
#include "lower/chain.h"

enum {
    ITEMS = 16,           /* as many as are wanted, as far as min_rows allows */
    UNIT_BYTES = 1 << 17, /* bytes of b that one chunk packs */
};

/* -- quantized rows as codes ---------------------------------------------------------------------------------- */

bool agk_mm_panels_serve_codes(const agk_mm_problem *p, const char *product)
{
    const agk_code_traits codes = agk_code_traits_of(p->a);
    return agk_mm_panels_serve(p) && codes.served && (p->b == AGK_F32 || (p->b == AGK_Q8_0 && !codes.wide)) &&
           agk_pick_vector(product, p->cpu) != NULL;
}

static bool code_columns(const agk_mm_panels_plan *p, int64_t k, int64_t n, const void *b, size_t stride, char *unit)
{
    agk_mm_bytes_columns_fn *pack = (agk_mm_bytes_columns_fn *)p->kernels[AGK_CODES_COLUMNS];
    pack(p->codes.halves, p->codes.wide, k, n, b, stride, unit);
    return true;
}

static bool code_rows(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                      char *panel, float *room)
{
    (void)room;
    const size_t bytes = agk_mm_panels_panel(p, k), row = bytes / AGK_PANEL_ROWS;
    agk_mm_bytes_rows_fn *unpack = (agk_mm_bytes_rows_fn *)p->kernels[AGK_CODES_ROWS];
    if (n < AGK_PANEL_ROWS) memset(panel, 0, bytes);
    for (int64_t i = 0; i < n; ++i, from += a->nb[1]) {
        agk_mm_panels_fetch(a, from, n - i, k);
        unpack(a->type, p->fours == 0, from, panel + (size_t)i * row, k);
    }
    return true;
}

const agk_mm_panels agk_mm_panels_of_codes = {code_columns, code_rows, .slice_flops = 7e6, .min_rows = 64,
                                              .max_rows = 128};

/* -- the first step: columns are packed, for all rows --------------------------------------------------------- */

/* Whether numbers that are too small to be split are negligible beside the larger ones. This holds if, in each of n
 * columns of k floats, the largest is finite and at least 2^-100, so that 2^-126 more or less is 2^-26 of it; or if
 * all are zero. Behind a gelu, values below 2^-110 occur in every other unit. */
static bool too_small_to_count(int64_t k, int64_t n, const char *b, int64_t ldb)
{
    enum { LANES = 16 };
    for (int64_t j = 0; j < n; ++j, b += ldb) {
        uint32_t most[LANES] = {0}, largest = 0;
        for (int64_t i = 0; i < k; i += LANES) {
            uint32_t bits[LANES] = {0};
            memcpy(bits, b + 4 * i, (size_t)agk_mm_least(LANES, k - i) * 4);
            for (int l = 0; l < LANES; ++l) {
                const uint32_t magnitude = bits[l] & 0x7fffffffu;
                most[l] = (int32_t)magnitude > (int32_t)most[l] ? magnitude : most[l];
            }
        }
        for (int l = 0; l < LANES; ++l) largest = most[l] > largest ? most[l] : largest;
        if (largest >= 0x7f800000u || (largest > 0 && largest < (127u - 100u) << 23)) return false;
    }
    return true;
}

/* Packs elements k0 .. k0 + k - 1 of n columns, which begin at `from`, to a unit. */
static bool pack_unit(const agk_task *task, const agk_mm_panels_plan *p, const agk_view *b, const char *from, int64_t n,
                      int64_t k0, int64_t k, char *unit)
{
    const char *x = from + (int64_t)agk_row_size(b->type, k0);
    size_t stride = (size_t)b->nb[1];
    if (p->columns.form != AGK_MM_AS_IT_IS) {
        const size_t bytes = agk_mm_col_bytes(p->columns.form, p->k_block);
        for (int64_t j = 0; j < n; ++j) {
            agk_mm_convert(&p->columns, x + (size_t)j * stride, (char *)task->scratch + (size_t)j * bytes, k);
        }
        x = task->scratch;
        stride = bytes;
    }
    return p->panels->columns(p, k, n, x, stride, unit);
}

static agk_status columns_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_panels_plan p = agk_mm_panels_plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], units = agk_mm_panels_units(b), all = units * b->ne[2] * b->ne[3];
    bool *could_split = agk_mm_panels_could_split(task, node, &p);
    for (int64_t i = chunk * p.units_per_chunk; i < agk_mm_least(all, (chunk + 1) * p.units_per_chunk); ++i) {
        const int64_t first = i % units * AGK_MM_UNIT, n = agk_mm_least(AGK_MM_UNIT, b->ne[1] - first);
        const char *from = agk_mm_matrix(task, b, i / units % b->ne[2], i / units / b->ne[2]) + first * b->nb[1];
        char *of_matrix = agk_mm_panels_columns(task, node, &p, i / units);
        bool fine = true;
        for (int64_t k0 = 0; k0 < k; k0 += p.k_block) {
            const int64_t kn = agk_mm_least(p.k_block, k - k0);
            char *unit = agk_mm_panels_block(&p, of_matrix, units, i % units, k0, kn);
            fine = pack_unit(task, &p, b, from, n, k0, kn, unit) && fine;
        }
        if (!fine && p.columns.form == AGK_MM_AS_IT_IS) fine = too_small_to_count(k, n, from, b->nb[1]);
        could_split[i] = fine;
    }
    return AGK_OK;
}

/* -- how a node is cut ---------------------------------------------------------------------------------------- */

/* The number of blocks of rows for each matrix and group of columns. `slices`: the whole product, in slices of some
 * 10 us. */
static int64_t row_blocks(const agk_mm_panels_plan *p, int64_t m, int64_t batches, double slices)
{
    int64_t blocks = agk_mm_ceil_div(ITEMS, p->groups * batches);
    blocks = agk_mm_least(blocks, agk_mm_ceil_div(m, p->panels->min_rows));
    blocks = agk_mm_least(blocks, 1 + (int64_t)(slices / (double)p->groups / (double)batches));
    /* a power of two divides evenly among most numbers of threads */
    while ((blocks & (blocks - 1)) != 0) blocks &= blocks - 1;
    const int64_t fewest = agk_mm_ceil_div(m, p->panels->max_rows);
    return agk_mm_least(blocks > fewest ? blocks : fewest, agk_mm_ceil_div(m, AGK_PANEL_ROWS));
}

/* Scratch: the sums of all panels of an item, one panel, and room for 16 rows of floats; or columns that are being
 * converted. */
static size_t scratch_bytes(const agk_mm_panels_plan *p, int64_t k)
{
    const size_t sums = (size_t)(p->panels->max_rows / AGK_PANEL_ROWS) * agk_mm_panels_sums(AGK_PANELS_ITEM_COLUMNS);
    const size_t room = p->panels->wants_room ? (size_t)(AGK_MM_UNIT * p->k_block) * sizeof(float) : 0;
    const size_t item = sums * sizeof(float) + agk_mm_panels_panel(p, p->k_block) + room;
    if (p->columns.form == AGK_MM_AS_IT_IS) return item;
    const size_t unit = AGK_MM_UNIT * agk_mm_col_bytes(p->columns.form, p->k_block), column = (size_t)k * sizeof(float);
    const size_t columns = unit > column ? unit : column;
    return columns > item ? columns : item;
}

void agk_mm_panels_lower(agk_lowering *lowering, agk_mm_panels_plan *plan, int products, agk_step_fn *items_step)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t k = a->ne[0], m = a->ne[1], batches = b->ne[2] * b->ne[3], units = agk_mm_panels_units(b);
    plan->groups = (int32_t)agk_mm_ceil_div(units, AGK_PANELS_ITEM_COLUMNS / AGK_MM_UNIT);
    const double flops = 2.0 * (double)k * (double)m * (double)b->ne[1] * (double)products;
    const double slices = flops * (double)batches / plan->panels->slice_flops;
    plan->row_blocks = (int32_t)row_blocks(plan, m, batches, slices);
    const int64_t items = (int64_t)plan->row_blocks * plan->groups * batches;
    const double per_chunk = (double)items / (slices + 1e-9);
    plan->per_chunk = (int32_t)(slices <= 1.5 ? (double)items : per_chunk < 1.0 ? 1.0 : per_chunk);
    plan->units_per_chunk = (int32_t)(slices <= 1.5 ? units * batches : 1 + UNIT_BYTES / (AGK_MM_UNIT * 4 * k));
    lowering->scratch_size = scratch_bytes(plan, k);
    if (node->has_columns) {
        lowering->source_k = plan->k_block;
        lowering->source_form = plan->form;
    } else {
        lowering->work_size = (size_t)(units * batches) * (agk_mm_panels_unit(plan, k) + 1);
        agk_add_step(lowering, columns_step, agk_mm_ceil_div(units * batches, plan->units_per_chunk));
    }
    memcpy(&node->aux, plan, sizeof *plan);
    agk_add_step(lowering, items_step, agk_mm_ceil_div(items, plan->per_chunk));
}

/* -- items ---------------------------------------------------------------------------------------------------- */

agk_mm_item agk_mm_item_at(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, int64_t i)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const int64_t block = i % p->row_blocks, group = i / p->row_blocks % p->groups;
    const int64_t batch = i / p->row_blocks / p->groups, units = agk_mm_panels_units(b);
    const int64_t pairs = agk_mm_ceil_div(units, 2), panels = agk_mm_ceil_div(c->ne[0], AGK_PANEL_ROWS);
    agk_mm_item t = {.i2 = batch % b->ne[2], .i3 = batch / b->ne[2]};
    t.row = panels * block / p->row_blocks * AGK_PANEL_ROWS;
    t.rows = agk_mm_least(c->ne[0], panels * (block + 1) / p->row_blocks * AGK_PANEL_ROWS) - t.row;
    t.col = pairs * group / p->groups * 2 * AGK_MM_UNIT;
    t.cols = agk_mm_least(b->ne[1], pairs * (group + 1) / p->groups * 2 * AGK_MM_UNIT) - t.col;
    t.a = agk_mm_matrix(task, a, t.i2 / (b->ne[2] / a->ne[2]), t.i3 / (b->ne[3] / a->ne[3])) + t.row * a->nb[1];
    t.b = agk_mm_matrix(task, b, t.i2, t.i3);
    t.c = agk_mm_matrix(task, c, t.i2, t.i3) + t.row * c->nb[0];
    t.columns = agk_mm_panels_columns(task, node, p, batch);
    t.could_split = agk_mm_panels_could_split(task, node, p) + batch * units + t.col / AGK_MM_UNIT;
    return t;
}

agk_mm_panel agk_mm_item_block(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item, int64_t k0,
                               int64_t kn)
{
    const int64_t k = node->src[0].ne[0], units = agk_mm_panels_units(&node->src[1]);
    const size_t unit = agk_mm_panels_unit(p, kn);
    return (agk_mm_panel){
        .terms = p->terms,
        .fours = p->fours,
        .k = agk_panel_steps(kn) * AGK_PANEL_K,
        .cols = item->cols,
        .halves = p->codes.halves,
        .minimum = p->codes.minimum,
        .wide = p->codes.wide,
        .scaled = p->codes.scaled,
        .b = agk_mm_panels_block(p, item->columns, units, item->col / AGK_MM_UNIT, k0, kn),
        .ldb = unit,
        .next_b = (size_t)units * unit,
        .first = k0 == 0,
        .shares = k0 + 2 * kn <= k ? (int)agk_mm_ceil_div(item->rows, AGK_PANEL_ROWS) : 0,
    };
}

bool agk_mm_item_panel(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item, int64_t row,
                       int64_t k0, int64_t kn, char *panel, agk_mm_panel *x)
{
    const agk_view *a = &node->src[0];
    const int64_t left = item->rows - row;
    const char *from = item->a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
    x->rows = agk_mm_least(AGK_PANEL_ROWS, left);
    x->a = panel;
    x->lda = agk_mm_panels_panel(p, kn) / (p->panels->wants_room ? 2 : AGK_PANEL_ROWS);
    x->next_lda = (size_t)a->nb[1];
    x->next_bytes = agk_row_size(a->type, kn);
    if (left > AGK_PANEL_ROWS) {
        x->next_a = from + AGK_PANEL_ROWS * a->nb[1];
        x->next_rows = agk_mm_least(AGK_PANEL_ROWS, left - AGK_PANEL_ROWS);
    } else { /* the first panel of the next block of k, if there is one */
        x->next_a = item->a + (int64_t)agk_row_size(a->type, k0 + kn);
        x->next_rows = k0 + kn < a->ne[0] ? agk_mm_least(AGK_PANEL_ROWS, item->rows) : 0;
    }
    float *room = (float *)(void *)(panel + agk_mm_panels_panel(p, p->k_block));
    return p->panels->rows(p, a, from, x->rows, kn, panel, room);
}

/* -- the second step in lanes --------------------------------------------------------------------------------- */

/* The epilogue. Packed columns are written panel by panel, because a block of their k may end after any. */
static void end_item(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item,
                     const float *sums)
{
    const size_t panel_sums = agk_mm_panels_sums(item->cols);
    if (node->columns_k == 0) {
        const agk_mm_end end = agk_mm_ends_of(task, node, p, item, 0, true);
        p->end(&end, sums, panel_sums, item->rows, item->cols);
        return;
    }
    for (int64_t row = 0; row < item->rows; row += AGK_PANEL_ROWS, sums += panel_sums) {
        const agk_mm_end end = agk_mm_ends_of(task, node, p, item, row, true);
        p->end(&end, sums, panel_sums, AGK_PANEL_ROWS, item->cols);
    }
}

/* Stores the sums to c. Fused stages follow while 32 columns of the result are in the cache. */
static void store(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item,
                  const float *sums)
{
    if (p->end != NULL && (node->n_stages > 0 || node->columns_k > 0)) {
        end_item(task, node, p, item, sums);
        return;
    }
    const size_t ldc = (size_t)node->dst.nb[1], panel_sums = agk_mm_panels_sums(item->cols);
    for (int64_t j = 0; j < item->cols; j += 2 * AGK_MM_UNIT, sums += AGK_PANEL_SUMS) {
        const agk_chain_block block = {.i0 = item->row,
                                       .n = item->rows,
                                       .i1 = item->col + j,
                                       .rows = agk_mm_least(2 * AGK_MM_UNIT, item->cols - j),
                                       .i2 = item->i2,
                                       .i3 = item->i3};
        float *to = (float *)(void *)(item->c + (size_t)block.i1 * ldc);
        p->put(sums, panel_sums, item->rows, block.rows, to, ldc);
        if (node->n_stages > 0) agk_chain_run(task, node, &block, false);
    }
}

static void run_item(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item)
{
    const int64_t k = node->src[0].ne[0];
    const size_t panel_sums = agk_mm_panels_sums(item->cols);
    float *sums = task->scratch;
    char *panel =
        (char *)(sums + (size_t)(p->panels->max_rows / AGK_PANEL_ROWS) * agk_mm_panels_sums(AGK_PANELS_ITEM_COLUMNS));
    for (int64_t k0 = 0; k0 < k; k0 += p->k_block) {
        const int64_t kn = agk_mm_least(p->k_block, k - k0);
        agk_mm_panel x = agk_mm_item_block(node, p, item, k0, kn);
        for (int64_t i = 0; i * AGK_PANEL_ROWS < item->rows; ++i) {
            agk_mm_item_panel(node, p, item, i * AGK_PANEL_ROWS, k0, kn, panel, &x);
            x.share = (int)i;
            x.sums = sums + (size_t)i * panel_sums;
            p->product(&x);
            agk_breathe(task);
        }
    }
    store(task, node, p, item, sums);
}

static agk_status items_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_panels_plan p = agk_mm_panels_plan_of(node);
    const int64_t all = (int64_t)p.row_blocks * p.groups * node->dst.ne[2] * node->dst.ne[3];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * (int64_t)p.per_chunk); ++i) {
        const agk_mm_item item = agk_mm_item_at(task, node, &p, i);
        run_item(task, node, &p, &item);
    }
    return AGK_OK;
}

void agk_mm_panels_in_lanes(agk_lowering *lowering, agk_mm_panels_plan *plan)
{
    enum {
        GIVES = 1 << AGK_COLUMNS_PAIRS | 1 << AGK_COLUMNS_FLOATS | 1 << AGK_COLUMNS_BYTES |
        1 << AGK_COLUMNS_BYTES_HALVES
    };
    const agk_node *node = lowering->node;
    agk_mm_ends_choose(plan, node);
    plan->end = plan->ends ? (agk_mm_panels_end_fn *)agk_pick_vector("mm_panels_end", lowering->cpu) : NULL;
    const bool whole = node->dst.ne[0] % AGK_PANEL_K == 0 && plan->other < 0;
    agk_mm_ends_columns(lowering, plan, plan->end != NULL && whole ? GIVES : 0);
    agk_mm_panels_lower(lowering, plan, 1, items_step);
}
