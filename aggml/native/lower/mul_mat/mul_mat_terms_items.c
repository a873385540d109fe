/* The second step of mul_mat of panels and units. An item is a block of rows times up to 512 columns: block of k by block of k, 32
 * rows at a time are made a panel, or taken from where panels are kept, which all columns pass by; so what is packed stays in L2
 * for all rows of the item, and the sums stay with the thread. What cannot be split is multiplied once more by a dot. Not here:
 * the kernels (kernels/amx/mul_mat_tiles.c, kernels/avx512/mul_mat_pairs.c), kept panels (mul_mat_packed.c). */
#include "lower/chain.h"
#include "kernels/mul_mat_packed.h"
#include "lower/weights.h"
#include "mul_mat_terms_plan.h"

/* k floats to a row of a panel: [k / 16][32 rows][16], as wide as two terms; zeros beyond k. */
static void lay_row(int64_t k, const float *x, char *panel)
{
    enum { LANES = 16, LINE = LANES * sizeof(float) };
    for (int64_t i = 0; i < agk_panel_steps(k) * AGK_PANEL_K; i += LANES, panel += LINE * AGK_PANEL_ROWS) {
        if (i + LANES <= k) {
            memcpy(panel, x + i, LINE);
            continue;
        }
        memset(panel, 0, LINE);
        if (i < k) memcpy(panel, x + i, (size_t)(k - i) * sizeof(float));
    }
}

/* The same for tiles: two units of 16 rows. `floats` has room for 16 times kn. */
static bool make_turned_panel(const agk_terms_plan *p, const agk_view *a, const char *rows, int64_t n, int64_t kn,
                              char *panel, float *floats)
{
    bool fine = true;
    for (int64_t first = 0; first < n; first += AGK_MM_UNIT, panel += agk_terms_unit_of(p, kn)) {
        const char *from = rows + first * a->nb[1];
        const int64_t some = agk_mm_least(AGK_MM_UNIT, n - first);
        size_t stride = (size_t)a->nb[1];
        if (p->codebooks) {
            const size_t line = 2 * (size_t)kn;
            for (int64_t i = 0; i < some; ++i) {
                p->a_bf16(a->type, from + i * a->nb[1], (char *)floats + (size_t)i * line, kn);
            }
            from = (const char *)floats;
            stride = line;
        }
        if (p->bf16_turned != NULL) {
            p->bf16_turned(kn, some, from, stride, panel);
            continue;
        }
        if (p->a_floats != NULL) {
            for (int64_t i = 0; i < some; ++i) p->a_floats(from + i * a->nb[1], floats + i * kn, kn);
            from = (const char *)floats;
            stride = (size_t)kn * sizeof(float);
        }
        fine = p->row.turned(p->terms, kn, some, from, stride, panel) && fine;
    }
    return fine;
}

/* Rows of a, kn elements each, as a panel; missing ones are zero. False: some cannot be split. */
static bool make_panel(const agk_terms_plan *p, const agk_view *a, const char *rows, int64_t n, int64_t kn, char *panel)
{
    float floats[AGK_TERMS_K_MOST];
    bool fine = true;
    if (n < AGK_PANEL_ROWS) memset(panel, 0, agk_terms_panel_of(p, kn));
    for (int64_t i = 0; i < n && p->bytes.served; ++i, rows += a->nb[1]) {
        char *to = panel + (size_t)i * agk_terms_panel_of(p, kn) / AGK_PANEL_ROWS;
        if (p->shorts)
            p->row.shorts(a->type, p->fours == 0, rows, to, kn);
        else
            p->row.bytes(a->type, rows, to, kn);
    }
    if (p->bytes.served) return true;
    for (int64_t i = 0; i < n; ++i, rows += a->nb[1], panel += 2 * AGK_PANEL_K) {
        if (p->bf16 != NULL) {
            p->bf16(rows, panel, kn);
            continue;
        }
        const float *x = (const float *)(const void *)rows;
        if (p->a_floats != NULL) {
            p->a_floats(rows, floats, kn);
            x = floats;
        }
        if (p->whole)
            lay_row(kn, x, panel);
        else
            fine = p->row.terms(p->terms, kn, x, panel) && fine;
    }
    return fine;
}

