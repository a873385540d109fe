/* floats: products of f32 with many columns in lanes. Rows and columns of every type are converted to floats, which
 * lie in panels and units in the order in which the kernel reads them. */
#include "panels.h"

enum { COLUMNS, READ }; /* indices of plan->kernels; READ: an agk_to_float_fn, NULL: rows are f32 */

static bool serves(const agk_mm_problem *p)
{
    return agk_mm_panels_serve(p) && agk_pick_vector("mm_floats_product", p->cpu) != NULL;
}

static bool columns(const agk_mm_panels_plan *p, int64_t k, int64_t n, const void *b, size_t stride, char *unit)
{
    enum { LINE = AGK_MM_UNIT * sizeof(float) };
    ((agk_mm_blocks_pack_f32_fn *)p->kernels[COLUMNS])(k, n, b, stride, unit);
    memset(unit + k * LINE, 0, agk_mm_panels_unit(p, k) - (size_t)(k * LINE));
    return true;
}

/* Packs k floats of a row into a panel: [k / 16][32 rows][16]; zeros beyond k. */
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

static bool rows(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k, char *panel,
                 float *room)
{
    enum { LINE = AGK_MM_UNIT * sizeof(float) };
    float floats[AGK_PANELS_K_BLOCK];
    (void)room;
    if (n < AGK_PANEL_ROWS) memset(panel, 0, agk_mm_panels_panel(p, k));
    for (int64_t i = 0; i < n; ++i, from += a->nb[1], panel += LINE) {
        agk_mm_panels_fetch(a, from, n - i, k);
        const float *x = (const float *)(const void *)from;
        if (p->kernels[READ] != NULL) {
            ((agk_to_float_fn *)p->kernels[READ])(from, floats, k);
            x = floats;
        }
        lay_row(k, x, panel);
    }
    return true;
}

static const agk_mm_panels panels = {columns, rows, .slice_flops = 2.5e6, .min_rows = 64, .max_rows = 128};

static bool lower(agk_lowering *lowering)
{
    const int a = lowering->node->src[0].type;
    const uint32_t cpu = lowering->cpu;
    /* Floats are as wide as two terms. With AVX-512 there is 1 MB of L2 or more: 256 k load and store sums half as
     * often, 1 to 3 % of 4096 x 512 x 14336 on a Zen 4. */
    const bool halve = (cpu & AGK_AVX512) == 0 && agk_traits(a)->blck_size <= AGK_PANELS_K_BLOCK / 2;
    agk_mm_panels_plan p = {.panels = &panels,
                            .product = AGK_PICK(mm_floats_product, cpu),
                            .put = AGK_PICK(mm_panels_put, cpu),
                            .columns = agk_mm_to_floats(lowering->node->src[1].type, cpu),
                            .form = AGK_COLUMNS_FLOATS,
                            .unit_32 = AGK_PANEL_K * AGK_MM_UNIT * sizeof(float),
                            .panel_32 = AGK_PANEL_K * AGK_PANEL_ROWS * sizeof(float),
                            .k_block = halve ? AGK_PANELS_K_BLOCK / 2 : AGK_PANELS_K_BLOCK};
    p.kernels[COLUMNS] = (agk_any_fn *)AGK_PICK(mm_blocks_pack_f32, cpu);
    if (a != AGK_F32) p.kernels[READ] = (agk_any_fn *)agk_reader(a, cpu);
    agk_mm_panels_in_lanes(lowering, &p);
    return true;
}

const agk_mm_scheme agk_mm_floats = {"floats", serves, lower, true};
