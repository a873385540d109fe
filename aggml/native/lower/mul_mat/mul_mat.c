/* mul_mat: how a node is checked, which kernels it gets, how it is cut.
 *
 * Few columns: one step of dots over rows of a, after one that converts columns where b is not what the dot reads.
 * Many columns: tiles. Where a is multiplied as it lies (f32, bf16), each item packs its 48 columns of b for
 * itself: packing costs 6 / rows of the product, and nothing crosses between threads. Where rows of a must be widened
 * first (f16, quantized), b is packed by a step of its own and each item widens 32 rows for some 100 columns.
 *
 * From 32 columns on, with AVX-512 or NEON: mul_mat_terms.c. Not here: the steps (mul_mat_steps.c), the kernels (mul_mat_blocks.c, avx2/, avx512/). Source of the rules:
 * ggml_mul_mat. */
#include "lower/chain.h"
#include "lower/refuse.h"
#include "lower/strided.h"
#include "kernels/mul_mat_panels.h"
#include "mul_mat_plan.h"

enum {
    K_BLOCK = 512, /* a tile of b is then 96 KB, a tenth of L2; a multiple of 64 */
    MIN_ROWS = 96, /* fewer rows per item would make packing b cost more than 7 % */
    MAX_ROWS = 768,
    DOT_COLUMNS = 16, /* up to here dots, unless rows are shorter than DOT_K: then adding up the lanes costs more */
    DOT_COLUMNS_Q = 8,
    DOT_COLUMNS_AMX = 4,
    DOT_K = 64,
    K_GRAIN = 256,       /* of rows that are widened: a multiple of every block; 16 columns of it fit in L1_ELEMENTS */
    L1_ELEMENTS = 7168,  /* f32 of columns: 28 of 48 KB */
    AMX_K_BLOCK = 2048,  /* 48 columns of it are 192 KB of L2 */
    WIDE_TILES = 11,     /* of 48 columns, at least, for which rows are widened once: 3 to 8 % against 2 */
    AMX_PANEL = 1 << 20, /* bytes of a that stay in L2 while all columns pass by */
    FAR_A = 1 << 20,     /* bytes: one matrix against L2, the whole result against L3 */
    FAR_C = 8 << 20,
    SLICE_BYTES = 1 << 17, /* of a source, in one chunk of packing or converting */
};

/* What one thread does in some 10 us, of AVX-512; chunks follow from the shape alone. */
static const double slice_flops = 2.5e6, slice_read = 250e3, amx_slice_flops = 1e7;
static const double widen_slices = 1e-5; /* an element of a block to f32: 0.1 ns */

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    if (node->n_src < 2) return agk_refuse(lowering, AGK_INVALID, "needs two operands, not %d", node->n_src);
    const agk_type_traits *ta = agk_traits(a->type), *tb = agk_traits(b->type);
    if (ta->to_float == NULL || ta->vec_dot_type == AGK_NONE) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s", agk_type_name(a->type));
    }
    if (a->type == AGK_F32 && b->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is f32, so b must be f32, not %s", agk_type_name(b->type));
    }
    if (b->type != AGK_F32 && b->type != (int32_t)ta->vec_dot_type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, so b must be f32 or %s, not %s", ta->name,
                          agk_type_name((int)ta->vec_dot_type), agk_type_name(b->type));
    }
    if (tb->to_float == NULL) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "b is %s", agk_type_name(b->type));
    }
    const bool narrows = agk_mm_narrows(node);
    if (dst->type != AGK_F32 && !narrows) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the result must be f32, not %s", agk_type_name(dst->type));
    }
    if (a->ne[0] != b->ne[0] || a->ne[0] % ta->blck_size != 0) {
        return agk_refuse(lowering, AGK_INVALID, "rows of a (%s) have %lld elements, those of b %lld", ta->name,
                          (long long)a->ne[0], (long long)b->ne[0]);
    }
    for (int i = 2; i < 4; ++i) {
        if (a->ne[i] == 0 ? b->ne[i] != 0 : b->ne[i] % a->ne[i] != 0) {
            return agk_refuse(lowering, AGK_INVALID, "a has %lld matrices in dimension %d, b %lld, no multiple of it",
                              (long long)a->ne[i], i, (long long)b->ne[i]);
        }
    }
    if (dst->ne[0] != a->ne[1] || dst->ne[1] != b->ne[1] || dst->ne[2] != b->ne[2] || dst->ne[3] != b->ne[3]) {
        return agk_refuse(lowering, AGK_INVALID, "the result is [%lld, %lld, %lld, %lld], not [%lld, %lld, %lld, %lld]",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)dst->ne[2], (long long)dst->ne[3],
                          (long long)a->ne[1], (long long)b->ne[1], (long long)b->ne[2], (long long)b->ne[3]);
    }
    if (a->nb[0] != (int64_t)ta->type_size || b->nb[0] != (int64_t)tb->type_size || dst->nb[0] != (narrows ? 2 : 4)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "rows must be contiguous, elements are %lld, %lld and %lld bytes apart", (long long)a->nb[0],
                          (long long)b->nb[0], (long long)dst->nb[0]);
    }
    return AGK_OK;
}

