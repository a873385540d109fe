/* mul_mat of packed weights with 1 to 16 columns (packed.h): columns are quantized and laid side by side, then groups of 16
 * rows are multiplied, each packed by whoever comes to it first.
 *
 * It pays where weights come from memory or are multiplied by several columns: on a Sapphire Rapids, two threads, K 4096, the
 * share of the read bandwidth goes from 75 to 89 % (q4_0) and 65 to 85 % (q4_K) for one column; for eight, products per
 * second grow 1.8 times (q8_0), 2.4 times (q4_0) and 3 times (q4_K). Where rows as they lie reach the same for one column
 * (q8_0, q6_K), a single column is no reason to pack.
 * Not here: the layout and when a group is packed (packed.c, runtime/packing.c), the choice (mul_mat.c). */
#include "../chain.h"
#include "../packed.h"
#include "../strided.h"
#include "mul_mat_plan.h"

enum { K_CHUNK = 2048 }; /* of the columns, per chunk; a multiple of 64 */

/* What one thread does in some 5 us: so little that two threads end at the same time. */
static const double slice_flops = 1.5e6, slice_read = 1e5;

typedef struct plan {
    agk_mm_block_fn *product;
    agk_mm_convert_fn *quantize;
    const agk_packed_layout *layout;
    agk_packed *packed;
    int64_t groups_per_chunk;
    int32_t tiles; /* of columns */
} plan;

_Static_assert(sizeof(plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux");

static plan plan_of(const agk_node *node)
{
    plan p;
    memcpy(&p, &node->aux, sizeof p);
    return p;
}

static int64_t tile_start(const agk_node *node, const plan *p, int64_t tile)
{
    return node->src[1].ne[1] * tile / p->tiles;
}

static agk_status columns_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], k0 = chunk * K_CHUNK, kn = agk_mm_least(K_CHUNK, k - k0);
    const size_t bytes = agk_mm_col_bytes(AGK_MM_Q8, kn);
    for (int64_t tile = 0; tile < p.tiles; ++tile) {
        const int64_t first = tile_start(node, &p, tile), n = tile_start(node, &p, tile + 1) - first;
        for (int64_t j = 0; j < n; ++j) {
            const char *column = (const char *)agk_data(task, b) + (first + j) * b->nb[1];
            p.quantize(column + agk_row_size(b->type, k0), (char *)task->scratch + (size_t)j * bytes, kn);
        }
        char *out = (char *)agk_work(task, node) + agk_packed_columns_bytes(first, k) + agk_packed_columns_bytes(n, k0);
        agk_packed_columns(p.layout, n, kn, task->scratch, bytes, out);
    }
    return AGK_OK;
}

static agk_status product_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *c = &node->dst;
    const int64_t k = node->src[0].ne[0], m = c->ne[0];
    const int64_t first = chunk * p.groups_per_chunk, row = first * AGK_PACKED_ROWS;
    const int64_t rows = agk_mm_least(p.groups_per_chunk * AGK_PACKED_ROWS, m - row);
    const char *packed = NULL;
    for (int64_t i = agk_mm_ceil_div(rows, AGK_PACKED_ROWS) - 1; i >= 0; --i)
        packed = agk_packed_ready(p.packed, first + i);
    for (int64_t tile = 0; tile < p.tiles; ++tile) {
        const int64_t from = tile_start(node, &p, tile);
        const agk_mm_block block = {.k = k,
                                    .rows = rows,
                                    .cols = tile_start(node, &p, tile + 1) - from,
                                    .a = packed,
                                    .lda = agk_packed_group_bytes(p.layout, k),
                                    .b = (char *)agk_work(task, node) + agk_packed_columns_bytes(from, k),
                                    .c = (float *)(void *)((char *)agk_data(task, c) + from * c->nb[1]) + row,
                                    .ldc = (size_t)c->nb[1]};
        p.product(&block);
    }
    if (node->n_stages > 0) {
        agk_chain_run(task, node, &(agk_chain_block){.i0 = row, .n = rows, .rows = c->ne[1]}, false);
    }
    return AGK_OK;
}

agk_mm_block_fn *agk_packed_product(int type, uint32_t cpu)
{
    const uint32_t needs = AGK_AVX512 | AGK_AVX512_VNNI;
    if ((cpu & needs) != needs) return NULL;
    switch (type) {
    case AGK_Q8_0: return AGK_PICK(mm_packed_q8_0, cpu);
    case AGK_Q4_0: return AGK_PICK(mm_packed_q4_0, cpu);
    case AGK_Q4_1: return AGK_PICK(mm_packed_q4_1, cpu);
    case AGK_Q5_0: return AGK_PICK(mm_packed_q5_0, cpu);
    case AGK_Q5_1: return AGK_PICK(mm_packed_q5_1, cpu);
    case AGK_IQ4_NL: return AGK_PICK(mm_packed_iq4_nl, cpu);
    case AGK_MXFP4: return AGK_PICK(mm_packed_mxfp4, cpu);
    case AGK_Q2_K: return AGK_PICK(mm_packed_q2_k, cpu);
    case AGK_Q3_K: return AGK_PICK(mm_packed_q3_k, cpu);
    case AGK_Q4_K: return AGK_PICK(mm_packed_q4_k, cpu);
    case AGK_Q5_K: return AGK_PICK(mm_packed_q5_k, cpu);
    case AGK_Q6_K: return AGK_PICK(mm_packed_q6_k, cpu);
    case AGK_IQ4_XS: return AGK_PICK(mm_packed_iq4_xs, cpu);
    default: return NULL;
    }
}

bool agk_lower_mul_mat_packed(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t k = a->ne[0], m = a->ne[1], n = b->ne[1];
    if (lowering->weights == NULL || n > 2 * AGK_PACKED_COLUMNS || a->ne[2] * a->ne[3] * b->ne[2] * b->ne[3] != 1 ||
        k == 0 || m < AGK_PACKED_ROWS || (b->type != AGK_F32 && b->type != AGK_Q8_0)) {
        return false;
    }
    if (n == 1 && (a->type == AGK_Q8_0 || a->type == AGK_Q6_K)) return false;
    plan p = {.product = agk_packed_product(a->type, lowering->cpu), .layout = agk_packed_layout_of(a->type)};
    if (p.product == NULL || (p.packed = agk_packed_acquire(lowering->weights, a)) == NULL) return false;
    lowering->packed = p.packed;
    p.quantize = b->type == AGK_Q8_0 ? agk_mm_col_from_q8_0 : AGK_PICK(mm_col_q8, lowering->cpu);
    p.tiles = (int32_t)agk_mm_ceil_div(n, AGK_PACKED_COLUMNS);
    const double group = (double)agk_packed_group_bytes(p.layout, k);
    const double slices = group / slice_read + 2.0 * AGK_PACKED_ROWS * (double)(k * n) / slice_flops;
    const int64_t groups = agk_mm_ceil_div(m, AGK_PACKED_ROWS);
    p.groups_per_chunk = slices * (double)groups <= 3.0 ? groups : slices >= 1.0 ? 1 : (int64_t)(1.0 / slices);
    const int64_t k_most = agk_mm_least(k, K_CHUNK);
    lowering->scratch_size = AGK_PACKED_COLUMNS * agk_mm_col_bytes(AGK_MM_Q8, k_most);
    lowering->work_size = agk_packed_columns_bytes(n, k);
    agk_add_step(lowering, columns_step, agk_mm_ceil_div(k, K_CHUNK));
    agk_add_step(lowering, product_step, agk_mm_ceil_div(groups, p.groups_per_chunk));
    memcpy(&node->aux, &p, sizeof p);
    return true;
}
