/* What the lowering of mul_mat (mul_mat.c) decides and its steps (mul_mat_steps.c) carry out; mul_mat_id.c
 * and out_prod.c use the layouts. */
#ifndef AGK_SCALAR_MUL_MAT_PLAN_H
#define AGK_SCALAR_MUL_MAT_PLAN_H

#include "table/kernel_types.h"
#include "kernels/mul_mat.h"

enum {
    AGK_MM_WIDENED_ROWS = 32, /* rows of a in scratch at a time: 64 KB */
};

/* What is made of elements before a kernel reads them. */
typedef enum agk_mm_form { AGK_MM_NATURAL, AGK_MM_FLOATS, AGK_MM_BF16, AGK_MM_BF16_PAIRS, AGK_MM_Q8 } agk_mm_form;

/* What the lowering decided; kept in node->aux. Items of a product: (batch, row block, group of tiles). */
typedef struct agk_mm_plan {
    agk_mm_block_fn *product;
    agk_mm_pack_fn *pack; /* NULL: dots */
    union {
        agk_to_float_fn *floats;
        agk_from_float_fn *bf16;
        agk_mm_convert_fn *block; /* to a form of its own */
    } row, col;         /* what widens rows of a, what converts columns of b before they are packed or multiplied */
    int64_t per_chunk;  /* items */
    int64_t col_chunk;  /* units or columns of the first step, per chunk */
    int32_t row_blocks; /* per batch */
    int32_t tiles, tiles_per_item, k_block;
    agk_mm_form row_form, col_form, unit_form;
    bool shared; /* b is packed by a step of its own */
    bool a_far, c_far;
} agk_mm_plan;

_Static_assert(sizeof(agk_mm_plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux");

static inline agk_mm_plan agk_mm_plan_of(const agk_node *node)
{
    agk_mm_plan p;
    memcpy(&p, &node->aux, sizeof p);
    return p;
}

static inline int64_t agk_mm_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t agk_mm_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline size_t agk_mm_row_bytes(agk_mm_form f, int64_t k)
{
    if (f == AGK_MM_Q8) return agk_mm_blocks(k, AGK_MM_BLOCK) * sizeof(agk_mm_row_q8);
    return (size_t)k * sizeof(float);
}

static inline size_t agk_mm_col_bytes(agk_mm_form f, int64_t k)
{
    if (f == AGK_MM_Q8) return agk_mm_blocks(k, 2 * AGK_MM_BLOCK) * sizeof(agk_mm_col_q8);
    if (f == AGK_MM_BF16) return (agk_mm_blocks(k, 2 * AGK_MM_UNIT) + 1) * 2 * AGK_MM_UNIT * sizeof(uint16_t);
    /* a line more than needed: columns a power of two apart would share one set of L1 */
    return (agk_mm_blocks(k, AGK_MM_UNIT) + 1) * AGK_MM_UNIT * sizeof(float);
}

static inline size_t agk_mm_unit_bytes(agk_mm_form f, int64_t k)
{
    if (f == AGK_MM_Q8) return agk_mm_blocks(k, AGK_MM_BLOCK) * sizeof(agk_mm_unit_q8);
    return (f == AGK_MM_BF16_PAIRS ? agk_mm_blocks(k, 2) : (size_t)k) * AGK_MM_UNIT * 4;
}

/* The dot that reads rows of a quantized type as they lie, against columns in agk_mm_col_q8; NULL: rows are widened. */
agk_mm_block_fn *agk_mm_quantized_dot(int type, uint32_t cpu);

/* Lower a product of packed weights with few columns, if it is one and packing pays. */
bool agk_lower_mul_mat_packed(agk_lowering *lowering);
agk_mm_block_fn *agk_packed_product(int type, bool tiles, uint32_t cpu); /* NULL: none that pays */

agk_step_fn agk_mm_pack_step, agk_mm_convert_step, agk_mm_tiles_step, agk_mm_dots_step;
agk_mm_convert_fn agk_mm_col_from_q8_0; /* a column that is quantized already, exact */

#endif