static void columns_q8(agk_mm_plan *p, int type, uint32_t cpu)
{
    p->col_form = AGK_MM_Q8;
    p->col.block = type == AGK_Q8_0 ? agk_mm_col_from_q8_0 : AGK_PICK(mm_columns_q8, cpu);
}

static void columns_f32(agk_mm_plan *p, int type, uint32_t cpu)
{
    if (type == AGK_F32) return;
    p->col_form = AGK_MM_FLOATS;
    p->col.floats = agk_reader(type, cpu);
}

static void rows_f32(agk_mm_plan *p, int type, uint32_t cpu)
{
    p->row_form = AGK_MM_FLOATS;
    p->row.floats = agk_reader(type, cpu);
}

agk_mm_block_fn *agk_mm_quantized_dot(int type, uint32_t cpu)
{
    const uint32_t needs = AGK_AVX2 | AGK_FMA | AGK_F16C;
    const bool lanes = (cpu & needs) == needs, neon = (cpu & AGK_NEON_DOTPROD) != 0;
    switch (type) {
    case AGK_Q8_0: return (cpu & AGK_AVX2) != 0 || neon ? AGK_PICK(mm_dots_q8_0, cpu) : NULL;
    case AGK_Q4_0: return (cpu & AGK_AVX2) != 0 || neon ? AGK_PICK(mm_dots_q4_0, cpu) : NULL;
    case AGK_Q4_1: return lanes ? AGK_PICK(mm_dots_q4_1, cpu) : NULL;
    case AGK_Q5_0: return lanes ? AGK_PICK(mm_dots_q5_0, cpu) : NULL;
    case AGK_Q5_1: return lanes ? AGK_PICK(mm_dots_q5_1, cpu) : NULL;
    case AGK_IQ4_NL: return lanes ? AGK_PICK(mm_dots_iq4_nl, cpu) : NULL;
    case AGK_MXFP4: return lanes ? AGK_PICK(mm_dots_mxfp4, cpu) : NULL;
    case AGK_Q2_K: return lanes ? AGK_PICK(mm_dots_q2_k, cpu) : NULL;
    case AGK_Q3_K: return lanes ? AGK_PICK(mm_dots_q3_k, cpu) : NULL;
    case AGK_Q4_K: return lanes || neon ? AGK_PICK(mm_dots_q4_k, cpu) : NULL;
    case AGK_Q5_K: return lanes || neon ? AGK_PICK(mm_dots_q5_k, cpu) : NULL;
    case AGK_Q6_K: return lanes ? AGK_PICK(mm_dots_q6_k, cpu) : NULL;
    case AGK_IQ4_XS: return lanes ? AGK_PICK(mm_dots_iq4_xs, cpu) : NULL;
    case AGK_IQ2_XXS: return lanes ? AGK_PICK(mm_dots_iq2_xxs, cpu) : NULL;
    case AGK_IQ2_XS: return lanes ? AGK_PICK(mm_dots_iq2_xs, cpu) : NULL;
    case AGK_IQ2_S: return lanes ? AGK_PICK(mm_dots_iq2_s, cpu) : NULL;
    case AGK_IQ3_XXS: return lanes ? AGK_PICK(mm_dots_iq3_xxs, cpu) : NULL;
    case AGK_IQ3_S: return lanes ? AGK_PICK(mm_dots_iq3_s, cpu) : NULL;
    case AGK_IQ1_S: return lanes ? AGK_PICK(mm_dots_iq1_s, cpu) : NULL;
    case AGK_IQ1_M: return lanes ? AGK_PICK(mm_dots_iq1_m, cpu) : NULL;
    case AGK_TQ1_0: return lanes ? AGK_PICK(mm_dots_tq1_0, cpu) : NULL;
    case AGK_TQ2_0: return lanes ? AGK_PICK(mm_dots_tq2_0, cpu) : NULL;
    default: return NULL;
    }
}

