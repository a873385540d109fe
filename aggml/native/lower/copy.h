/* Copies of elements between any strides: shared by cpy, concat and repeats of rows. Whole rows may be converted to f32
 * or from it on the way.
 *
 * Elements are pieces of bytes of one size (4 for f32, 34 for a block of q8_0). Defined in lower/copy.c. */
#ifndef AGK_COPY_H
#define AGK_COPY_H

#include "strided.h"

/* How a copy walks: dimensions in the order that suits both sides, two of them together, `strip` rows at a time. */
typedef struct agk_copy {
    agk_loop loop; /* operands: target, source */
    int64_t size;  /* bytes of an element */
    int64_t strip, strips, units;
    bool across;              /* units go through the planes (dimensions 2 and 3) before they go on to the next strip */
    bool asks;                /* rows of the source are prefetched */
    agk_any_fn *transpose;    /* agk_cpy_transpose_32_fn or agk_cpy_transpose_16_fn; NULL: element by element */
    agk_any_fn *row;          /* agk_cpy_row_fn */
    agk_from_float_fn *write; /* this or `read` converts the rows; NULL, both: the type is the same */
    agk_to_float_fn *read;
} agk_copy;

/* From a view to another of the same type and shape. It is cheap enough for each chunk to compute it anew. */
agk_copy agk_copy_plan(const agk_view *dst, const agk_view *src, agk_any_fn *transpose, agk_any_fn *row);
/* The same for rows that are contiguous on both sides; their types may differ. */
agk_copy agk_copy_rows_plan(const agk_view *dst, const agk_view *src);
/* Makes it go through one plane after the other, and prefetch rows that lie apart. */
void agk_copy_by_planes(agk_copy *copy);
void agk_copy_run(const agk_copy *copy, char *dst, const char *src, int64_t first, int64_t last);

/* The transposition kernel for elements of a type, NULL if there is none. */
agk_any_fn *agk_copy_transpose(int type, uint32_t cpu);

/* ns for each unit of a copy of this many bytes: they are read and written at 20 GB/s. */
static inline double agk_copy_ns(const agk_view *view, int64_t units)
{
    const agk_type_traits *traits = agk_traits(view->type);
    return 0.1 * (double)(agk_nelements(view) / traits->blck_size * (int64_t)traits->type_size) / (double)units + 10.0;
}

#endif
