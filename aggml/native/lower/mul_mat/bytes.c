/* bytes: quantized rows with many columns, on processors with a vector instruction that multiplies bytes and adds
 * four products (vpdpbusd, sdot, smmla). Rows become unsigned bytes with a scale and a minimum, columns become bytes
 * with a scale (kernels/mul_mat_bytes.h). Not here: products of bytes that are added in 16 bits (shorts.c). */
#include "kernels/mul_mat_bytes.h"

#include "panels.h"

static bool serves(const agk_mm_problem *p)
{
    return agk_mm_panels_serve_codes(p, "mm_bytes_product");
}

static bool lower(agk_lowering *lowering)
{
    const int a = lowering->node->src[0].type, b = lowering->node->src[1].type;
    const uint32_t cpu = lowering->cpu;
    agk_mm_panels_plan p = {.panels = &agk_mm_panels_of_codes,
                            .product = AGK_PICK(mm_bytes_product, cpu),
                            .put = AGK_PICK(mm_panels_put, cpu),
                            .columns = agk_mm_columns_of_codes(a, b, cpu),
                            .codes = agk_code_traits_of(a),
                            .unit_32 = sizeof(agk_bytes_unit),
                            .panel_32 = AGK_PANEL_ROWS * 2 * sizeof(agk_bytes_row),
                            .k_block = AGK_PANELS_K_BLOCK};
    /* Columns with a scale for 256 k cannot be written 32 k at a time. */
    if (!p.codes.wide && b == AGK_F32) p.form = p.codes.halves ? AGK_COLUMNS_BYTES_HALVES : AGK_COLUMNS_BYTES;
    p.kernels[AGK_CODES_COLUMNS] = (agk_any_fn *)AGK_PICK(mm_bytes_columns, cpu);
    p.kernels[AGK_CODES_ROWS] = (agk_any_fn *)AGK_PICK(mm_bytes_rows, cpu);
    agk_mm_panels_in_lanes(lowering, &p);
    return true;
}

const agk_mm_scheme agk_mm_bytes = {"bytes", serves, lower};
