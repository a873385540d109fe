/* One token of a recurrence in plain C: kernel_types.h has the formulas. Not here: the walk over tokens
 * (lower/recurrent.c). */
#include <math.h>

#include "kernels/short_dot.h"
#include "table/kernel_types.h"

void agk_recurrent_outer_scalar(bool gla, const agk_token *t)
{
    const int64_t d = t->n;
    for (int64_t j = 0; j < d; ++j) t->y[j] = 0.0f;
    for (int64_t i = 0; i < t->rows; ++i) {
        const float *old = t->before + i * d;
        float *row = t->state + i * d;
        const float key = t->k[i], decay = t->decay[i], r = t->r[i];
        if (gla) {
            for (int64_t j = 0; j < d; ++j) {
                row[j] = old[j] * decay + key * t->v[j];
                t->y[j] += row[j] * (r * t->scale);
            }
        } else {
            const float first = t->first[i];
            for (int64_t j = 0; j < d; ++j) {
                const float kv = key * t->v[j];
                t->y[j] += (kv * first + old[j]) * r;
                row[j] = old[j] * decay + kv;
            }
        }
    }
}

void agk_recurrent_wkv7_scalar(const agk_token *t)
{
    const int64_t d = t->n;
    for (int64_t i = 0; i < t->rows; ++i) {
        const float *old = t->before + i * d;
        float *row = t->state + i * d;
        const float along = agk_short_dot(d, t->a, old);
        for (int64_t j = 0; j < d; ++j) row[j] = old[j] * t->decay[j] + t->v[i] * t->k[j] + along * t->b[j];
        t->y[i] = agk_short_dot(d, row, t->r);
    }
}

void agk_recurrent_delta_scalar(const agk_token *t)
{
    const int64_t d = t->n;
    for (int64_t i = 0; i < t->rows; ++i) {
        const float *old = t->before + i * d;
        float *row = t->state + i * d;
        for (int64_t j = 0; j < d; ++j) row[j] = old[j] * t->decay[t->one_decay ? 0 : j];
        const float delta = (t->v[i] - agk_short_dot(d, row, t->k)) * t->beta;
        for (int64_t j = 0; j < d; ++j) row[j] += delta * t->k[j];
        t->y[i] = agk_short_dot(d, row, t->r) * t->scale;
    }
}

void agk_recurrent_scan_scalar(const agk_token *t)
{
    for (int64_t p = 0; p < t->rows; ++p) {
        const float *old = t->before + p * t->n;
        float *row = t->state + p * t->n;
        const float in = t->v[p] * t->scale;
        for (int64_t i = 0; i < t->n; ++i) row[i] = old[i] * t->decay[t->one_decay ? 0 : i] + t->k[i] * in;
        t->y[p] = agk_short_dot(t->n, row, t->r);
    }
}

void agk_recurrent_decays_scalar(int64_t n, float *y, const float *x, float scale)
{
    for (int64_t i = 0; i < n; ++i) y[i] = expf(scale * x[i]);
}
