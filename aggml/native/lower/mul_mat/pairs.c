/* pairs: rows of bf16 and of quantized types with many columns, where vdpbf16ps is fast. Each number is one bf16
 * term, and a lane holds two consecutive k. Numbers are rounded to bf16, as on matrix tiles (tiles.c). Not here: f32
 * and f16 rows, which stay floats (floats.c). */
#include "panels.h"

enum { COLUMNS, ROWS, READ }; /* indices of plan->kernels; READ: an agk_to_float_fn, NULL: rows are bf16 */

enum {
    /* Blocks of 256 k load and store their sums twice as often, those of 128 four times. G operations a second of two
     * threads of a Zen 4, bf16, 512 columns, medians of 128, 256, 512 in turns: 4096 x 14336 362, 373, 387; of 256,
     * 512: 2048 x 4096 396, 405; 1536 x 1536 369, 393. 512 KB of packed columns stay in L2 with the sums. */
    K_BLOCK = AGK_PANELS_K_MOST,
};

static bool serves(const agk_mm_problem *p)
{
    return agk_mm_panels_serve(p) && p->a != AGK_F32 && p->a != AGK_F16 &&
           agk_pick_vector("mm_pairs_product", p->cpu) != NULL;
}

static bool columns(const agk_mm_panels_plan *p, int64_t k, int64_t n, const void *b, size_t stride, char *unit)
{
    return ((agk_mm_pairs_columns_fn *)p->kernels[COLUMNS])(1, k, n, b, stride, unit);
}

static bool rows(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k, char *panel,
                 float *room)
{
    enum { ROW = 2 * AGK_PANEL_K }; /* bytes of 32 k of a row */
    float floats[K_BLOCK];
    (void)room;
    if (n < AGK_PANEL_ROWS) memset(panel, 0, agk_mm_panels_panel(p, k));
    for (int64_t i = 0; i < n; ++i, from += a->nb[1], panel += ROW) {
        agk_mm_panels_fetch(a, from, n - i, k);
        if (p->kernels[READ] == NULL) {
            ((agk_mm_pairs_rows_bf16_fn *)p->kernels[ROWS])(from, panel, k);
            continue;
        }
        ((agk_to_float_fn *)p->kernels[READ])(from, floats, k);
        ((agk_mm_pairs_rows_fn *)p->kernels[ROWS])(1, k, floats, panel);
    }
    return true; /* one term can represent every number */
}

static const agk_mm_panels panels = {columns, rows, .slice_flops = 2.5e6, .min_rows = 64, .max_rows = 128};

static bool lower(agk_lowering *lowering)
{
    const int a = lowering->node->src[0].type;
    const uint32_t cpu = lowering->cpu;
    agk_mm_panels_plan p = {.panels = &panels,
                            .product = AGK_PICK(mm_pairs_product, cpu),
                            .put = AGK_PICK(mm_panels_put, cpu),
                            .columns = agk_mm_to_floats(lowering->node->src[1].type, cpu),
                            .terms = 1,
                            .form = AGK_COLUMNS_PAIRS,
                            .unit_32 = AGK_TERMS_TILE,
                            .panel_32 = 2 * AGK_TERMS_TILE,
                            .k_block = K_BLOCK};
    p.kernels[COLUMNS] = (agk_any_fn *)AGK_PICK(mm_pairs_columns, cpu);
    if (a == AGK_BF16) {
        p.kernels[ROWS] = (agk_any_fn *)AGK_PICK(mm_pairs_rows_bf16, cpu);
    } else {
        p.kernels[ROWS] = (agk_any_fn *)AGK_PICK(mm_pairs_rows, cpu);
        p.kernels[READ] = (agk_any_fn *)agk_reader(a, cpu);
    }
    agk_mm_panels_in_lanes(lowering, &p);
    return true;
}

const agk_mm_scheme agk_mm_pairs = {"pairs", serves, lower, false};
