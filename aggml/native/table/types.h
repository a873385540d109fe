/* Element types: ids as in ggml, the table of their sizes and conversions.
 *
 * Here: what every C file must know of a type. Not here: block layouts (blocks.h), kernels that compute with them
 * (kernels.h). */
#ifndef AGK_TYPES_H
#define AGK_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ggml's numbers, so that a GGUF file's type field can be used as it is. */
typedef enum agk_type {
    AGK_NONE = -1,
    AGK_F32 = 0,
    AGK_F16 = 1,
    AGK_Q4_0 = 2,
    AGK_Q4_1 = 3,
    AGK_Q5_0 = 6,
    AGK_Q5_1 = 7,
    AGK_Q8_0 = 8,
    AGK_Q8_1 = 9,
    AGK_Q2_K = 10,
    AGK_Q3_K = 11,
    AGK_Q4_K = 12,
    AGK_Q5_K = 13,
    AGK_Q6_K = 14,
    AGK_Q8_K = 15,
    AGK_IQ2_XXS = 16,
    AGK_IQ2_XS = 17,
    AGK_IQ3_XXS = 18,
    AGK_IQ1_S = 19,
    AGK_IQ4_NL = 20,
    AGK_IQ3_S = 21,
    AGK_IQ2_S = 22,
    AGK_IQ4_XS = 23,
    AGK_I8 = 24,
    AGK_I16 = 25,
    AGK_I32 = 26,
    AGK_I64 = 27,
    AGK_F64 = 28,
    AGK_IQ1_M = 29,
    AGK_BF16 = 30,
    AGK_TQ1_0 = 34,
    AGK_TQ2_0 = 35,
    AGK_MXFP4 = 39,
    AGK_NVFP4 = 40,
    AGK_Q1_0 = 41,
    AGK_Q2_0 = 42,
    AGK_TYPE_COUNT = 43
} agk_type;

/* n is a number of elements, a multiple of the block. */
typedef void agk_to_float_fn(const void *src, float *dst, int64_t n);
typedef void agk_from_float_fn(const float *src, void *dst, int64_t n);
/* Rows of n_per_row elements, a multiple of the block; one weight per column in `imatrix`, or NULL. */
typedef void agk_quantize_fn(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix);

/* A function that is NULL is refused wherever it would be needed. Bytes are ggml's. */
typedef struct agk_type_traits {
    const char *name; /* NULL: there is no such type */
    int64_t blck_size;
    size_t type_size; /* bytes of a block */
    agk_to_float_fn *to_float;
    agk_from_float_fn *from_float; /* what ops write with; NULL: never a target of cpy or set_rows */
    agk_quantize_fn *quantize;     /* the slow, good one for weights; NULL: from_float, which knows no weights */
    agk_type vec_dot_type;         /* what rows of the second operand of mul_mat are converted to */
    bool needs_imatrix;            /* quantize makes nothing of rows without one */
} agk_type_traits;

/* A row of the table for any int; .name is NULL if the type is unknown. Defined in formats/types.c. */
const agk_type_traits *agk_traits(int type);

/* The row conversions of a type, the best for the features `cpu`; NULL if the type has none. */
agk_to_float_fn *agk_reader(int type, uint32_t cpu);
agk_from_float_fn *agk_writer(int type, uint32_t cpu);

/* f32 to i32, for what converts to it: truncates; what does not fit, and NaN, gives INT_MIN. In formats/convert.c. */
agk_from_float_fn agk_i32_from_float;

/* Some ns for an element of from_float, by plain arithmetic, comparisons or a search. Defined in formats/types.c. */
double agk_write_ns(int type);

static inline size_t agk_row_size(int type, int64_t n)
{
    const agk_type_traits *traits = agk_traits(type);
    return traits->type_size * (size_t)(n / traits->blck_size);
}

#endif
