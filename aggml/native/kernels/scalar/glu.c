/* Gated units f(x) * g of f32 in plain C. Not here: the functions f (unary.c), which rows are walked (lower/glu.c). */
#include <math.h>

#include "table/kernel_types.h"

enum { PART = 512 }; /* elements whose f(x) is kept at a time: 2 KB of the stack */

void agk_glu_f32_scalar(int op, int64_t n, float *y, const float *x, const float *g)
{
    float value[PART];
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t part = n - i < PART ? n - i : PART;
        agk_unary_f32_scalar(op, part, value, x + i);
        for (int64_t k = 0; k < part; ++k) y[i + k] = value[k] * g[i + k];
    }
}

/* min(x, limit) * sigmoid(alpha * min(x, limit)) * (g within +-limit, plus offset); NaN passes */
void agk_glu_limited_f32_scalar(int64_t n, float *y, const float *x, const float *g, float alpha, float limit,
                                float offset)
{
    for (int64_t i = 0; i < n; ++i) {
        const float v = limit < x[i] ? limit : x[i];
        const float w = limit < g[i] ? limit : g[i];
        y[i] = v / (1.0f + expf(-alpha * v)) * ((w < -limit ? -limit : w) + offset);
    }
}
