/* The parts that the five schemes of panels share: tiles, bytes, shorts, pairs and floats.
 *
 * All of them pack columns to units of 16 in a first step. In a second step they pack 32 rows to a panel, a block of k
 * at a time, and multiply it by many columns. They differ in what units and panels hold (kernels/mul_mat_panels.h,
 * _bytes.h, _shorts.h). So each scheme is a file that says how its columns and rows are packed, and which kernel
 * multiplies them.
 *
 * Here: the plan, the layout of the work memory, how an item is found. panels.c: how a node is cut, both steps in
 * lanes. tiles.c, tiles_items.c: the second step on matrix tiles. */
#ifndef AGK_LOWER_MUL_MAT_PANELS_H
#define AGK_LOWER_MUL_MAT_PANELS_H

#include "convert.h"
#include "kernels/mul_mat_panels.h"

enum {
    AGK_PANELS_ITEM_COLUMNS =
        /* columns of an item: a block of k is 256 KB of packed columns for each term (of pairs 512 KB); with the
         * sums, 1.2 MB stay in L2 */
    512,
    AGK_PANELS_K_BLOCK = 256, /* a multiple of every quantized block; a panel of one term then takes 16 KB of L1 */
    AGK_PANELS_K_MOST = 512,  /* the longest block of k that any scheme has */
    AGK_PANELS_MOST = 8,      /* panels of an item: 256 rows */
    AGK_PANELS_KERNELS = 4,
};

typedef struct agk_mm_panels_plan agk_mm_panels_plan;

/* How a scheme packs, and how large its pieces of work are. */
typedef struct agk_mm_panels {
    /* Packs n columns of k elements, `stride` bytes apart, to a unit. They have the form that plan->columns gives
     * them; missing columns are zero. False: some number cannot be split into terms. */
    bool (*columns)(const agk_mm_panels_plan *plan, int64_t k, int64_t n, const void *b, size_t stride, char *unit);
    /* Packs n rows of a from `rows` on, k elements of each, to a panel; missing rows are zero. `room`: memory for 16
     * rows of floats of a block, if the scheme wants it. */
    bool (*rows)(const agk_mm_panels_plan *plan, const agk_view *a, const char *rows, int64_t n, int64_t k, char *panel,
                 float *room);
    double slice_flops; /* the work of one thread in some 10 us */
    int32_t min_rows;   /* the least rows of an item, if there are enough items */
    int32_t max_rows;
    bool wants_room;
} agk_mm_panels;

struct agk_mm_panels_plan {
    const agk_mm_panels *panels;
    agk_mm_panel_fn *product;
    agk_mm_panels_put_fn *put;               /* in lanes: writes the sums to the result */
    agk_mm_panels_end_fn *end;               /* in lanes: the epilogue; NULL: there is none */
    agk_any_fn *kernels[AGK_PANELS_KERNELS]; /* the kernels of the scheme `panels`, which alone knows their types */
    agk_mm_conversion columns;               /* the conversion of columns before they are packed */
    struct agk_packed *packed;               /* on tiles: panels that are kept; NULL: each item packs them */
    int32_t unit_32, panel_32;               /* bytes of 32 k of a unit, of a panel */
    int32_t k_block, row_blocks, groups, per_chunk, units_per_chunk;
    int8_t terms;            /* terms of a number, on tiles and in pairs */
    int8_t fours;            /* of shorts */
    int8_t bias, act, other; /* numbers of the stages that an epilogue carries out; -1: none */
    bool ends;               /* the node has no other stages than these */
    uint8_t form;            /* agk_columns_form of packed columns; 0: nothing else can write them */
    agk_code_traits codes;   /* of bytes and shorts */
};

AGK_PLAN_IN_AUX(agk_mm_panels_plan, agk_mm_panels_plan_of)

/* Whether panels can serve this shape at all. */
static inline bool agk_mm_panels_serve(const agk_mm_problem *p)
{
    return p->m >= AGK_MM_UNIT && p->k > 0;
}

/* The part that bytes and shorts share: quantized rows as codes, and one kernel that packs columns to units. */
enum { AGK_CODES_COLUMNS, AGK_CODES_ROWS }; /* indices of plan->kernels */
bool agk_mm_panels_serve_codes(const agk_mm_problem *p, const char *product);
extern const agk_mm_panels agk_mm_panels_of_codes;

/* Decides how the node is cut and how much memory its steps need. Adds the first step, and `items` as the second.
 * `products`: how many products of terms the kernel computes for one product of elements. */
void agk_mm_panels_lower(agk_lowering *lowering, agk_mm_panels_plan *plan, int products, agk_step_fn *items);

/* The same for products in lanes, with their second step; chooses the epilogue as well. */
void agk_mm_panels_in_lanes(agk_lowering *lowering, agk_mm_panels_plan *plan);

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

/* Layout of the work memory: for each matrix of b and each block of k, all units; then a bool for each unit: whether
 * its numbers could be split. There is a gap behind a unit, because for many k whole units one after the other would
 * lie a power of two apart: 32 of them in the same sets of L2, which has 16 ways. */
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

/* Brings k elements of the row three rows behind `row`, if there are so many, into L1. The kernels brought them into L2
 * while the panel before was multiplied; from there alone, a Zen 4 takes twice as long to unpack them. */
static inline void agk_mm_panels_fetch(const agk_view *a, const char *row, int64_t rows_left, int64_t k)
{
    enum { LINE = 64, AHEAD = 3 };
    if (rows_left <= AHEAD) return;
    const char *from = row + AHEAD * a->nb[1], *end = from + agk_row_size(a->type, k);
    for (; from < end + LINE - 1; from += LINE) __builtin_prefetch(from, 0, 3);
}

/* -- items ---------------------------------------------------------------------------------------------------- */

/* A part of the result: a block of rows times up to 512 columns. */
typedef struct agk_mm_item {
    int64_t i2, i3, row, rows, col, cols; /* of c */
    const char *a, *b;                    /* the first row of the item, and the matrix of its columns */
    char *c;                              /* the first row of the item, in the first column of the matrix */
    char *columns;                        /* that matrix, packed */
    const bool *could_split;              /* one for each unit of that matrix */
} agk_mm_item;

agk_mm_item agk_mm_item_at(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, int64_t i);

/* The arguments of the kernel for block k0 .. k0 + kn - 1 of an item. The caller adds the panels one by one. */
agk_mm_panel agk_mm_item_block(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item, int64_t k0,
                               int64_t kn);

/* Makes the panel of rows `row` on of an item for the block that x describes, and says what the kernel shall
 * prefetch meanwhile. False: some number cannot be split. */
bool agk_mm_item_panel(const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *item, int64_t row,
                       int64_t k0, int64_t kn, char *panel, agk_mm_panel *x);

#endif
