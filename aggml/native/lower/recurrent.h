/* What the recurrent families share: dot products of short rows, and the state of one head. */
#ifndef AGK_RECURRENT_H
#define AGK_RECURRENT_H

#include "units.h"

/* Eight sums side by side, so that the compiler needs no leave to reorder. */
static inline float agk_short_dot(int64_t n, const float *x, const float *y)
{
    float sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; ++k) sum[k] += x[i + k] * y[i + k];
    }
    float rest = 0.0f;
    for (; i < n; ++i) rest += x[i] * y[i];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7])) + rest;
}

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
    return agk_refuse(lowering, AGK_UNSUPPORTED, "operand %d is %s, its elements %lld bytes apart", i,
                      agk_type_name(v->type), (long long)v->nb[0]);
}

#endif
