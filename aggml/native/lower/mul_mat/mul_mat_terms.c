/* mul_mat of panels and units (mul_mat_panels.h). On matrix tiles f32 is three bf16 terms, f16 two, bf16 and quantized rows one;
 * in lanes f32 and f16 are f32, quantized rows are bytes (mul_mat_bytes.h; mul_mat_shorts.h without AVX-512, which serves nothing
 * else then), and the rest is one term where vdpbf16ps is fast. What cannot be split (not finite, or below 2^-110 among no larger)
 * is found on the way and multiplied once more by a dot. Here: who is served by which kernels, and how a product is cut. Not here:
 * the two steps (mul_mat_terms_columns.c, mul_mat_terms_items.c), the kernels (kernels/amx/mul_mat_tiles.c), lanes (mul_mat.c). */
#include "lower/chain.h"
#include "kernels/mul_mat_packed.h"
#include "lower/weights.h"
#include "lower/refuse.h"
#include "mul_mat_terms_plan.h"

enum {
    K_BLOCK = 256,       /* a multiple of every quantized block; a panel of one term is then 16 KB of L1 */
    K_BLOCK_SPLIT = 128, /* of several terms: what an item has in L2 stays below the 1.3 MB that are really there */
    MIN_ROWS = 192,      /* packed columns come from L3 once per item: 128 rows are 8 % slower, 96 15 % */
    LANES_MIN_ROWS = 64,
    BYTES_MIN_COLUMNS = 9, /* of NEON and AVX2, where what dots do not take would be multiplied as floats */
    ITEMS = 16,            /* wanted, as far as MIN_ROWS allows */
    UNIT_BYTES = 1 << 17,  /* of b, in one chunk of packing */
};

static const double slice_flops = 2e7, lanes_slice_flops = 2.5e6, bytes_slice_flops = 7e6; /* some 10 us */

static bool on_tiles(uint32_t cpu)
{
    const uint32_t needs = AGK_AMX_BF16 | AGK_AVX512 | AGK_AVX512_BF16;
    return (cpu & needs) == needs;
}

/* Quantized rows without AVX-512. */
static bool in_shorts(const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const uint32_t needs = AGK_AVX2 | AGK_FMA | AGK_F16C;
    const agk_code_traits bytes = agk_code_traits_of(a->type);
    return (cpu & (needs | AGK_AVX512)) == needs && bytes.served &&
           (b->type == AGK_F32 || (b->type == AGK_Q8_0 && !bytes.wide));
}

bool agk_mm_terms_serve(const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const bool bytes = (cpu & AGK_NEON_DOTPROD) != 0 && agk_code_traits_of(a->type).served;
    const bool shorts = in_shorts(a, b, cpu), few = bytes || shorts; /* else rows become floats */
    if (b->ne[1] < (few ? BYTES_MIN_COLUMNS : AGK_PANEL_MIN_COLUMNS) || a->ne[1] < AGK_MM_UNIT || a->ne[0] == 0)
        return false;
    return on_tiles(cpu) || shorts || (cpu & (AGK_AVX512 | AGK_NEON)) != 0;
}

/* Sums of 16 bits, if vpdpbusd does not do without them: then all rows are bytes. */
static int8_t fours_of(int type, uint32_t cpu)
{
#ifdef AGK_BUILD_AVXVNNI
    if ((cpu & AGK_AVX_VNNI) != 0) return 8;
#endif
    (void)cpu;
    return (int8_t)agk_short_fours(type);
}

static bool as_bytes(agk_terms_plan *p, const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const uint32_t vnni = AGK_AVX512 | AGK_AVX512_VNNI;
    const agk_code_traits bytes = agk_code_traits_of(a->type);
    p->shorts = in_shorts(a, b, cpu);
    if (!p->shorts && (on_tiles(cpu) || ((cpu & vnni) != vnni && (cpu & AGK_NEON_DOTPROD) == 0) || !bytes.served ||
                       (b->type != AGK_F32 && (b->type != AGK_Q8_0 || bytes.wide)))) {
        return false;
    }
    p->bytes = bytes;
    p->lanes = true;
    p->terms = 1;
    p->put = AGK_PICK(mm_panels_put, cpu);
    if (p->shorts) {
        p->fours = fours_of(a->type, cpu);
        p->pack.bytes = AGK_PICK(mm_shorts_columns, cpu);
        p->row.shorts = AGK_PICK(mm_shorts_rows, cpu);
        p->tile = AGK_PICK(mm_shorts_product, cpu);
    } else {
        p->pack.bytes = AGK_PICK(mm_bytes_columns, cpu);
        p->row.bytes = AGK_PICK(mm_bytes_rows, cpu);
        p->tile = AGK_PICK(mm_bytes_product, cpu);
    }
    p->col.bytes = b->type == AGK_Q8_0 ? agk_mm_col_from_q8_0
                   : bytes.wide        ? AGK_PICK(mm_columns_q8_wide, cpu)
                                       : AGK_PICK(mm_columns_q8, cpu);
    return true;
}

