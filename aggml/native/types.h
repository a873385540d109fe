/* Element types: ids as in ggml, block layouts, row conversions.
 *
 * Here: what every C file must know of a type. Not here: kernels that compute with them (kernels.h). */
#ifndef AGK_TYPES_H
#define AGK_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* ggml's numbers, so that a GGUF file's type field can be used as it is. */
typedef enum agk_type {
    AGK_NONE = -1,
    AGK_F32 = 0,
    AGK_F16 = 1,
    AGK_Q4_0 = 2,
    AGK_Q8_0 = 8,
    AGK_I8 = 24,
    AGK_I16 = 25,
    AGK_I32 = 26,
    AGK_I64 = 27,
    AGK_F64 = 28,
    AGK_BF16 = 30,
    AGK_TYPE_COUNT = 43
} agk_type;

/* 32 values q[i] * d; element i in the low nibble of qs[i], element 16 + i in its high nibble, offset 8. */
typedef struct agk_block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
} agk_block_q4_0;

/* 32 values qs[i] * d. */
typedef struct agk_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} agk_block_q8_0;

/* n is a number of elements, a multiple of the block. Quantizers are ggml's portable ones, bit for bit. */
typedef void agk_to_float_fn(const void *src, float *dst, int64_t n);
typedef void agk_from_float_fn(const float *src, void *dst, int64_t n);

typedef struct agk_type_traits {
    const char *name; /* NULL: this build has no such type */
    int64_t blck_size;
    size_t type_size; /* bytes of a block */
    agk_to_float_fn *to_float;
    agk_from_float_fn *from_float;
    agk_type vec_dot_type; /* what rows of the second operand of mul_mat are converted to */
} agk_type_traits;

/* A row of the table for any int; .name is NULL if the type is unknown. Defined in scalar/types.c. */
const agk_type_traits *agk_traits(int type);

static inline size_t agk_row_size(int type, int64_t n)
{
    const agk_type_traits *traits = agk_traits(type);
    return traits->type_size * (size_t)(n / traits->blck_size);
}

#endif
