/* mul_mat_id: multiplies each column of b by the matrix of the expert that an index names.
 *
 * Three steps: slots are grouped by expert, the columns of an expert are brought together (experts.c), then experts
 * and blocks of rows are multiplied (experts_products.c). The kernels are those of the schemes of mul_mat. Packed
 * weights are multiplied as integers. Quantized experts that are not weights are packed for one product if they have 4
 * columns each on average. Other experts use dots up to 8 columns, blocks of floats above. One token needs none of this
 * (experts_token.c). Not here: products with one matrix (mul_mat.c). */
#include "lower/refuse.h"
#include "lower/strided.h"

#include "experts.h"

/* Average number of columns for each expert from which rows that are not weights are packed for one product. On a
 * Zen 4, 64 tokens with 4 of 32 experts of 512 x 256 took 660 us as floats, and packed 301 (q8_0), 287 (q4_0), 309
 * (q4_K). Points of codebooks take longer to look up: with 24 columns for each expert, iq2_xxs takes as long packed as
 * by floats. */
enum { PACKED_FROM = 4, PACKED_FROM_OF_POINTS = 32 };

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *ids = &node->src[2], *dst = &node->dst;
    const agk_type_traits *ta = agk_traits(a->type), *tb = agk_traits(b->type);
    if (ta->to_float == NULL || ta->vec_dot_type == AGK_NONE || tb->to_float == NULL ||
        (b->type != AGK_F32 && b->type != (int32_t)ta->vec_dot_type) || ids->type != AGK_I32 || dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "as is %s, b is %s and ids are %s: there is no kernel of such a product",
                          agk_type_name(a->type), agk_type_name(b->type), agk_type_name(ids->type));
    }
    const bool fits = a->ne[0] == b->ne[0] && a->ne[0] % ta->blck_size == 0 && a->ne[3] == 1 && b->ne[3] == 1 &&
                      ids->ne[1] == b->ne[2] && ids->ne[2] == 1 && ids->ne[3] == 1 &&
                      (b->ne[1] == 0 ? ids->ne[0] == 0 : ids->ne[0] % b->ne[1] == 0) && dst->ne[0] == a->ne[1] &&
                      dst->ne[1] == ids->ne[0] && dst->ne[2] == b->ne[2] && dst->ne[3] == 1;
    if (!fits) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "as and b have rows of %lld and %lld elements, %lld x %lld ids choose for %lld x %lld columns: no fit",
            (long long)a->ne[0], (long long)b->ne[0], (long long)ids->ne[0], (long long)ids->ne[1], (long long)b->ne[1],
            (long long)b->ne[2]);
    }
    if (ids->ne[0] * ids->ne[1] > INT32_MAX / 2) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "ids has %lld elements, more than 2^30",
                          (long long)(ids->ne[0] * ids->ne[1]));
    }
    if (a->nb[0] != (int64_t)ta->type_size || b->nb[0] != (int64_t)tb->type_size || dst->nb[0] != 4) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows must be contiguous, elements are %lld and %lld bytes apart",
                          (long long)a->nb[0], (long long)b->nb[0]);
    }
    return AGK_OK;
}

static agk_experts_plan choose_kernels(agk_lowering *lowering)
{
    const agk_view *a = &lowering->node->src[0];
    const uint32_t cpu = lowering->cpu;
    const bool exact = agk_mm_is_exact(lowering->node);
    agk_experts_plan p = {.dots = agk_mm_dots_of(a->type, AGK_F32, true, exact, cpu), /* columns are read as floats */
                          .block = AGK_PICK(mm_blocks_f32, cpu),
                          .pack = AGK_PICK(mm_blocks_pack_f32, cpu),
                          .read_a = a->type == AGK_F32 ? NULL : agk_reader(a->type, cpu),
                          .read_b = agk_reader(lowering->node->src[1].type, cpu)};
    p.packed_lanes = (agk_mm_block_fn *)agk_mm_kernel_of_type("mm_packed_", a->type, cpu);
    if (exact || p.packed_lanes == NULL || a->ne[1] < AGK_PACKED_ROWS) return p;
    p.packed = agk_packed_keep(lowering);
    const agk_view *ids = &lowering->node->src[2];
    const int64_t from = agk_packed_layout_of(a->type)->points ? PACKED_FROM_OF_POINTS : PACKED_FROM;
    p.packs = p.packed != NULL || (p.dots.columns.form == AGK_MM_Q8 && ids->ne[0] * ids->ne[1] >= from * a->ne[2]);
    if (p.packs) p.pack_rows = AGK_PICK(mm_packed_group, cpu);
    p.packed_tiles = (agk_mm_block_fn *)agk_mm_kernel_of_type("mm_packed_tiles_", a->type, cpu);
    return p;
}

