/* The parts that dots.c and blocks.c share: the matrices of one batch, and stages on a finished part of the result. */
#ifndef AGK_LOWER_MUL_MAT_PLAIN_H
#define AGK_LOWER_MUL_MAT_PLAIN_H

#include "convert.h"
#include "lower/chain.h"

enum {
    AGK_MM_WIDENED_ROWS = 32,     /* rows of a in scratch at a time: 64 KB */
    AGK_MM_K_GRAIN = 256,         /* k of widened rows are cut at multiples of this, a multiple of every block size */
    AGK_MM_SLICE_BYTES = 1 << 17, /* bytes of a source that one chunk packs or converts */
};

/* The work of one thread in some 10 us with AVX-512. Chunks follow from the shape alone. */
static const double agk_mm_slice_flops = 2.5e6;

/* The matrices of one batch. b and dst have the same outer extents; a has the same or is repeated. */
typedef struct agk_mm_matrices {
    const char *a, *b;
    char *c;
} agk_mm_matrices;

static inline agk_mm_matrices agk_mm_matrices_of(const agk_task *task, const agk_node *node, int64_t batch)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t i2 = batch % b->ne[2], i3 = batch / b->ne[2];
    return (agk_mm_matrices){
        .a = agk_mm_matrix(task, a, i2 / (b->ne[2] / a->ne[2]), i3 / (b->ne[3] / a->ne[3])),
        .b = agk_mm_matrix(task, b, i2, i3),
        .c = agk_mm_matrix(task, &node->dst, i2, i3),
    };
}

/* Converts rows of a, k elements each, into `out`. */
static inline void agk_mm_widen_rows(const agk_node *node, const agk_mm_conversion *rows, const char *a, int64_t n,
                                     int64_t k, char *out)
{
    const size_t bytes = agk_mm_row_bytes(rows->form, k);
    for (int64_t i = 0; i < n; ++i, a += node->src[0].nb[1], out += bytes) agk_mm_convert(rows, a, out, k);
}

/* Carries out the stages that are fused with the product, on rows of a x columns of b that are finished and still in
 * the cache. */
static inline void agk_mm_stages(const agk_task *task, const agk_node *node, int64_t batch, int64_t row, int64_t rows,
                                 int64_t column, int64_t columns)
{
    if (node->n_stages == 0) return;
    const agk_chain_block block = {.i0 = row,
                                   .n = rows,
                                   .i1 = column,
                                   .rows = columns,
                                   .i2 = batch % node->dst.ne[2],
                                   .i3 = batch / node->dst.ne[2]};
    agk_chain_run(task, node, &block, false);
}

#endif