/* Rows times columns first .. first + n - 1 of one matrix by a dot. */
static void multiply_again(const agk_task *task, const agk_node *node, const agk_terms_plan *p, agk_mm_block *block,
                           const char *b, char *c, int64_t first, int64_t n)
{
    const agk_view *view = &node->src[1];
    for (int64_t j = first; j < first + n; ++j) {
        block->b = b + j * view->nb[1];
        if (p->col.floats != NULL) {
            p->col.floats(block->b, task->scratch, view->ne[0]);
            block->b = task->scratch;
        }
        block->c = (float *)(void *)(c + j * node->dst.nb[1]);
        p->dot(block);
    }
}

typedef struct item {
    int64_t i2, i3, row, rows, col, cols; /* of c */
    char *columns;                        /* the matrix of b, packed */
    const bool *fine;                     /* of these units */
} item;

static item item_at(const agk_task *task, const agk_node *node, const agk_terms_plan *p, int64_t i)
{
    const agk_view *b = &node->src[1], *dst = &node->dst;
    const int64_t block = i % p->row_blocks, group = i / p->row_blocks % p->groups;
    const int64_t batch = i / p->row_blocks / p->groups, units = agk_terms_units(b);
    const int64_t pairs = agk_mm_ceil_div(units, 2), panels = agk_mm_ceil_div(dst->ne[0], AGK_PANEL_ROWS);
    item t = {.i2 = batch % b->ne[2], .i3 = batch / b->ne[2]};
    t.row = panels * block / p->row_blocks * AGK_PANEL_ROWS;
    t.rows = agk_mm_least(dst->ne[0], panels * (block + 1) / p->row_blocks * AGK_PANEL_ROWS) - t.row;
    t.col = pairs * group / p->groups * 2 * AGK_MM_UNIT;
    t.cols = agk_mm_least(b->ne[1], pairs * (group + 1) / p->groups * 2 * AGK_MM_UNIT) - t.col;
    t.columns = agk_terms_columns(task, node, p, batch);
    t.fine = agk_terms_split(task, node, p) + batch * units + t.col / AGK_MM_UNIT;
    return t;
}

/* In lanes: the sums to c; what is fused with the product follows while 32 columns of it are at hand. */
static void store(const agk_task *task, const agk_node *node, const agk_terms_plan *p, const item *t, const float *sums,
                  char *out, bool stages)
{
    const agk_view *c = &node->dst;
    const size_t panel_sums = (size_t)agk_mm_ceil_div(t->cols, 2 * AGK_MM_UNIT) * AGK_PANEL_SUMS;
    for (int64_t j = 0; j < t->cols; j += 2 * AGK_MM_UNIT, sums += AGK_PANEL_SUMS) {
        const agk_chain_block block = {.i0 = t->row,
                                       .n = t->rows,
                                       .i1 = t->col + j,
                                       .rows = agk_mm_least(2 * AGK_MM_UNIT, t->cols - j),
                                       .i2 = t->i2,
                                       .i3 = t->i3};
        p->put(sums, panel_sums, t->rows, block.rows, (float *)(void *)(out + block.i1 * c->nb[1]), (size_t)c->nb[1]);
        if (stages) agk_chain_run(task, node, &block, false);
    }
}

/* Where a tile puts rows `row` on of an item, `out` is its first; with stages or without. */
static agk_mm_end end_of(const agk_task *task, const agk_node *node, const agk_terms_plan *p, const item *t,
                         int64_t row, char *out, bool stages)
{
    const agk_view *c = &node->dst;
    agk_mm_end e = {.c = (float *)(void *)(out + c->nb[0] * row + t->col * c->nb[1]),
                    .ldc = (size_t)c->nb[1],
                    .narrow = c->type == AGK_BF16,
                    .act = -1};
    if (!stages) return e;
    if (p->bias >= 0) {
        e.bias = (const float *)agk_data(task, &node->src[node->stage[p->bias].operand]) + t->row + row;
    }
    if (p->act >= 0) e.act = node->stage[p->act].op;
    if (p->other >= 0) {
        const agk_view *v = &node->src[node->stage[p->other].operand];
        e.other = agk_terms_matrix(task, v, t->i2, t->i3) + 4 * (t->row + row) + t->col * v->nb[1];
        e.ld_other = (size_t)v->nb[1];
    }
    if (node->columns_k > 0) {
        e.units = agk_terms_given(agk_data(task, c), agk_mm_ceil_div(c->ne[1], AGK_MM_UNIT), c->ne[0], node->columns_k,
                                  t->row + row, t->col / AGK_MM_UNIT, &e.ld_unit);
    }
    return e;
}

