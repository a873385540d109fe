/* The functions of one operand (unary.c) and of gated units (glu.c), for chains of fused nodes. */
#ifndef AGK_SCALAR_UNARY_H
#define AGK_SCALAR_UNARY_H

#include "table/kernels.h"

/* ns of an element of a short function on vectors, whose time is its load and its store; longer ones take more */
#define AGK_UNARY_SHORT_NS 0.2

agk_any_fn *agk_unary_kernel(int op, uint32_t cpu); /* agk_unary_f32_fn; NULL: a function with parameters */
double agk_unary_ns(int op, bool vectors);          /* estimated, for each element */
int agk_gate_of(int op); /* for a gated unit f(x) * g: the op of f; -1: it is limited, so f has parameters */

#endif
