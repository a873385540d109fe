/* Element types: ids as in ggml, the table of their sizes and conversions.
 *
 * Here: the facts about types that every C file needs. Not here: block layouts (formats/blocks.h), kernels that
 * compute with them (kernels.h). */
#ifndef AGK_TYPES_H
#define AGK_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum agk_type {
    AGK_NONE = -1,
#define AGK_TYPE(NAME, id, ...) AGK_##NAME = id,
#include "types.def"
    AGK_TYPE_LAST,
    AGK_TYPE_COUNT = AGK_TYPE_LAST
} agk_type;

/* n is a number of elements, a multiple of the block. */
typedef void agk_to_float_fn(const void *src, float *dst, int64_t n);
typedef void agk_from_float_fn(const float *src, void *dst, int64_t n);
/* Rows of n_per_row elements, a multiple of the block; one weight per column in `imatrix`, or NULL. */
typedef void agk_quantize_fn(const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix);

/* A row of types.def, which says what each column means. Where a function is NULL, a node that would need it is
 * refused. */
typedef struct agk_type_traits {
    const char *name;                /* NULL: there is no such type */
    const char *key, *group, *numpy; /* numpy: "NONE" if it has none */
    int64_t blck_size;
    size_t type_size; /* bytes of a block */
    size_t alignment;
    agk_to_float_fn *to_float;
    agk_from_float_fn *from_float; /* how ops write the type; NULL: it is never a target of cpy or set_rows */
    /* the slow, accurate quantizer for weights; NULL: from_float is used, without importance weights */
    agk_quantize_fn *quantize;
    const char *reader, *writer; /* kernels of kernels.def: variants of to_float and from_float; NULL: there are none */
    double write_ns;
    agk_type vec_dot_type; /* the type to which rows of the second operand of mul_mat are converted */
    bool needs_imatrix;    /* quantize refuses rows without an importance matrix */
    bool minimum;
    uint8_t scale;
} agk_type_traits;

/* The row of any int; .name is NULL if the type is unknown. */
const agk_type_traits *agk_traits(int type);

/* The row conversions of a type, the best for the features `cpu`; NULL if the type has none. */
agk_to_float_fn *agk_reader(int type, uint32_t cpu);
agk_from_float_fn *agk_writer(int type, uint32_t cpu);

/* f32 to i32: truncates; a number that does not fit, and NaN, gives INT_MIN. In formats/convert.c. */
agk_from_float_fn agk_i32_from_float;

static inline size_t agk_row_size(int type, int64_t n)
{
    const agk_type_traits *traits = agk_traits(type);
    return traits->type_size * (size_t)(n / traits->blck_size);
}

#endif
