/* Steps of optimizers in plain C, in place. Not here: which rows are walked (lower/optimizers.c). */
#include <math.h>

#include "table/kernel_types.h"

void agk_optimizers_sgd_f32_scalar(int64_t n, float *w, const float *g, float alpha, float keep)
{
    for (int64_t i = 0; i < n; ++i) w[i] = w[i] * keep - alpha * g[i];
}

void agk_optimizers_adamw_f32_scalar(int64_t n, const agk_adamw *s)
{
    float *w = s->w, *m = s->m, *v = s->v;
    const float *g = s->g;
    for (int64_t i = 0; i < n; ++i) {
        m[i] = m[i] * s->beta1 + g[i] * (1.0f - s->beta1);
        v[i] = v[i] * s->beta2 + g[i] * g[i] * (1.0f - s->beta2);
        w[i] = w[i] * s->keep - s->alpha * (m[i] * s->of_m) / (sqrtf(v[i] * s->of_v) + s->eps);
    }
}