static void lower_dots(agk_lowering *lowering, agk_mm_plan *p)
{
    const uint32_t cpu = lowering->cpu;
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    const bool readable = b->type == AGK_F32 || b->type == AGK_Q8_0;
    agk_mm_block_fn *as_q8 = readable ? agk_mm_quantized_dot(a->type, cpu) : NULL;
    const int64_t blck = agk_traits(a->type)->blck_size;
    const uint32_t bf16 = AGK_AVX512 | AGK_AVX512_BF16;
    if (as_q8 != NULL) {
        p->product = as_q8;
        columns_q8(p, b->type, cpu);
    } else if (a->type == AGK_BF16 && (cpu & bf16) == bf16) {
        p->product = AGK_PICK(mm_dots_bf16_bf16, cpu);
        if (b->type == AGK_F32) {
            p->col_form = AGK_MM_BF16;
            p->col.bf16 = AGK_PICK(f32_to_bf16, cpu);
        }
    } else {
        columns_f32(p, b->type, cpu);
        p->product = a->type == AGK_F16    ? AGK_PICK(mm_dots_f16, cpu)
                     : a->type == AGK_BF16 ? AGK_PICK(mm_dots_bf16, cpu)
                                           : AGK_PICK(mm_dots_f32, cpu);
        if (blck > 1) rows_f32(p, a->type, cpu);
        if (p->col_form == AGK_MM_NATURAL && b->ne[1] > 4 && b->nb[1] % 4096 == 0) {
            /* as they lie, all columns would share one set of L1 */
            p->col_form = AGK_MM_FLOATS;
            p->col.floats = agk_traits(AGK_F32)->to_float;
        }
    }
    const int64_t k = a->ne[0] > 0 ? a->ne[0] : 1, grain = blck > 1 ? K_GRAIN : DOT_K;
    const int64_t in_l1 = L1_ELEMENTS / b->ne[1] / grain * grain;
    p->k_block = (int32_t)(as_q8 != NULL ? k : agk_mm_least(k, in_l1));
    const double row_flops = 2.0 * (double)a->ne[0] * (double)b->ne[1];
    const double widening = p->row_form != AGK_MM_NATURAL ? widen_slices * (double)a->ne[0] : 0.0;
    const double row_slices = row_flops / slice_flops + (double)agk_row_size(a->type, a->ne[0]) / slice_read + widening;
    const double batch_slices = row_slices * (double)a->ne[1];
    const int64_t batches = b->ne[2] * b->ne[3], most = agk_mm_ceil_div(a->ne[1], 4);
    const double blocks = batch_slices * (double)batches <= 1.5 ? 1.0 : batch_slices + 0.5;
    p->row_blocks = (int32_t)(blocks < 1.0 ? 1 : blocks < (double)most ? (int64_t)blocks : most);
    const double per_chunk = (double)p->row_blocks / batch_slices; /* items of 10 us */
    p->per_chunk = per_chunk < 1.0 ? 1 : (int64_t)(per_chunk < 1e6 ? per_chunk : 1e6);
    const int64_t items = p->row_blocks * batches;
    if (batch_slices * (double)batches <= 1.5) p->per_chunk = items;
    if (p->row_form != AGK_MM_NATURAL) {
        lowering->scratch_size = AGK_MM_WIDENED_ROWS * agk_mm_row_bytes(p->row_form, p->k_block);
    }
    if (p->col_form != AGK_MM_NATURAL) {
        const int64_t columns = agk_nrows(b);
        lowering->work_size = (size_t)columns * agk_mm_col_bytes(p->col_form, b->ne[0]);
        p->col_chunk = agk_mm_least(columns, 1 + SLICE_BYTES / (int64_t)(agk_row_size(b->type, b->ne[0]) + 1));
        agk_add_step(lowering, agk_mm_convert_step, agk_mm_ceil_div(columns, p->col_chunk));
    }
    agk_add_step(lowering, agk_mm_dots_step, agk_mm_ceil_div(items, p->per_chunk));
}

