/* What the schemes of panels share: tiles, bytes, shorts, pairs and floats.
 *
 * All of them pack columns to units of 16 in a first step, and make panels of 32 rows, a block of k at a time, which
 * many columns pass by in a second. They differ in what units and panels hold (kernels/mul_mat_panels.h, _bytes.h,
 * _shorts.h), so each is a file that says how its columns and rows are packed, and by which kernel they are multiplied.
 *
 * Here: the plan, where the work memory has what, how an item is found. panels.c: how a node is cut, both steps in
 * lanes. tiles.c, tiles_items.c: the second step on matrix tiles. */
#ifndef AGK_LOWER_MUL_MAT_PANELS_H
#define AGK_LOWER_MUL_MAT_PANELS_H

#include "convert.h"
#include "kernels/mul_mat_panels.h"

enum {
    AGK_PANELS_ITEM_COLUMNS =
        512,                  /* of an item: a block of k is 256 KB of packed columns, for each term; with the sums,
                                      1.2 MB stay in L2 */
    AGK_PANELS_K_BLOCK = 256, /* a multiple of every quantized block; a panel of one term is then 16 KB of L1 */
    AGK_PANELS_K_MOST = 512,  /* the longest block of k that any scheme has */
    AGK_PANELS_MOST = 8,      /* panels of an item: 256 rows */
    AGK_PANELS_KERNELS = 4,
};

typedef struct agk_mm_panels_plan agk_mm_panels_plan;

/* How a scheme packs, and how large its pieces of work are. */
typedef struct agk_mm_panels {
    /* n columns of k elements, `stride` bytes apart, in the form that plan->columns gives them, to a unit; missing
     * columns are zero. False: some number cannot be split into terms. */
    bool (*columns)(const agk_mm_panels_plan *plan, int64_t k, int64_t n, const void *b, size_t stride, char *unit);
    /* n rows of a from `rows` on, k elements of each, to a panel; missing rows are zero. `room`: floats for 16 rows of
     * a block, if the scheme wants it. */
    bool (*rows)(const agk_mm_panels_plan *plan, const agk_view *a, const char *rows, int64_t n, int64_t k, char *panel,
                 float *room);
    double slice_flops; /* what one thread computes in some 10 us */
    int32_t min_rows;   /* of an item, where there are enough items */
    int32_t max_rows;
    bool wants_room;
} agk_mm_panels;

struct agk_mm_panels_plan {
    const agk_mm_panels *panels;
    agk_mm_panel_fn *product;
    agk_mm_panels_put_fn *put;               /* in lanes: sums to the result */
    agk_any_fn *kernels[AGK_PANELS_KERNELS]; /* those of `panels`, which alone knows their types */
    agk_mm_conversion columns;               /* before they are packed */
    struct agk_packed *packed;               /* on tiles: kept panels; NULL: each item makes them */
    int32_t unit_32, panel_32;               /* bytes of 32 k of a unit, of a panel */
    int32_t k_block, row_blocks, groups, per_chunk, units_per_chunk;
    int8_t terms;            /* of a number, on tiles and in pairs */
    int8_t fours;            /* of shorts */
    int8_t bias, act, other; /* stages that tiles carry out: their numbers; -1: none */
    bool ends;               /* all stages are these */
    agk_code_traits codes;   /* of bytes and shorts */
};

AGK_PLAN_IN_AUX(agk_mm_panels_plan, agk_mm_panels_plan_of)

/* Whether the shape is one for panels at all. */
static inline bool agk_mm_panels_serve(const agk_mm_problem *p)
{
    return p->m >= AGK_MM_UNIT && p->k > 0;
}

/* What bytes and shorts share: quantized rows as codes, whose columns one kernel packs to units. */
enum { AGK_CODES_COLUMNS, AGK_CODES_ROWS }; /* of plan->kernels */
bool agk_mm_panels_serve_codes(const agk_mm_problem *p, const char *product);
extern const agk_mm_panels agk_mm_panels_of_codes;

/* Decides how the node is cut, and how much memory its steps need; adds the first step, and `items` as the second.
 * `products`: how many products the kernel makes of one. */
void agk_mm_panels_lower(agk_lowering *lowering, agk_mm_panels_plan *plan, int products, agk_step_fn *items);

/* The second step in lanes. */
agk_step_fn agk_mm_panels_in_lanes;

/* -- memory --------------------------------------------------------------------------------------------------- */

/* Bytes of k elements of 16 columns, and of 32 rows. */
static inline size_t agk_mm_panels_unit(const agk_mm_panels_plan *p, int64_t k)
{
    return (size_t)agk_panel_steps(k) * (size_t)p->unit_32;
}

static inline size_t agk_mm_panels_panel(const agk_mm_panels_plan *p, int64_t k)
{
    return (size_t)agk_panel_steps(k) * (size_t)p->panel_32;
}

static inline int64_t agk_mm_panels_units(const agk_view *b)
{
    return agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT);
}

/* Floats of the sums of one panel with `cols` columns. */
static inline size_t agk_mm_panels_sums(int64_t cols)
{
    return (size_t)agk_mm_ceil_div(cols, 2 * AGK_MM_UNIT) * AGK_PANEL_SUMS;
}

/* Work memory: for each matrix of b, for each block of k, that of all units; then a bool for each unit: whether its
 * numbers could be split. Whole units one after the other would lie a power of two apart for many k: 32 of them in the
 * same sets of L2, which has 16 ways. */
static inline char *agk_mm_panels_columns(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p,
                                          int64_t batch)
{
    const agk_view *b = &node->src[1];
    if (node->has_columns) return agk_data(task, b);
    return (char *)agk_work(task, node) + (size_t)(batch * agk_mm_panels_units(b)) * agk_mm_panels_unit(p, b->ne[0]);
}

/* kn elements, from k0 on, of unit `unit` of a matrix. */
static inline char *agk_mm_panels_block(const agk_mm_panels_plan *p, char *of_matrix, int64_t units, int64_t unit,
                                        int64_t k0, int64_t kn)
{
    return of_matrix + (size_t)units * agk_mm_panels_unit(p, k0) + (size_t)unit * agk_mm_panels_unit(p, kn);
}

static inline bool *agk_mm_panels_could_split(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p)
{
    const agk_view *b = &node->src[1];
    return (bool *)(void *)agk_mm_panels_columns(task, node, p, b->ne[2] * b->ne[3]);
}

/* -- items ---------------------------------------------------------------------------------------------------- */

/* A part of the result: a block of rows times up to 512 columns. */
typedef struct agk_mm_item {
    int64_t i2, i3, row, rows, col, cols; /* of c */
    const char *a, *b;                    /* its first row, and the matrix of its columns */
    char *c;                              /* its first row, first column of the matrix */
    char *columns;                        /* that matrix, packed */
    const bool *could_split;              /* of its units */
} agk_mm_item;

agk_mm_item agk_mm_item_at(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, int64_t i);

/* The arguments of the kernel for block k0 .. k0 + kn - 1 of an item. Panels are added one by one. */
agk_mm_panel agk_mm_item_block(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item, int64_t k0,
                               int64_t kn);

/* Makes the panel of rows `row` on of an item for the block that x describes, and says what to fetch meanwhile. False:
 * some number cannot be split. */
bool agk_mm_item_panel(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item, int64_t row,
                       int64_t k0, int64_t kn, char *panel, agk_mm_panel *x);

#endif