static size_t scratch_bytes(const agk_experts_plan *p, int type, int64_t k)
{
    if (p->packs) {
        const size_t columns = AGK_PACKED_MOST * agk_mm_col_bytes(AGK_MM_Q8, k) + (size_t)k * sizeof(float);
        size_t product = (size_t)(AGK_PACKED_MOST * AGK_EXPERTS_BLOCK_ROWS) * sizeof(float);
        if (p->packed == NULL) product += 2 * agk_packed_group_bytes(agk_packed_layout_of(type), k);
        return columns > product ? columns : product;
    }
    const int64_t widened = p->dots.rows.form != AGK_MM_AS_IT_IS ? AGK_EXPERTS_DOT_ROWS * AGK_EXPERTS_DOT_K : 0;
    const size_t dots = (size_t)(AGK_EXPERTS_DOTS * AGK_EXPERTS_DOT_ROWS + widened) * sizeof(float);
    const int64_t wide = AGK_EXPERTS_BLOCK_COLUMNS + (p->read_a != NULL ? AGK_EXPERTS_BLOCK_K : 0);
    const size_t product = (size_t)(AGK_EXPERTS_BLOCK_ROWS * wide) * sizeof(float);
    const size_t unit = AGK_MM_UNIT * agk_mm_col_bytes(AGK_MM_FLOATS, AGK_EXPERTS_BLOCK_K);
    const size_t column = p->dots.columns.form != AGK_MM_AS_IT_IS ? (size_t)k * sizeof(float) : 0;
    size_t most = dots > product ? dots : product;
    most = unit > most ? unit : most;
    return column > most ? column : most;
}

/* Decides on the rows of an item, so that it takes some 10 us, and on the slots and items of a chunk. */
static void cut(agk_experts_plan *p, const agk_node *node)
{
    const agk_view *a = &node->src[0], *ids = &node->src[2];
    const int64_t k = a->ne[0], m = a->ne[1], experts = a->ne[2], slots = ids->ne[0] * ids->ne[1];
    /* ns of one thread: 8 for 1000 products; for an element of a, 0.3 if it is widened, 0.1 if it is read as it
     * lies, 0.04 if it is packed */
    const double columns = (double)slots / (double)agk_mm_least(slots, experts);
    const double read_ns = p->packed != NULL ? 0.04 : p->packs ? 0.1 : p->read_a != NULL ? 0.3 : 0.1;
    const double row_ns = (double)k * (columns * 0.008 + read_ns) + 10.0;
    const double all_ns = row_ns * (double)m * (double)agk_mm_least(slots, experts);
    const double rows = 10000.0 / row_ns;
    const int64_t blocks = rows < (double)m ? (int64_t)rows / AGK_EXPERTS_BLOCK_ROWS + 1 : m;
    p->rows_per_item = agk_mm_least(blocks * AGK_EXPERTS_BLOCK_ROWS, m);
    p->items_per_expert = agk_mm_ceil_div(m, p->rows_per_item);
    const int64_t items = p->items_per_expert * agk_experts_most(node);
    p->per_chunk = (int32_t)(all_ns < 15000.0 ? items : agk_mm_ceil_div(items, 500000));
    const int64_t chunk = agk_units_per_chunk(slots, 0.4 * (double)k + 20.0);
    p->columns_per_chunk = (int32_t)(agk_mm_ceil_div(chunk, AGK_MM_UNIT) * AGK_MM_UNIT);
}

agk_status agk_lower_mul_mat_id(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(&node->dst) == 0) return status;
    const agk_view *a = &node->src[0], *ids = &node->src[2];
    const int64_t k = a->ne[0], experts = a->ne[2], slots = ids->ne[0] * ids->ne[1];
    if (k == 0 || experts == 0) { /* every row is cleared */
        agk_add_step(lowering, agk_experts_group_step, 1);
        lowering->work_size = agk_experts_table_bytes(node);
        return AGK_OK;
    }
    agk_experts_plan p = choose_kernels(lowering);
    if (agk_experts_token_lower(lowering, &p)) return AGK_OK;
    lowering->work_size = agk_experts_table_bytes(node);
    int64_t shared = 0;
    if (agk_experts_share(&p, node)) {
        shared = node->src[1].ne[1] * node->src[1].ne[2];
        lowering->work_size += (size_t)shared * agk_mm_col_bytes(AGK_MM_Q8, k);
    }
    agk_add_step(lowering, agk_experts_group_step,
                 1 + (shared > 0 ? agk_chunks(shared, agk_experts_shared_per_chunk(node)) : 0));
    cut(&p, node);
    lowering->scratch_size = scratch_bytes(&p, a->type, k);
    lowering->work_size += (size_t)(2 * slots) * agk_mm_col_bytes(AGK_MM_FLOATS, k);
    agk_add_step(lowering, agk_experts_columns_step, agk_mm_ceil_div(slots, p.columns_per_chunk));
    agk_add_step(lowering, agk_experts_product_step,
                 agk_mm_ceil_div(p.items_per_expert * agk_experts_most(node), p.per_chunk));
    memcpy(&node->aux, &p, sizeof p);
    return AGK_OK;
}
