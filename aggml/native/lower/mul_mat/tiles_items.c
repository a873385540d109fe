/* The second step of tiles: panels are packed, or taken from the kept copy, and multiplied; the kernel also finishes
 * the sums. Products with a number that cannot be split are computed once more by a dot. Not here: the kernel
 * (kernels/amx/mul_mat_tiles.c). */
#include "tiles.h"

#include "ends.h"
#include "lower/chain.h"
#include "packing.h"

/* Takes the panel of rows `row` on from the kept copy, for the block that x describes. False: some number cannot be
 * split. */
static bool kept_panel(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *t, int64_t row, int64_t k0,
                       int64_t kn, agk_mm_panel *x)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t k = a->ne[0], left = t->rows - row;
    const int64_t i2 = t->i2 / (b->ne[2] / a->ne[2]), i3 = t->i3 / (b->ne[3] / a->ne[3]);
    const int64_t group =
        (i3 * a->ne[2] + i2) * agk_mm_ceil_div(a->ne[1], AGK_PACKED_ROWS) + (t->row + row) / AGK_PACKED_ROWS;
    const size_t size = agk_mm_panels_unit(p, k) + AGK_PACKED_HEAD, at = AGK_PACKED_HEAD + agk_mm_panels_unit(p, k0);
    x->rows = agk_mm_least(AGK_PANEL_ROWS, left);
    const char *first = agk_packed_ready(p->packed, group);
    const char *second = x->rows > AGK_PACKED_ROWS ? agk_packed_ready(p->packed, group + 1) : first;
    x->a = first + at;
    x->lda = size;
    x->next_lda = size;
    x->next_bytes = agk_mm_panels_unit(p, kn);
    if (left > AGK_PANEL_ROWS) {
        x->next_a = x->a + 2 * size;
        x->next_rows = left > AGK_PANEL_ROWS + AGK_PACKED_ROWS ? 2 : 1;
    } else {
        x->next_a = x->a - (size_t)(row / AGK_PACKED_ROWS) * size + agk_mm_panels_unit(p, kn);
        x->next_rows = k0 + kn >= k ? 0 : t->rows > AGK_PACKED_ROWS ? 2 : 1;
    }
    return p->terms == 1 || (*first != 0 && *second != 0);
}

/* Computes rows times columns first .. first + n - 1 of one matrix by a dot. */
static void dot_columns(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, agk_mm_block *block,
                        const char *b, char *c, int64_t first, int64_t n)
{
    const agk_view *view = &node->src[1];
    for (int64_t j = first; j < first + n; ++j) {
        block->b = b + j * view->nb[1];
        if (p->columns.form != AGK_MM_AS_IT_IS) {
            agk_mm_convert(&p->columns, block->b, task->scratch, view->ne[0]);
            block->b = task->scratch;
        }
        block->c = (float *)(void *)(c + j * node->dst.nb[1]);
        ((agk_mm_block_fn *)p->kernels[AGK_TILES_DOT])(block);
    }
}

/* Whether all numbers of all panels and columns of an item could be split into terms. */
typedef struct splits {
    bool panel[AGK_PANELS_MOST], columns;
} splits;

/* Computes once more, by a dot, the results of each panel and each unit in which a number could not be split. */
static void multiply_again(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p,
                           const agk_mm_item *t, const splits *fine, int64_t i)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t row = i * AGK_PANEL_ROWS;
    agk_mm_block block = {.k = a->ne[0],
                          .rows = agk_mm_least(AGK_PANEL_ROWS, t->rows - row),
                          .cols = 1,
                          .a = t->a + row * a->nb[1],
                          .lda = (size_t)a->nb[1],
                          .ldb = (size_t)b->nb[1],
                          .ldc = (size_t)node->dst.nb[1]};
    for (int64_t u = 0; u * AGK_MM_UNIT < t->cols; ++u) {
        if (fine->panel[i] && t->could_split[u]) continue;
        const int64_t first = t->col + u * AGK_MM_UNIT;
        dot_columns(task, node, p, &block, t->b, t->c + 4 * row, first,
                    agk_mm_least(AGK_MM_UNIT, t->col + t->cols - first));
    }
}

/* Finishes the sums of panels that the kernel left unfinished: panels with numbers that cannot be split, or all
 * panels if the kernel does not know some stage. */
static void finish(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *t,
                   const splits *fine, int64_t panels)
{
    const bool fused = node->n_stages > 0;
    bool all_fine = fine->columns;
    for (int64_t i = 0; i < panels && p->terms > 1; ++i) all_fine = all_fine && fine->panel[i];
    if (all_fine && p->ends) return;
    for (int64_t i = 0; i < panels; ++i) {
        if (all_fine || (p->ends && fine->panel[i] && fine->columns)) continue;
        multiply_again(task, node, p, t, fine, i);
        const int64_t row = i * AGK_PANEL_ROWS, rows = agk_mm_least(AGK_PANEL_ROWS, t->rows - row);
        if (p->ends && fused) {
            agk_chain_run(task, node, &(agk_chain_block){t->row + row, rows, t->col, t->cols, t->i2, t->i3}, false);
        }
    }
    if (fused && !p->ends) {
        agk_chain_run(task, node, &(agk_chain_block){t->row, t->rows, t->col, t->cols, t->i2, t->i3}, false);
    }
}

static void run_item(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *t)
{
    const int64_t k = node->src[0].ne[0], panels = agk_mm_ceil_div(t->rows, AGK_PANEL_ROWS);
    const size_t panel_sums = agk_mm_panels_sums(t->cols);
    float *sums = task->scratch;
    char *panel =
        (char *)(sums + (size_t)(p->panels->max_rows / AGK_PANEL_ROWS) * agk_mm_panels_sums(AGK_PANELS_ITEM_COLUMNS));
    splits fine = {.columns = true};
    for (int64_t i = 0; i < panels; ++i) fine.panel[i] = true;
    for (int64_t u = 0; u * AGK_MM_UNIT < t->cols && p->terms > 1; ++u) {
        fine.columns = fine.columns && t->could_split[u];
    }
    for (int64_t k0 = 0; k0 < k; k0 += p->k_block) {
        const int64_t kn = agk_mm_least(p->k_block, k - k0);
        agk_mm_panel x = agk_mm_item_block(node, p, t, k0, kn);
        for (int64_t i = 0; i < panels; ++i) {
            const int64_t row = i * AGK_PANEL_ROWS;
            const bool split = p->packed != NULL ? kept_panel(node, p, t, row, k0, kn, &x)
                                                 : agk_mm_item_panel(node, p, t, row, k0, kn, panel, &x);
            fine.panel[i] = split && fine.panel[i];
            x.share = (int)i;
            x.sums = sums + (size_t)i * panel_sums;
            agk_mm_end end;
            if (k0 + kn >= k) {
                end = agk_mm_ends_of(task, node, p, t, row, p->ends && fine.panel[i] && fine.columns);
                x.end = &end;
            }
            p->product(&x);
            agk_breathe(task);
        }
    }
    finish(task, node, p, t, &fine, panels);
}

agk_status agk_mm_panels_on_tiles(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_panels_plan p = agk_mm_panels_plan_of(node);
    const int64_t all = (int64_t)p.row_blocks * p.groups * node->dst.ne[2] * node->dst.ne[3];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * (int64_t)p.per_chunk); ++i) {
        const agk_mm_item item = agk_mm_item_at(task, node, &p, i);
        run_item(task, node, &p, &item);
    }
    return AGK_OK;
}
