/* The plan of mul_mat_id. mul_mat_id.c decides it; the steps in experts.c and experts_products.c carry it out, or
 * those in experts_token.c for a single token. */
#ifndef AGK_LOWER_MUL_MAT_EXPERTS_H
#define AGK_LOWER_MUL_MAT_EXPERTS_H

#include "lower/strided.h"

#include "blocks.h"
#include "dots.h"
#include "packing.h"

enum {
    /* up to this number of columns of an expert, dots are faster than packing for blocks */
    AGK_EXPERTS_DOTS = 8,
    AGK_EXPERTS_DOT_ROWS = 16, /* rows of a at a time */
    AGK_EXPERTS_DOT_K = 1024,  /* 16 rows of it, widened, are 64 KB */
    AGK_EXPERTS_BLOCK_ROWS = 32,
    AGK_EXPERTS_BLOCK_K = 512, /* 32 rows of it, widened, are 64 KB */
    /* results of this many columns, 32 rows of them, are in scratch together: 48 KB */
    AGK_EXPERTS_BLOCK_COLUMNS = 384,
};

/* The kernels that multiply the columns of an expert. Packed weights have one kernel for any number of columns. Other
 * weights are multiplied by dots if the expert has at most 8 columns, else in blocks. */
typedef struct agk_experts_plan {
    agk_packed *packed; /* NULL: the experts are not weights */
    /* rows are packed, either kept with the weights or for one product; else rows are read as they lie */
    bool packs;
    agk_mm_block_fn *packed_lanes, *packed_tiles; /* packed_tiles NULL: there are no matrix tiles */
    agk_mm_dots dots;
    agk_mm_block_fn *block;
    union {
        agk_mm_pack_fn *pack;              /* for blocks: columns */
        agk_mm_packed_group_fn *pack_rows; /* `packs`: rows, for one product */
    };
    agk_to_float_fn *read_a; /* for blocks; NULL: a is f32 */
    agk_to_float_fn *read_b;
    int64_t rows_per_item, items_per_expert;
    int32_t per_chunk, columns_per_chunk;
} agk_experts_plan;

AGK_PLAN_IN_AUX(agk_experts_plan, agk_experts_plan_of)

/* How many columns of an expert with packed weights are multiplied at a time: 16 on tiles, 8 in lanes. */
static inline int64_t agk_experts_together(const agk_experts_plan *p)
{
    return p->packed_tiles != NULL ? AGK_PACKED_MOST : AGK_PACKED_COLUMNS;
}

/* Bytes of an expert's packed columns before column i, with which a group of columns multiplied at a time begins. All
 * groups before it are full, so on tiles each has 16 columns; only the last group may be packed for lanes. */
static inline size_t agk_experts_bytes_before(const agk_experts_plan *p, const agk_packed_layout *layout, int64_t i,
                                              int64_t k)
{
    return p->packed_tiles != NULL ? (size_t)(i / AGK_PACKED_MOST) * agk_packed_tiles_bytes(layout, AGK_PACKED_MOST, k)
                                   : agk_packed_columns_bytes(i, k);
}

/* Whether all columns of b are quantized first, and then copied to the experts that use them: several slots have the
 * same column, and each column is quantized only once. */
static inline bool agk_experts_share(const agk_experts_plan *p, const agk_node *node)
{
    return p->packs && node->src[1].ne[1] < node->src[2].ne[0];
}

/* How many columns of b one thread quantizes in 10 us. */
static inline int64_t agk_experts_shared_per_chunk(const agk_node *node)
{
    const agk_view *b = &node->src[1];
    return agk_units_per_chunk(b->ne[1] * b->ne[2], 0.25 * (double)b->ne[0] + 20.0);
}

/* The work area, in this order: start, order, busy, columns, and the quantized columns of b that several slots share.
 * A slot is a column of the result: [slot % used, slot / used] of ids, where `used` is the number of experts that ids
 * names for each token. */
typedef struct agk_experts {
    int32_t *start; /* of each expert: where its slots begin in `order`; start[experts] is their number */
    int32_t *order; /* the slots, sorted by expert */
    int32_t *busy;  /* the experts that have a column, in order; then -1 */
    char *columns;  /* those of expert e begin at 2 * start[e], since units of 16 need up to twice the room */
    size_t stride;  /* bytes of a column */
} agk_experts;

/* The greatest number of experts that can have a column. */
static inline int64_t agk_experts_most(const agk_node *node)
{
    return agk_mm_least(node->src[0].ne[2], node->src[2].ne[0] * node->src[2].ne[1]);
}

static inline size_t agk_experts_table_bytes(const agk_node *node)
{
    const size_t n =
        (size_t)(node->src[0].ne[2] + 1 + node->src[2].ne[0] * node->src[2].ne[1] + agk_experts_most(node));
    return (n * sizeof(int32_t) + 63) & ~(size_t)63;
}

static inline agk_experts agk_experts_of(const agk_task *task, const agk_node *node)
{
    char *work = agk_work(task, node);
    int32_t *start = (int32_t *)(void *)work, *order = start + node->src[0].ne[2] + 1;
    return (agk_experts){start, order, order + node->src[2].ne[0] * node->src[2].ne[1],
                         work + agk_experts_table_bytes(node), agk_mm_col_bytes(AGK_MM_FLOATS, node->src[0].ne[0])};
}

static inline char *agk_experts_shared(const agk_node *node, const agk_experts *t)
{
    return t->columns + (size_t)(2 * node->src[2].ne[0] * node->src[2].ne[1]) * t->stride;
}

static inline char *agk_experts_columns(const agk_experts *t, int64_t expert)
{
    return t->columns + (size_t)(2 * (int64_t)t->start[expert]) * t->stride;
}

static inline char *agk_experts_result(const agk_task *task, const agk_node *node, int64_t slot)
{
    const agk_view *dst = &node->dst;
    const uint32_t used = (uint32_t)dst->ne[1], token = (uint32_t)slot / used; /* up to 2^30 slots */
    return (char *)agk_data(task, dst) + ((uint32_t)slot - token * used) * dst->nb[1] + token * dst->nb[2];
}

/* The expert that is named for a slot; a negative number: none. */
static inline int32_t agk_experts_id(const agk_view *ids, const char *data, int64_t slot)
{
    const uint32_t used = (uint32_t)ids->ne[0], token = (uint32_t)slot / used; /* up to 2^30 slots */
    int32_t id;
    memcpy(&id, data + ((uint32_t)slot - token * used) * ids->nb[0] + token * ids->nb[1], sizeof id);
    return id;
}

/* Writes the message that says which index is beyond the experts. */
agk_status agk_experts_beyond(const agk_task *task, const agk_node *node, int64_t slot, int32_t id);

/* Adds the steps for one token. False: they do not serve this product. */
bool agk_experts_token_lower(agk_lowering *lowering, const agk_experts_plan *kernels);

agk_step_fn agk_experts_group_step, agk_experts_columns_step, agk_experts_product_step;

#endif
