/* shorts: quantized rows with many columns on vectors of 256 bits. vpmaddubsw (AVX2) adds products of bytes in 16
 * bits, so the width of the type's codes limits how many may be added (kernels/mul_mat_shorts.h). AVX-VNNI has
 * vpdpbusd, which adds in 32 bits, and uses the same rows and columns. Not here: vectors of 512 bits, and NEON
 * (bytes.c). */
#include "kernels/mul_mat_shorts.h"

#include "panels.h"

static bool serves(const agk_mm_problem *p)
{
    return agk_mm_panels_serve_codes(p, "mm_shorts_product");
}

static bool lower(agk_lowering *lowering)
{
    const int a = lowering->node->src[0].type, b = lowering->node->src[1].type;
    const uint32_t cpu = lowering->cpu;
    agk_any_fn *without_vnni = agk_pick_vector("mm_shorts_product", cpu & ~(uint32_t)AGK_AVX_VNNI);
    const bool vnni =
        agk_pick_vector("mm_shorts_product", cpu) != without_vnni; /* sums have 32 bits, so all rows can be bytes */
    const int fours = vnni ? AGK_MM_BLOCK / 4 : agk_short_fours(a);
    agk_mm_panels_plan p = {.panels = &agk_mm_panels_of_codes,
                            .product = AGK_PICK(mm_shorts_product, cpu),
                            .put = AGK_PICK(mm_panels_put, cpu),
                            .columns = agk_mm_columns_of_codes(a, b, cpu),
                            .codes = agk_code_traits_of(a),
                            .fours = (int8_t)fours,
                            .unit_32 = sizeof(agk_short_unit),
                            .panel_32 = (int32_t)(AGK_PANEL_ROWS * agk_short_row_bytes(fours == 0)),
                            .k_block = AGK_PANELS_K_BLOCK};
    p.kernels[AGK_CODES_COLUMNS] = (agk_any_fn *)AGK_PICK(mm_shorts_columns, cpu);
    p.kernels[AGK_CODES_ROWS] = (agk_any_fn *)AGK_PICK(mm_shorts_rows, cpu);
    agk_mm_panels_in_lanes(lowering, &p);
    return true;
}

const agk_mm_scheme agk_mm_shorts = {"shorts", serves, lower, false};