static bool of_codebook(int type)
{
    return type == AGK_IQ2_XXS || type == AGK_IQ2_XS || type == AGK_IQ2_S || type == AGK_IQ3_XXS || type == AGK_IQ3_S ||
           type == AGK_IQ1_S || type == AGK_IQ1_M;
}

static void choose_kernels(agk_terms_plan *p, const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const bool plain = a->type == AGK_F32 || a->type == AGK_F16;
    const uint32_t fast_bf16 = AGK_AVX512_BF16 | AGK_FAST_BF16;
    if (as_bytes(p, a, b, cpu)) return;
    p->lanes = !on_tiles(cpu);
    p->whole = p->lanes && (plain || (cpu & fast_bf16) != fast_bf16);
    p->terms = p->whole ? 2 : a->type == AGK_F32 ? 3 : a->type == AGK_F16 ? 2 : 1;
    if (p->lanes) p->put = AGK_PICK(mm_panels_put, cpu);
    if (p->whole) {
        p->pack.floats = AGK_PICK(mm_blocks_pack_f32, cpu);
        p->tile = AGK_PICK(mm_floats_product, cpu);
    } else {
        p->pack.cols = p->lanes ? AGK_PICK(mm_pairs_columns, cpu) : AGK_PICK(mm_tiles_columns, cpu);
        p->tile = p->lanes ? AGK_PICK(mm_pairs_product, cpu) : AGK_PICK(mm_tiles_product, cpu);
        if (p->lanes)
            p->row.terms = AGK_PICK(mm_pairs_rows, cpu);
        else
            p->row.turned = AGK_PICK(mm_pairs_columns, cpu);
    }
    p->dot = a->type == AGK_F16 ? AGK_PICK(mm_dots_f16, cpu) : AGK_PICK(mm_dots_f32, cpu);
    if (a->type == AGK_BF16 && p->lanes && !p->whole) p->bf16 = AGK_PICK(mm_pairs_rows_bf16, cpu);
    p->codebooks = !p->lanes && of_codebook(a->type);
    if ((a->type == AGK_BF16 && !p->lanes) || p->codebooks) p->bf16_turned = AGK_PICK(mm_tiles_rows_bf16, cpu);
    if (p->codebooks)
        p->a_bf16 = AGK_PICK(mm_tiles_rows_iq, cpu);
    else if (a->type != AGK_F32)
        p->a_floats = agk_reader(a->type, cpu);
    if (b->type != AGK_F32) p->col.floats = agk_reader(b->type, cpu);
}

/* The operand of a sum, if a tile can read it: rows of floats. */
static const agk_view *addend(const agk_node *node, int i)
{
    if (i >= node->n_stages || node->stage[i].op != AGK_OP_add || node->stage[i].operand < 0) return NULL;
    const agk_view *v = agk_has(node, node->stage[i].operand) ? &node->src[node->stage[i].operand] : NULL;
    return v != NULL && v->type == AGK_F32 && v->nb[0] == 4 ? v : NULL;
}

/* Stages as a tile can carry them out: a bias, a function, another addend or that it becomes bf16, in this order, each or none.
 * False: others. */
static bool choose_end(agk_terms_plan *p, const agk_node *node)
{
    int8_t i = 0;
    p->bias = p->act = p->other = -1;
    const agk_view *bias = addend(node, i);
    if (bias != NULL && bias->ne[0] == node->dst.ne[0] && agk_nrows(bias) == 1) p->bias = i++;
    if (i < node->n_stages && agk_mm_end_takes(node->stage[i].op)) p->act = i++;
    const agk_view *other = addend(node, i);
    if (other != NULL && agk_same_shape(other, &node->dst)) p->other = i++;
    if (p->other < 0 && agk_mm_narrows(node)) ++i;
    return i == node->n_stages;
}

/* Whether columns of one term fit where their floats would be: the node that makes them can then write them at once. */
static bool fit_their_floats(const agk_view *b)
{
    const int64_t k = b->ne[0], n = b->ne[1];
    const bool dense = b->type == AGK_F32 && b->nb[0] == 4 && b->nb[1] == 4 * k && b->ne[2] == 1 && b->ne[3] == 1;
    return dense && (size_t)agk_terms_units(b) * agk_terms_unit_bytes(1, k) <= (size_t)(4 * k * n);
}

