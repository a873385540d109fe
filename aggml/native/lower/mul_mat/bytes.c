/* bytes: quantized rows with many columns, on processors with a vector instruction that multiplies bytes and adds
 * four products (vpdpbusd, sdot, smmla). Rows become unsigned bytes with a scale and a minimum, columns become bytes
 * with a scale (kernels/mul_mat_bytes.h). Not here: products of bytes that are added in 16 bits (shorts.c). */
#include "kernels/mul_mat_bytes.h"

#include "panels.h"

static bool serves(const agk_mm_problem *p)
{
    return agk_mm_panels_serve_codes(p, "mm_bytes_product");
}

/* Rows with one scale for 256 k, if the kernels have them. What is left of sums of 16 are then the minimums of q2_K,
 * and bytes of iq1 have a minimum instead. */
static void choose_rows(agk_mm_panels_plan *p, int type, uint32_t cpu)
{
    agk_any_fn *scaled = agk_bytes_one_scale(type) ? agk_pick_vector("mm_bytes_scaled_rows", cpu) : NULL;
    p->kernels[AGK_CODES_ROWS] = scaled != NULL ? scaled : (agk_any_fn *)AGK_PICK(mm_bytes_rows, cpu);
    if (scaled == NULL) return;
    p->codes.scaled = true;
    p->codes.halves = p->codes.minimum;
    p->codes.minimum = p->codes.minimum || agk_bytes_odd(type);
}

/* Columns of floats are quantized and packed by one kernel, if there is one; else they become bytes first. */
static void choose_columns(agk_mm_panels_plan *p, int a, int b, uint32_t cpu)
{
    agk_any_fn *floats = b == AGK_F32 ? agk_pick_vector("mm_bytes_floats", cpu) : NULL;
    p->columns = floats != NULL ? (agk_mm_conversion){AGK_MM_AS_IT_IS, NULL} : agk_mm_columns_of_codes(a, b, cpu);
    p->kernels[AGK_CODES_COLUMNS] = floats != NULL ? floats : (agk_any_fn *)AGK_PICK(mm_bytes_columns, cpu);
}

static bool lower(agk_lowering *lowering)
{
    const int a = lowering->node->src[0].type, b = lowering->node->src[1].type;
    const uint32_t cpu = lowering->cpu;
    agk_mm_panels_plan p = {.panels = &agk_mm_panels_of_codes,
                            .product = AGK_PICK(mm_bytes_product, cpu),
                            .put = AGK_PICK(mm_panels_put, cpu),
                            .codes = agk_code_traits_of(a),
                            .unit_32 = sizeof(agk_bytes_unit),
                            .panel_32 = AGK_PANEL_ROWS * 2 * sizeof(agk_bytes_row),
                            .k_block = AGK_PANELS_K_BLOCK};
    choose_rows(&p, a, cpu);
    /* Columns with a scale for 256 k cannot be written 32 k at a time. */
    if (!p.codes.wide && b == AGK_F32) p.form = p.codes.halves ? AGK_COLUMNS_BYTES_HALVES : AGK_COLUMNS_BYTES;
    choose_columns(&p, a, b, cpu);
    agk_mm_panels_in_lanes(lowering, &p);
    return true;
}

const agk_mm_scheme agk_mm_bytes = {"bytes", serves, lower, false};