/* Block k0 .. k0 + kn - 1 of the panel of rows `row` on of an item, and what to fetch meanwhile; false: some cannot be split. */
static bool take_panel(const agk_task *task, const agk_node *node, const agk_terms_plan *p, const item *t, int64_t row,
                       int64_t k0, int64_t kn, char *panel, agk_mm_panel *x)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t k = a->ne[0], left = t->rows - row, i2 = t->i2 / (b->ne[2] / a->ne[2]),
                  i3 = t->i3 / (b->ne[3] / a->ne[3]);
    const bool more = k0 + kn < k;
    x->rows = agk_mm_least(AGK_PANEL_ROWS, left);
    x->a = panel;
    if (!p->lanes && p->packed != NULL) {
        const int64_t in_all = agk_mm_ceil_div(a->ne[1], AGK_PACKED_ROWS);
        const int64_t group = (i3 * a->ne[2] + i2) * in_all + (t->row + row) / AGK_PACKED_ROWS;
        const size_t size = agk_terms_unit_of(p, k) + AGK_PACKED_HEAD, at = AGK_PACKED_HEAD + agk_terms_unit_of(p, k0);
        const bool two = x->rows > AGK_PACKED_ROWS;
        const char *first = agk_packed_ready(p->packed, group);
        const char *second = two ? agk_packed_ready(p->packed, group + 1) : first;
        x->a = first + at;
        x->lda = size;
        x->next_lda = size;
        x->next_bytes = agk_terms_unit_of(p, kn);
        if (left > AGK_PANEL_ROWS) {
            x->next_a = x->a + 2 * size;
            x->next_rows = left > AGK_PANEL_ROWS + AGK_PACKED_ROWS ? 2 : 1;
        } else {
            x->next_a = x->a - (size_t)(row / AGK_PACKED_ROWS) * size + agk_terms_unit_of(p, kn);
            x->next_rows = !more ? 0 : t->rows > AGK_PACKED_ROWS ? 2 : 1;
        }
        return p->terms == 1 || (*first != 0 && *second != 0);
    }
    const char *rows = agk_terms_matrix(task, a, i2, i3) + t->row * a->nb[1];
    const char *from = rows + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
    x->lda = p->lanes ? agk_terms_panel_of(p, kn) / AGK_PANEL_ROWS : agk_terms_unit_of(p, kn);
    x->next_lda = (size_t)a->nb[1];
    x->next_bytes = agk_row_size(a->type, kn);
    if (left > AGK_PANEL_ROWS) {
        x->next_a = from + AGK_PANEL_ROWS * a->nb[1];
        x->next_rows = agk_mm_least(AGK_PANEL_ROWS, left - AGK_PANEL_ROWS);
    } else {
        x->next_a = rows + (int64_t)agk_row_size(a->type, k0 + kn);
        x->next_rows = more ? agk_mm_least(AGK_PANEL_ROWS, t->rows) : 0;
    }
    if (p->lanes) return make_panel(p, a, from, x->rows, kn, panel);
    float *floats = (float *)(void *)(panel + agk_terms_panel_of(p, p->k_block));
    return make_turned_panel(p, a, from, x->rows, kn, panel, floats);
}

