/* What the lowering of mul_mat of panels and units (mul_mat_terms.c) decides, and where its steps find what they share: columns are
 * packed by mul_mat_terms_columns.c, multiplied by mul_mat_terms_items.c. */
#ifndef AGK_SCALAR_MUL_MAT_TERMS_PLAN_H
#define AGK_SCALAR_MUL_MAT_TERMS_PLAN_H

#include "kernels/mul_mat_bytes.h"
#include "kernels/mul_mat_shorts.h"
#include "mul_mat_plan.h"

enum {
    AGK_TERMS_K_MOST =
        512, /* of one term: k that is no longer is one block, whose sums enter and leave the tiles once */
    AGK_TERMS_ITEM_COLUMNS =
        512, /* of an item: a block of k is 256 KB of packed columns, for each term; with the sums, 1.2 MB stay in L2 */
    AGK_TERMS_MAX_ROWS = 256, /* of an item, whose sums are then 512 KB */
    AGK_TERMS_LANES_MAX_ROWS =
        128, /* in lanes, which need 1 byte a cycle of them; 512 KB of f32 columns and 256 KB of sums */
};

typedef struct agk_terms_plan {
    union {
        agk_mm_pairs_columns_fn *cols;
        agk_mm_blocks_pack_f32_fn *floats; /* whole numbers */
        agk_mm_bytes_columns_fn *bytes;
    } pack;
    union {
        agk_mm_pairs_rows_fn *terms;
        agk_mm_pairs_columns_fn *turned; /* on tiles */
        agk_mm_bytes_rows_fn *bytes;
        agk_mm_shorts_rows_fn *shorts;
    } row;
    agk_mm_pairs_product_fn *tile;
    union {
        agk_mm_panels_put_fn *put; /* in lanes */
        struct agk_packed *packed; /* on tiles: rows of a as panels; NULL: made for each item */
    };
    agk_mm_block_fn *dot; /* of what cannot be split */
    union {
        agk_to_float_fn *a_floats;       /* NULL: f32 */
        agk_mm_tiles_rows_iq_fn *a_bf16; /* codebooks: on tiles, for bf16_turned */
    };
    union {
        agk_to_float_fn *floats; /* NULL: f32 */
        agk_mm_convert_fn *bytes;
    } col;
    union {
        agk_mm_pairs_rows_bf16_fn *bf16; /* a row of a to a panel, at once; NULL: by a_floats */
        agk_mm_tiles_rows_bf16_fn *bf16_turned;
    };
    int32_t k_block, row_blocks, groups, per_chunk, units_per_chunk;
    int8_t terms;
    int8_t bias, act, other; /* stages that tiles carry out; -1: none */
    int8_t fours;            /* of shorts */
    bool shorts;             /* bytes as in mul_mat_shorts.h */
    bool ends;               /* all stages are these */
    bool codebooks;          /* rows of a become bf16 */
    bool lanes, whole;       /* not on tiles; numbers are f32, which take the room of two terms */
    agk_code_traits bytes;
} agk_terms_plan;

_Static_assert(sizeof(agk_terms_plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux");

static inline agk_terms_plan agk_terms_plan_of(const agk_node *node)
{
    agk_terms_plan p;
    memcpy(&p, &node->aux, sizeof p);
    return p;
}

/* Numbers are several terms, and some cannot be. */
static inline bool agk_terms_splits(const agk_terms_plan *p)
{
    return p->terms > 1 && !p->whole;
}

/* Of k elements of 16 columns, and of 32 rows. */
static inline size_t agk_terms_unit_of(const agk_terms_plan *p, int64_t k)
{
    if (p->shorts) return (size_t)(k / AGK_MM_BLOCK) * sizeof(agk_short_unit);
    if (p->bytes.served) return (size_t)(k / AGK_MM_BLOCK) * sizeof(agk_bytes_unit);
    return agk_terms_unit_bytes(p->terms, k);
}

static inline size_t agk_terms_panel_of(const agk_terms_plan *p, int64_t k)
{
    if (p->shorts) return (size_t)(AGK_PANEL_ROWS * k / AGK_MM_BLOCK) * agk_short_row_bytes(p->fours == 0);
    if (p->bytes.served) return (size_t)(AGK_PANEL_ROWS * k / 16) * sizeof(agk_bytes_row);
    return agk_terms_panel_bytes(p->terms, k);
}

static inline int64_t agk_terms_max_rows(const agk_terms_plan *p)
{
    return p->lanes ? AGK_TERMS_LANES_MAX_ROWS : AGK_TERMS_MAX_ROWS;
}

static inline int64_t agk_terms_units(const agk_view *b)
{
    return agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT);
}

static inline const char *agk_terms_matrix(const agk_task *task, const agk_view *view, int64_t i2, int64_t i3)
{
    return (const char *)agk_data(task, view) + i2 * view->nb[2] + i3 * view->nb[3];
}

/* Work memory: for each matrix of b, for each block of k, that of all units; then whether each unit could be split. Whole units
 * one after the other would lie a power of two apart for many k: 32 of them in the same sets of L2, which has 16 ways. */
static inline char *agk_terms_columns(const agk_task *task, const agk_node *node, const agk_terms_plan *p,
                                      int64_t batch)
{
    const agk_view *b = &node->src[1];
    if (node->has_columns) return agk_data(task, b);
    return (char *)agk_work(task, node) + (size_t)(batch * agk_terms_units(b)) * agk_terms_unit_of(p, b->ne[0]);
}

/* kn elements, from k0 on, of unit `unit` of a matrix. */
static inline char *agk_terms_block(const agk_terms_plan *p, char *of_matrix, int64_t units, int64_t unit, int64_t k0,
                                    int64_t kn)
{
    return of_matrix + (size_t)units * agk_terms_unit_of(p, k0) + (size_t)unit * agk_terms_unit_of(p, kn);
}

/* Where row `row`, a multiple of 32, and the first column of unit `unit` are among columns of one term that a product of k gets
 * from the node before; ld_unit: to the next unit. */
static inline char *agk_terms_given(char *columns, int64_t units, int64_t k, int64_t k_block, int64_t row, int64_t unit,
                                    size_t *ld_unit)
{
    const int64_t k0 = row / k_block * k_block;
    *ld_unit = agk_terms_unit_bytes(1, agk_mm_least(k_block, k - k0));
    return columns + (size_t)units * agk_terms_unit_bytes(1, k0) + (size_t)unit * *ld_unit +
           agk_terms_unit_bytes(1, row - k0);
}

static inline bool *agk_terms_split(const agk_task *task, const agk_node *node, const agk_terms_plan *p)
{
    const agk_view *b = &node->src[1];
    return (bool *)(void *)agk_terms_columns(task, node, p, b->ne[2] * b->ne[3]);
}

agk_step_fn agk_terms_columns_step, agk_terms_items_step;

#endif
