/* Shared by the recurrent ops: rows of f32 operands, and the checks that all of them make. */
#ifndef AGK_RECURRENT_H
#define AGK_RECURRENT_H

#include "kernels/short_dot.h"
#include "units.h"

/* The row at i1, i2, i3 of an f32 operand whose rows have no gaps. */
static inline const float *agk_f32_row(const agk_view *v, const char *data, int64_t i1, int64_t i2, int64_t i3)
{
    return (const float *)(const void *)(data + i1 * v->nb[1] + i2 * v->nb[2] + i3 * v->nb[3]);
}

/* f32, rows without gaps. */
static inline agk_status agk_expect_rows(agk_lowering *lowering, int i)
{
    const agk_view *v = &lowering->node->src[i];
    if (v->type == AGK_F32 && agk_dense_row(v)) return AGK_OK;
    return agk_refuse(lowering, AGK_UNSUPPORTED,
                      "operand %d is %s with elements %lld bytes apart; expected contiguous rows of f32", i,
                      agk_type_name(v->type), (long long)v->nb[0]);
}

#endif