static void run_item(const agk_task *task, const agk_node *node, const agk_terms_plan *p, const item *t)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const char *rows =
        agk_terms_matrix(task, a, t->i2 / (b->ne[2] / a->ne[2]), t->i3 / (b->ne[3] / a->ne[3])) + t->row * a->nb[1];
    char *out = (char *)agk_data(task, c) + t->i2 * c->nb[2] + t->i3 * c->nb[3] + t->row * c->nb[0];
    const int64_t k = a->ne[0], panels = agk_mm_ceil_div(t->rows, AGK_PANEL_ROWS);
    const size_t panel_sums = (size_t)agk_mm_ceil_div(t->cols, 2 * AGK_MM_UNIT) * AGK_PANEL_SUMS;
    float *sums = task->scratch;
    char *panel = (char *)(sums + (size_t)(agk_terms_max_rows(p) / AGK_PANEL_ROWS) * (AGK_TERMS_ITEM_COLUMNS / 32) *
                                      AGK_PANEL_SUMS);
    bool fine[AGK_TERMS_MAX_ROWS / AGK_PANEL_ROWS];
    for (int64_t i = 0; i < panels; ++i) fine[i] = true;
    bool fine_columns = true;
    for (int64_t u = 0; u * AGK_MM_UNIT < t->cols && agk_terms_splits(p); ++u)
        fine_columns = fine_columns && t->fine[u];
    agk_mm_panel x = {.terms = p->terms,
                      .fours = p->fours,
                      .halves = p->bytes.halves,
                      .minimum = p->bytes.minimum,
                      .wide = p->bytes.wide,
                      .cols = t->cols};
    int64_t k0 = 0;
    do { /* once even if k is 0: the result is zeros */
        const int64_t kn = agk_mm_least(p->k_block, k - k0);
        const bool more = k0 + kn < k;
        x.k = agk_panel_steps(kn) * AGK_PANEL_K;
        x.b = agk_terms_block(p, t->columns, agk_terms_units(b), t->col / AGK_MM_UNIT, k0, kn);
        x.ldb = agk_terms_unit_of(p, kn);
        x.next_b = (size_t)agk_terms_units(b) * x.ldb;
        x.first = k0 == 0;
        x.shares = more && k0 + 2 * kn <= k ? (int)panels : 0;
        for (int64_t i = 0; i < panels; ++i) {
            const int64_t row = i * AGK_PANEL_ROWS;
            fine[i] = take_panel(task, node, p, t, row, k0, kn, panel, &x) && fine[i];
            x.share = (int)i;
            x.sums = sums + (size_t)i * panel_sums;
            agk_mm_end end;
            if (!p->lanes && !more) {
                end = end_of(task, node, p, t, row, out, p->ends && fine[i] && fine_columns);
                x.end = &end;
            }
            p->tile(&x);
            agk_breathe(task);
        }
        k0 += kn;
    } while (k0 < k);
    bool split = fine_columns; /* all that was multiplied */
    for (int64_t i = 0; i < panels && agk_terms_splits(p); ++i) split = split && fine[i];
    const bool fused = node->n_stages > 0;
    if (p->lanes) store(task, node, p, t, sums, out, fused && split);
    if (split && (p->lanes || p->ends)) return;
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t row = i * AGK_PANEL_ROWS;
        if (split || (p->ends && fine[i] && fine_columns)) continue;
        agk_mm_block block = {.k = k, .cols = 1, .lda = (size_t)a->nb[1], .ldb = (size_t)b->nb[1]};
        block.a = rows + row * a->nb[1];
        block.ldc = (size_t)c->nb[1];
        block.rows = agk_mm_least(AGK_PANEL_ROWS, t->rows - row);
        for (int64_t u = 0; u * AGK_MM_UNIT < t->cols; ++u) {
            if (fine[i] && t->fine[u]) continue;
            const int64_t first = t->col + u * AGK_MM_UNIT;
            multiply_again(task, node, p, &block, agk_terms_matrix(task, b, t->i2, t->i3), out + 4 * row, first,
                           agk_mm_least(AGK_MM_UNIT, t->col + t->cols - first));
        }
        if (p->ends && fused) {
            agk_chain_run(task, node, &(agk_chain_block){t->row + row, block.rows, t->col, t->cols, t->i2, t->i3},
                          false);
        }
    }
    if (fused && !p->ends)
        agk_chain_run(task, node, &(agk_chain_block){t->row, t->rows, t->col, t->cols, t->i2, t->i3}, false);
}

agk_status agk_terms_items_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_terms_plan p = agk_terms_plan_of(node);
    const int64_t all = (int64_t)p.row_blocks * p.groups * node->dst.ne[2] * node->dst.ne[3];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * (int64_t)p.per_chunk); ++i) {
        const item t = item_at(task, node, &p, i);
        run_item(task, node, &p, &t);
    }
    return AGK_OK;
}