/* bf16 with few columns, rows as they lie: the tiles of AMX have 16 times the products of f32 lanes. */
static bool on_tiles(const agk_view *a, uint32_t cpu)
{
    const uint32_t needs = AGK_AMX_BF16 | AGK_AVX512 | AGK_AVX512_BF16;
    return a->type == AGK_BF16 && (cpu & needs) == needs;
}

static void tile_kernels(agk_lowering *lowering, agk_mm_plan *p)
{
    const uint32_t cpu = lowering->cpu;
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    const uint32_t bf16 = AGK_AVX512 | AGK_AVX512_BF16, vnni = AGK_AVX512 | AGK_AVX512_VNNI;
    if (a->type == AGK_BF16 && (cpu & bf16) == bf16) {
        p->unit_form = AGK_MM_BF16_PAIRS;
        p->pack = AGK_PICK(mm_blocks_pack_bf16, cpu);
        p->product = AGK_PICK(mm_blocks_bf16, cpu);
        columns_f32(p, b->type, cpu);
    } else if ((a->type == AGK_Q8_0 || a->type == AGK_Q4_0) && (cpu & vnni) == vnni) {
        p->unit_form = p->row_form = AGK_MM_Q8;
        p->pack = AGK_PICK(mm_blocks_pack_q8, cpu);
        p->product = AGK_PICK(mm_blocks_q8, cpu);
        p->row.block = a->type == AGK_Q8_0 ? AGK_PICK(mm_blocks_rows_q8_0, cpu) : AGK_PICK(mm_blocks_rows_q4_0, cpu);
        columns_q8(p, b->type, cpu);
    } else {
        p->unit_form = AGK_MM_FLOATS;
        p->pack = AGK_PICK(mm_blocks_pack_f32, cpu);
        p->product = AGK_PICK(mm_blocks_f32, cpu);
        columns_f32(p, b->type, cpu);
        if (a->type != AGK_F32) rows_f32(p, a->type, cpu);
    }
}

