/* One token of a recurrence on vectors: kernel_types.h has the formulas. Included after an ISA's math.h.
 *
 * Sums along a row are in VF lanes, four rows at a time, so that four chains run in parallel. */
#ifndef AGK_VEC_RECURRENT_H
#define AGK_VEC_RECURRENT_H

#include "table/kernel_types.h"
#include "math.h"

AGK_INLINE vf v_part(const float *p, int64_t n)
{
    if (n >= VF) return v_load(p);
    return v_load_n(p, n);
}

AGK_INLINE vf v_decay(const agk_token *t, int64_t j)
{
    if (t->one_decay) return v_set(t->decay[0]);
    return v_part(t->decay + j, t->n - j);
}

/* out[i] = the sum of the lanes of x[i], of 4 or 1. */
AGK_INLINE void v_sums(int count, const vf *x, float *out)
{
    if (count == 4)
        v_sum4(x, out);
    else
        out[0] = v_sum(x[0]);
}

AGK_INLINE void v_put(float *p, vf x, int64_t n)
{
    if (n >= VF)
        v_store(p, x);
    else
        v_store_n(p, x, n);
}

/* Columns j .. j + W * VF - 1 of all rows: the output stays in registers. */
AGK_INLINE void v_outer_columns(bool gla, int width, const agk_token *t, int64_t j)
{
    const int64_t d = t->n, left = width == 4 ? 4 * VF : d - j; /* four vectors are whole ones */
    vf v[4], y[4];
#pragma GCC unroll 4
    for (int c = 0; c < width; ++c) {
        v[c] = v_part(t->v + j + c * VF, left - c * VF);
        y[c] = v_zero();
    }
    for (int64_t i = 0; i < t->rows; ++i) {
        const float *before = t->before + i * d + j;
        float *row = t->state + i * d + j;
        const vf key = v_set(t->k[i]), decay = v_set(t->decay[i]), r = v_set(gla ? t->r[i] * t->scale : t->r[i]);
        const vf first = v_set(gla ? 0.0f : t->first[i]);
        vf old[4]; /* all are loaded before the first is stored: the compiler must suppose that row overlaps before */
#pragma GCC unroll 4
        for (int c = 0; c < width; ++c) old[c] = v_part(before + c * VF, left - c * VF);
#pragma GCC unroll 4
        for (int c = 0; c < width; ++c) {
            const vf kv = key * v[c], new = v_fma(old[c], decay, kv);
            if (gla)
                y[c] = v_fma(new, r, y[c]);
            else
                y[c] = v_fma(v_fma(kv, first, old[c]), r, y[c]);
            v_put(row + c * VF, new, left - c * VF);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < width; ++c) v_put(t->y + j + c * VF, y[c], left - c * VF);
}

AGK_INLINE void v_outer(bool gla, const agk_token *t)
{
    int64_t j = 0;
    for (; j + 4 * VF <= t->n; j += 4 * VF) v_outer_columns(gla, 4, t, j);
    for (; j < t->n; j += VF) v_outer_columns(gla, 1, t, j);
}

/* Whether rows of n are computed by the functions for whole vectors, four rows at a time. They read the fields of a
 * token once, and load before they store: a vector that is stored might overlap anything, for all that the compiler
 * knows. (8 lanes; the others were not measured.) */
AGK_INLINE bool v_whole(int64_t n)
{
    return VF == 8 && n > 0 && n % VF == 0;
}

/* Rows whose sums along the old state are computed together, before any of them is updated: the update of four rows
 * waits for its sums some 60 cycles, which is as long as it takes. */
enum { V_AHEAD = 16 };

/* `rows` of them, a multiple of 4. */
AGK_INLINE void v_wkv7_whole(const agk_token *t, int64_t i, int64_t rows)
{
    const int64_t d = t->n;
    const float *before = t->before + i * d, *a = t->a, *w = t->decay, *k = t->k, *b = t->b, *r = t->r;
    float *state = t->state + i * d, along[V_AHEAD];
    for (int64_t row = 0; row < rows; row += 4) {
        vf sum[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) sum[c] = v_zero();
        for (int64_t j = 0; j < d; j += VF) {
            const vf each = v_load(a + j);
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) sum[c] = v_fma(each, v_load(before + (row + c) * d + j), sum[c]);
        }
        v_sum4(sum, along + row);
    }
    for (int64_t row = 0; row < rows; row += 4) {
        vf sum[4], v[4], by[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            v[c] = v_set(t->v[i + row + c]);
            by[c] = v_set(along[row + c]);
            sum[c] = v_zero();
        }
        for (int64_t j = 0; j < d; j += VF) {
            const vf key = v_load(k + j), decay = v_load(w + j), more = v_load(b + j), out = v_load(r + j);
            vf x[4];
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) x[c] = v_fma(v_load(before + (row + c) * d + j), decay, v[c] * key);
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) {
                x[c] = v_fma(by[c], more, x[c]);
                sum[c] = v_fma(x[c], out, sum[c]);
                v_store(state + (row + c) * d + j, x[c]);
            }
        }
        v_sum4(sum, t->y + i + row);
    }
}

