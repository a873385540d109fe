/* A scheme: one way to compute products. Here: the description of a problem that a scheme is asked about, and the
 * functions that a scheme offers.
 *
 * The table of preferences (choice.c) asks the schemes from the best to the last. README.md says what each one does.
 * Not here: the schemes themselves (packed.c, tiles.c, bytes.c, pairs.c, floats.c, shorts.c, dots.c, blocks.c). */
#ifndef AGK_LOWER_MUL_MAT_SCHEME_H
#define AGK_LOWER_MUL_MAT_SCHEME_H

#include "lower/node.h"
#include "table/kernel_types.h"

/* A product: [m rows of a] x [n columns of b], both of k elements, `batches` times. */
typedef struct agk_mm_problem {
    int a, b; /* agk_type */
    int64_t m, n, k, batches;
    bool weights; /* a lies in memory that is seldom written, so a packed copy of it may be kept */
    uint32_t cpu; /* the features that a plan may use */
    bool ends;    /* an epilogue follows, or a product that panels could give packed columns (ends.h) */
    bool panels;  /* the product before gives packed columns, or the result is bf16: for panels alone */
    bool exact;   /* columns must not be converted to less than floats */
} agk_mm_problem;

typedef struct agk_mm_scheme {
    const char *name;
    /* Whether the scheme's kernels can compute the product at all: types, shape, lines of kernels.def. */
    bool (*serves)(const agk_mm_problem *problem);
    /* Adds the steps of a node, whose operands were checked and whose result is not empty. False: there is no memory
     * for a packed copy and nothing was added, so the next scheme is asked. */
    bool (*lower)(agk_lowering *lowering);
    bool exact; /* columns of f32 stay floats */
} agk_mm_scheme;

extern const agk_mm_scheme agk_mm_packed_tiles, agk_mm_packed_lanes, agk_mm_packed_pairs, agk_mm_tiles, agk_mm_bytes,
    agk_mm_pairs, agk_mm_floats, agk_mm_shorts, agk_mm_dots_q8, agk_mm_dots_bf16, agk_mm_dots_f32, agk_mm_blocks_bf16,
    agk_mm_blocks_q8, agk_mm_blocks_f32;

agk_mm_problem agk_mm_problem_of(const agk_lowering *lowering);

/* Whether the precision that the node sets for b (prec_set_src) forbids what its columns are converted to elsewhere:
 * to 8 bits if rows are quantized, else to the type of the rows. */
bool agk_mm_is_exact(const agk_node *node);

/* A row of the table of preferences. */
typedef struct agk_mm_preference {
    const agk_mm_scheme *scheme;
    bool (*when)(const agk_mm_problem *problem); /* when this scheme is better than all rows below */
    const char *why;
} agk_mm_preference;

/* The first row behind `after` (NULL: from the top) whose scheme serves the product and whose condition holds. The
 * last row serves every product that mul_mat accepts. */
const agk_mm_preference *agk_mm_prefer(const agk_mm_problem *problem, const agk_mm_preference *after);

/* The variant of kernels.def for this machine that is named `<prefix><name of the type in small letters>`. NULL if
 * there is none, or only plain C. This function alone decides, from the lines of kernels.def, which types a scheme
 * serves. */
agk_any_fn *agk_mm_kernel_of_type(const char *prefix, int type, uint32_t cpu);

/* Whether blocks multiply rows of this type by a few units of columns at nearly the peak, all of k at a time: f32, and
 * f16 that is widened eight rows at a time, on a Zen 4 (kernels/amd512/mul_mat_blocks.c). f32, G operations a second of
 * two virtual cores (peak 228, read 30 GB/s), before (dots up to 16 columns, panels from 32 on) and blocks:
 *
 *                10 columns  16          32          48          64          96          128         256
 *   4096 x 4096              124   159   135   170   152   183   164   178   174   191   177   182   186   174
 *   1536 x 384   138   111   157   165   106   177   129   177   140   187   145   187   147   186 */
static inline bool agk_mm_fast_blocks(int type, uint32_t cpu)
{
    return (type == AGK_F32 || type == AGK_F16) && (cpu & AGK_ZMM_HALVES) != 0;
}

/* -- arithmetic that all schemes share ------------------------------------------------------------------------ */

static inline int64_t agk_mm_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t agk_mm_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Matrix (i2, i3) of an operand. */
static inline char *agk_mm_matrix(const agk_task *task, const agk_view *view, int64_t i2, int64_t i3)
{
    return (char *)agk_data(task, view) + i2 * view->nb[2] + i3 * view->nb[3];
}

#endif