static void lower_tiles(agk_lowering *lowering, agk_mm_plan *p)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    tile_kernels(lowering, p);
    const int64_t k = a->ne[0], m = a->ne[1], units = agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT);
    const int64_t batches = b->ne[2] * b->ne[3];
    const bool amx = on_tiles(a, lowering->cpu);
    const double per_slice = amx ? amx_slice_flops : slice_flops;
    p->k_block = (lowering->cpu & AGK_VECTORS) == 0 && k > 0 && k < 1 << 30 ? (int32_t)k
                 : amx && k > AMX_K_BLOCK                                   ? AMX_K_BLOCK
                 : amx                                                      ? (int32_t)(k > 0 ? k : 1)
                                                                            : K_BLOCK;
    p->tiles = (int32_t)agk_mm_ceil_div(units, AGK_MM_MAX_UNITS);
    p->tiles_per_item = 1;
    p->shared = p->row_form != AGK_MM_NATURAL || amx;
    p->a_far = !p->shared && (int64_t)agk_row_size(a->type, k) * m > FAR_A;
    p->c_far = m * b->ne[1] * batches * 4 > FAR_C;
    const double tile_slices = 2.0 * (double)k * (double)m * AGK_MM_MAX_UNITS * AGK_MM_UNIT / per_slice;
    const double slices = tile_slices * (double)p->tiles * (double)batches;
    int64_t row_blocks;
    if (amx) {
        const int64_t in_l2 = AMX_PANEL / (2 * p->k_block) / 32 * 32, rows = in_l2 < MAX_ROWS ? in_l2 : MAX_ROWS;
        const int64_t by_work = (int64_t)(slices / (double)(p->tiles * batches)) + 1; /* no smaller than a slice */
        row_blocks = agk_mm_ceil_div(m, rows);
        row_blocks = row_blocks > agk_mm_least(8, by_work) ? row_blocks : agk_mm_least(8, by_work);
        row_blocks = agk_mm_least(row_blocks, agk_mm_ceil_div(m, 32));
    } else if (p->shared) {
        row_blocks = agk_mm_ceil_div(m, AGK_MM_WIDENED_ROWS);
        const double tiles = (double)row_blocks / (tile_slices + 1e-9); /* of 10 us each */
        p->tiles_per_item = (int32_t)(tiles < 2.0 ? 2 : tiles < (double)p->tiles ? (int64_t)tiles : p->tiles);
        if (p->tiles_per_item < WIDE_TILES) p->tiles_per_item = WIDE_TILES;
        p->tiles_per_item = (int32_t)agk_mm_least(p->tiles_per_item, p->tiles);
    } else {
        const int64_t items = p->tiles * batches; /* 16 items at least, but no smaller than a slice */
        row_blocks = agk_mm_least(agk_mm_ceil_div(16, items), (int64_t)(slices / (double)items));
        row_blocks = agk_mm_least(row_blocks, m / MIN_ROWS);
        const int64_t fewest = agk_mm_ceil_div(m, MAX_ROWS);
        if (row_blocks < fewest) row_blocks = fewest;
    }
    p->row_blocks = (int32_t)row_blocks;
    const int64_t items = agk_mm_ceil_div(p->tiles, p->tiles_per_item) * row_blocks * batches;
    const double per_chunk = (double)items / (slices + 1e-9);
    p->per_chunk = per_chunk < 1.0 ? 1 : (int64_t)(per_chunk < (double)items ? per_chunk : (double)items);
    if (slices <= 1.5) p->per_chunk = items;

    const int64_t k_most = agk_mm_least(k, p->k_block);
    const size_t scratch_cols = p->col_form == AGK_MM_NATURAL ? 0 : AGK_MM_UNIT * agk_mm_col_bytes(p->col_form, k_most);
    if (p->shared) {
        const size_t rows =
            p->row_form == AGK_MM_NATURAL ? 0 : AGK_MM_WIDENED_ROWS * agk_mm_row_bytes(p->row_form, k_most);
        lowering->scratch_size = rows > scratch_cols ? rows : scratch_cols;
        lowering->work_size = (size_t)(units * batches) * agk_mm_unit_bytes(p->unit_form, k);
        const int64_t unit_source = 1 + AGK_MM_UNIT * (int64_t)agk_row_size(b->type, k);
        p->col_chunk = slices <= 1.5 ? units * batches : 1 + SLICE_BYTES / unit_source;
        agk_add_step(lowering, agk_mm_pack_step, agk_mm_ceil_div(units * batches, p->col_chunk));
    } else {
        lowering->scratch_size = scratch_cols + AGK_MM_MAX_UNITS * agk_mm_unit_bytes(p->unit_form, k_most);
    }
    agk_add_step(lowering, agk_mm_tiles_step, agk_mm_ceil_div(items, p->per_chunk));
}

agk_status agk_lower_mul_mat(agk_lowering *lowering)
{
    const agk_status status = check(lowering);
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    if (status != AGK_OK || agk_nelements(&lowering->node->dst) == 0) return status;
    if (agk_mm_narrows(lowering->node)) {
        return agk_mm_terms_narrow(lowering) ? AGK_OK
                                             : agk_refuse(lowering, AGK_UNSUPPORTED, "only tiles make it bf16");
    }
    if (agk_lower_mul_mat_packed(lowering)) return agk_chain_prepare(lowering, false);
    if (agk_mm_terms_serve(a, b, lowering->cpu)) {
        agk_mm_terms_lower(lowering);
        return agk_chain_prepare(lowering, false);
    }
    const bool quantized = agk_traits(a->type)->blck_size > 1;
    agk_mm_plan p = {0};
    const int64_t few = quantized ? DOT_COLUMNS_Q : on_tiles(a, lowering->cpu) ? DOT_COLUMNS_AMX : DOT_COLUMNS;
    if (b->ne[1] <= 2 || (b->ne[1] <= few && a->ne[0] >= DOT_K)) {
        lower_dots(lowering, &p);
    } else {
        lower_tiles(lowering, &p);
    }
    memcpy(&lowering->node->aux, &p, sizeof p);
    return agk_chain_prepare(lowering, false);
}