bool agk_mm_terms_narrow(agk_lowering *lowering)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    if (!on_tiles(lowering->cpu) || !agk_mm_terms_serve(a, b, lowering->cpu)) return false;
    agk_mm_terms_lower(lowering);
    const agk_terms_plan p = agk_terms_plan_of(lowering->node);
    lowering->fused = p.ends && p.terms == 1;
    return lowering->fused;
}

void agk_mm_terms_lower(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    agk_terms_plan p = {.k_block = K_BLOCK};
    choose_kernels(&p, a, b, lowering->cpu);
    p.ends = !p.lanes && choose_end(&p, node);
    node->gives_columns = node->for_columns && p.ends && p.terms == 1;
    node->has_columns = lowering->source != NULL && !p.lanes && p.terms == 1 && fit_their_floats(b);
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    if (!p.lanes && lowering->weights != NULL && layout != NULL && layout->sums == AGK_NO_SUMS) {
        p.packed = lowering->packed = agk_packed_acquire(lowering->weights, a);
    }
    if (agk_terms_splits(&p)) p.k_block = K_BLOCK_SPLIT;
    if (p.terms == 1 && !p.lanes && a->ne[0] <= AGK_TERMS_K_MOST) p.k_block = AGK_TERMS_K_MOST;
    if (p.whole && agk_traits(a->type)->blck_size <= K_BLOCK / 2) p.k_block = K_BLOCK / 2; /* as wide as two terms */
    const int64_t k = a->ne[0], m = a->ne[1], batches = b->ne[2] * b->ne[3], units = agk_terms_units(b);
    p.groups = (int32_t)agk_mm_ceil_div(units, AGK_TERMS_ITEM_COLUMNS / AGK_MM_UNIT);
    const double products = p.whole ? 1.0 : (double)(p.terms * (p.terms + 1) / 2),
                 flops = 2.0 * (double)k * (double)m * (double)b->ne[1] * products;
    const double slices = flops * (double)batches /
                          (!p.lanes         ? slice_flops
                           : p.bytes.served ? bytes_slice_flops
                                            : lanes_slice_flops);
    const int64_t panels = agk_mm_ceil_div(m, AGK_PANEL_ROWS);
    int64_t blocks = agk_mm_ceil_div(ITEMS, p.groups * batches);
    blocks = agk_mm_least(blocks, agk_mm_ceil_div(m, p.lanes ? LANES_MIN_ROWS : MIN_ROWS));
    blocks = agk_mm_least(blocks, 1 + (int64_t)(slices / (double)p.groups / (double)batches));
    while ((blocks & (blocks - 1)) != 0) blocks &= blocks - 1; /* a power of two is even for most numbers of threads */
    const int64_t fewest = agk_mm_ceil_div(m, agk_terms_max_rows(&p));
    p.row_blocks = (int32_t)agk_mm_least(blocks > fewest ? blocks : fewest, panels);
    const int64_t items = (int64_t)p.row_blocks * p.groups * batches;
    const double per_chunk = (double)items / (slices + 1e-9);
    p.per_chunk = (int32_t)(slices <= 1.5 ? (double)items : per_chunk < 1.0 ? 1.0 : per_chunk);

    const size_t columns = AGK_MM_UNIT * agk_mm_col_bytes(p.bytes.served ? AGK_MM_Q8 : AGK_MM_FLOATS, p.k_block);
    const size_t floats = p.col.floats == NULL ? 0 : columns > (size_t)k * 4 ? columns : (size_t)k * 4;
    const size_t item_bytes = (size_t)(agk_terms_max_rows(&p) / AGK_PANEL_ROWS) * (AGK_TERMS_ITEM_COLUMNS / 32) *
                                  AGK_PANEL_SUMS * sizeof(float) +
                              agk_terms_panel_of(&p, p.k_block) +
                              (p.lanes ? 0 : (size_t)(AGK_MM_UNIT * p.k_block) * sizeof(float));
    lowering->scratch_size = floats > item_bytes ? floats : item_bytes;
    if (!node->has_columns) lowering->work_size = (size_t)(units * batches) * (agk_terms_unit_of(&p, k) + 1);
    p.units_per_chunk = (int32_t)(slices <= 1.5 ? units * batches : 1 + UNIT_BYTES / (AGK_MM_UNIT * 4 * k));
    memcpy(&lowering->node->aux, &p, sizeof p);
    if (node->has_columns)
        lowering->source_k = p.k_block;
    else
        agk_add_step(lowering, agk_terms_columns_step, agk_mm_ceil_div(units * batches, p.units_per_chunk));
    agk_add_step(lowering, agk_terms_items_step, agk_mm_ceil_div(items, p.per_chunk));
}