/* `count` rows from i on. */
AGK_INLINE void v_wkv7_rows(int count, const agk_token *t, int64_t i)
{
    const int64_t d = t->n;
    vf sum[4], v[4];
    float along[4];
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) sum[c] = v_zero();
    for (int64_t j = 0; j < d; j += VF) {
        const vf a = v_part(t->a + j, d - j);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) sum[c] = v_fma(a, v_part(t->before + (i + c) * d + j, d - j), sum[c]);
    }
    v_sums(count, sum, along);
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) {
        sum[c] = v_zero();
        v[c] = v_set(t->v[i + c]);
    }
    for (int64_t j = 0; j < d; j += VF) {
        const vf w = v_part(t->decay + j, d - j), k = v_part(t->k + j, d - j), b = v_part(t->b + j, d - j);
        const vf r = v_part(t->r + j, d - j);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) {
            const int64_t at = (i + c) * d + j;
            vf x = v_fma(v_part(t->before + at, d - j), w, v[c] * k);
            x = v_fma(v_set(along[c]), b, x);
            v_put(t->state + at, x, d - j);
            sum[c] = v_fma(x, r, sum[c]);
        }
    }
    v_sums(count, sum, t->y + i);
}

AGK_INLINE void v_wkv7(const agk_token *t)
{
    int64_t i = 0;
    while (v_whole(t->n) && i + 4 <= t->rows) {
        const int64_t rest = (t->rows - i) & ~(int64_t)3, rows = rest < V_AHEAD ? rest : V_AHEAD;
        v_wkv7_whole(t, i, rows);
        i += rows;
    }
    for (; i + 4 <= t->rows; i += 4) v_wkv7_rows(4, t, i);
    for (; i < t->rows; ++i) v_wkv7_rows(1, t, i);
}

/* `rows` of them, a multiple of 4; one: all columns have one decay. */
AGK_INLINE void v_delta_whole(bool one, const agk_token *t, int64_t i, int64_t rows)
{
    const int64_t d = t->n;
    const float *before = t->before + i * d, *k = t->k, *g = t->decay, *q = t->r;
    const vf only = v_set(g[0]);
    float *state = t->state + i * d, delta[V_AHEAD], y[4];
    for (int64_t row = 0; row < rows; row += 4) {
        vf sum[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) sum[c] = v_zero();
        for (int64_t j = 0; j < d; j += VF) {
            const vf key = v_load(k + j), decay = one ? only : v_load(g + j);
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) sum[c] = v_fma(v_load(before + (row + c) * d + j) * decay, key, sum[c]);
        }
        v_sum4(sum, delta + row);
    }
    for (int64_t row = 0; row < rows; ++row) delta[row] = (t->v[i + row] - delta[row]) * t->beta;
    for (int64_t row = 0; row < rows; row += 4) {
        vf sum[4], by[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            by[c] = v_set(delta[row + c]);
            sum[c] = v_zero();
        }
        for (int64_t j = 0; j < d; j += VF) {
            const vf key = v_load(k + j), decay = one ? only : v_load(g + j), out = v_load(q + j);
            vf x[4];
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) x[c] = v_load(before + (row + c) * d + j) * decay;
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) {
                x[c] = v_fma(by[c], key, x[c]);
                sum[c] = v_fma(x[c], out, sum[c]);
                v_store(state + (row + c) * d + j, x[c]);
            }
        }
        v_sum4(sum, y);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) t->y[i + row + c] = y[c] * t->scale;
    }
}

AGK_INLINE void v_delta_rows(int count, const agk_token *t, int64_t i)
{
    const int64_t d = t->n;
    vf sum[4];
    float delta[4];
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) sum[c] = v_zero();
    for (int64_t j = 0; j < d; j += VF) {
        const vf k = v_part(t->k + j, d - j), decay = v_decay(t, j);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) {
            sum[c] = v_fma(v_part(t->before + (i + c) * d + j, d - j) * decay, k, sum[c]);
        }
    }
    v_sums(count, sum, delta);
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) delta[c] = (t->v[i + c] - delta[c]) * t->beta;
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) sum[c] = v_zero();
    for (int64_t j = 0; j < d; j += VF) {
        const vf k = v_part(t->k + j, d - j), decay = v_decay(t, j);
        const vf q = v_part(t->r + j, d - j);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) {
            const int64_t at = (i + c) * d + j;
            const vf x = v_fma(v_set(delta[c]), k, v_part(t->before + at, d - j) * decay);
            v_put(t->state + at, x, d - j);
            sum[c] = v_fma(x, q, sum[c]);
        }
    }
    v_sums(count, sum, t->y + i);
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) t->y[i + c] *= t->scale;
}

