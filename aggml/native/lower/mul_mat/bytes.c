/* bytes: quantized rows with many columns, where a vector instruction multiplies bytes and adds four products
 * (vpdpbusd, sdot, smmla). Rows become unsigned bytes with a scale and a minimum, columns bytes with a scale
 * (kernels/mul_mat_bytes.h). Not here: sums of 16 bits (shorts.c). */
#include "kernels/mul_mat_bytes.h"

#include "panels.h"

enum { COLUMNS, ROWS }; /* of plan->kernels */

static bool serves(const agk_mm_problem *p)
{
    const agk_code_traits codes = agk_code_traits_of(p->a);
    return agk_mm_panels_serve(p) && codes.served && (p->b == AGK_F32 || (p->b == AGK_Q8_0 && !codes.wide)) &&
           agk_pick_vector("mm_bytes_product", p->cpu) != NULL;
}

static bool columns(const agk_mm_panels_plan *p, int64_t k, int64_t n, const void *b, size_t stride, char *unit)
{
    agk_mm_bytes_columns_fn *pack = (agk_mm_bytes_columns_fn *)p->kernels[COLUMNS];
    pack(p->codes.halves, p->codes.wide, k, n, b, stride, unit);
    return true;
}

static bool rows(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k, char *panel,
                 float *room)
{
    (void)room;
    const size_t bytes = agk_mm_panels_panel(p, k), row = bytes / AGK_PANEL_ROWS;
    if (n < AGK_PANEL_ROWS) memset(panel, 0, bytes);
    for (int64_t i = 0; i < n; ++i) {
        char *to = panel + (size_t)i * row;
        ((agk_mm_bytes_rows_fn *)p->kernels[ROWS])(a->type, from + i * a->nb[1], to, k);
    }
    return true;
}

static const agk_mm_panels panels = {columns, rows, .slice_flops = 7e6, .min_rows = 64, .max_rows = 128};

static bool lower(agk_lowering *lowering)
{
    const int a = lowering->node->src[0].type, b = lowering->node->src[1].type;
    const uint32_t cpu = lowering->cpu;
    agk_mm_panels_plan p = {.panels = &panels,
                            .product = AGK_PICK(mm_bytes_product, cpu),
                            .put = AGK_PICK(mm_panels_put, cpu),
                            .columns = agk_mm_columns_of_codes(a, b, cpu),
                            .codes = agk_code_traits_of(a),
                            .unit_32 = sizeof(agk_bytes_unit),
                            .panel_32 = AGK_PANEL_ROWS * 2 * sizeof(agk_bytes_row),
                            .k_block = AGK_PANELS_K_BLOCK};
    p.kernels[COLUMNS] = (agk_any_fn *)AGK_PICK(mm_bytes_columns, cpu);
    p.kernels[ROWS] = (agk_any_fn *)AGK_PICK(mm_bytes_rows, cpu);
    agk_mm_panels_lower(lowering, &p, 1, agk_mm_panels_in_lanes);
    return true;
}

const agk_mm_scheme agk_mm_bytes = {"bytes", serves, lower};
