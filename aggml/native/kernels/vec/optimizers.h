/* Steps of optimizers on vectors, bit for bit as in kernels/scalar/optimizers.c. Included after an ISA's math.h. */
#ifndef AGK_VEC_OPTIMIZERS_H
#define AGK_VEC_OPTIMIZERS_H

#include "table/kernel_types.h"

static inline void v_sgd(int64_t n, float *w, const float *g, float alpha, float keep)
{
    const vf a = v_set(alpha), k = v_set(keep);
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + VF <= n; i += VF) v_store(w + i, v_load(w + i) * k - a * v_load(g + i));
    if (i < n) v_store_n(w + i, v_load_n(w + i, n - i) * k - a * v_load_n(g + i, n - i), n - i);
}

static inline void v_adamw(int64_t n, const agk_adamw *s)
{
    const vf one = v_set(1.0f), b1 = v_set(s->beta1), b2 = v_set(s->beta2), keep = v_set(s->keep);
    const vf alpha = v_set(s->alpha), of_m = v_set(s->of_m), of_v = v_set(s->of_v), eps = v_set(s->eps);
    for (int64_t i = 0; i < n; i += VF) {
        const int64_t rest = n - i;
        const bool whole = rest >= VF;
        const vf g = whole ? v_load(s->g + i) : v_load_n(s->g + i, rest);
        const vf m = (whole ? v_load(s->m + i) : v_load_n(s->m + i, rest)) * b1 + g * (one - b1);
        const vf v = (whole ? v_load(s->v + i) : v_load_n(s->v + i, rest)) * b2 + g * g * (one - b2);
        const vf w = whole ? v_load(s->w + i) : v_load_n(s->w + i, rest);
        const vf next = w * keep - alpha * (m * of_m) / (v_sqrt(v * of_v) + eps);
        if (whole) {
            v_store(s->m + i, m);
            v_store(s->v + i, v);
            v_store(s->w + i, next);
        } else {
            v_store_n(s->m + i, m, rest);
            v_store_n(s->v + i, v, rest);
            v_store_n(s->w + i, next, rest);
        }
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_OPTIMIZERS_KERNELS(isa) \
    void agk_optimizers_sgd_f32_##isa(int64_t n, float *w, const float *g, float alpha, float keep) \
    { \
        v_sgd(n, w, g, alpha, keep); \
    } \
    void agk_optimizers_adamw_f32_##isa(int64_t n, const agk_adamw *s) \
    { \
        v_adamw(n, s); \
    }

#endif