AGK_INLINE void v_delta(const agk_token *t)
{
    int64_t i = 0;
    while (v_whole(t->n) && i + 4 <= t->rows) {
        const int64_t rest = (t->rows - i) & ~(int64_t)3, rows = rest < V_AHEAD ? rest : V_AHEAD;
        if (t->one_decay)
            v_delta_whole(true, t, i, rows);
        else
            v_delta_whole(false, t, i, rows);
        i += rows;
    }
    for (; i + 4 <= t->rows; i += 4) v_delta_rows(4, t, i);
    for (; i < t->rows; ++i) v_delta_rows(1, t, i);
}

/* Four rows; one: all columns have one decay. */
AGK_INLINE void v_scan_whole(bool one, const agk_token *t, int64_t p)
{
    const int64_t n = t->n;
    const float *before = t->before + p * n, *k = t->k, *g = t->decay, *r = t->r;
    const vf only = v_set(g[0]);
    float *state = t->state + p * n;
    vf sum[4], in[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        sum[c] = v_zero();
        in[c] = v_set(t->v[p + c] * t->scale);
    }
    for (int64_t j = 0; j < n; j += VF) {
        const vf b = v_load(k + j), decay = one ? only : v_load(g + j), out = v_load(r + j);
        vf x[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) x[c] = v_fma(v_load(before + c * n + j), decay, b * in[c]);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            sum[c] = v_fma(x[c], out, sum[c]);
            v_store(state + c * n + j, x[c]);
        }
    }
    v_sum4(sum, t->y + p);
}

/* The decays are computed on the way; for a row of one vector they stay in a register. */
AGK_INLINE void v_scan_rows(int count, const agk_token *t, int64_t p)
{
    const int64_t n = t->n;
    vf sum[4], in[4];
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) {
        sum[c] = v_zero();
        in[c] = v_set(t->v[p + c] * t->scale);
    }
    for (int64_t j = 0; j < n; j += VF) {
        const vf decay = v_decay(t, j);
        const vf b = v_part(t->k + j, n - j), out = v_part(t->r + j, n - j);
#pragma GCC unroll 4
        for (int c = 0; c < count; ++c) {
            const int64_t at = (p + c) * n + j;
            const vf x = v_fma(v_part(t->before + at, n - j), decay, b * in[c]);
            v_put(t->state + at, x, n - j);
            sum[c] = v_fma(x, out, sum[c]);
        }
    }
    v_sums(count, sum, t->y + p);
}

AGK_INLINE void v_scan(const agk_token *t)
{
    int64_t p = 0;
    if (v_whole(t->n) && t->one_decay) {
        for (; p + 4 <= t->rows; p += 4) v_scan_whole(true, t, p);
    } else if (v_whole(t->n)) {
        for (; p + 4 <= t->rows; p += 4) v_scan_whole(false, t, p);
    }
    for (; p + 4 <= t->rows; p += 4) v_scan_rows(4, t, p);
    for (; p < t->rows; ++p) v_scan_rows(1, t, p);
}

/* y = e^(scale * x) */
AGK_INLINE void v_decays(int64_t n, float *y, const float *x, float scale)
{
    for (int64_t i = 0; i < n; i += VF) v_put(y + i, v_exp(v_part(x + i, n - i) * v_set(scale)), n - i);
}

/* The kernels of this file, named for an instruction set. */
#define V_RECURRENT_KERNELS(isa) \
    void agk_recurrent_outer_##isa(bool gla, const agk_token *t) \
    { \
        if (gla) \
            v_outer(true, t); \
        else \
            v_outer(false, t); \
    } \
    void agk_recurrent_wkv7_##isa(const agk_token *t) \
    { \
        v_wkv7(t); \
    } \
    void agk_recurrent_delta_##isa(const agk_token *t) \
    { \
        v_delta(t); \
    } \
    void agk_recurrent_scan_##isa(const agk_token *t) \
    { \
        v_scan(t); \
    } \
    void agk_recurrent_decays_##isa(int64_t n, float *y, const float *x, float scale) \
    { \
        v_decays(n, y, x, scale); \
    }

#endif
