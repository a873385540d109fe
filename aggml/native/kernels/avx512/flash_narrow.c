/* flash_attn_ext of a few rows (decoding), AVX-512: four rows at a time, keys and values as they lie.
 *
 * Against plain C: f32 sums in another order, within 2e-6 of the largest value that a row attends to. Not here: the
 * other instruction sets (kernels/vec/flash_narrow.h), the walk over heads and blocks
 * (lower/attention/flash_decode.c). */
#include "flash_narrow.h"

/* A vector of logits has four keys of each of four rows, so maxima, exponentials and sums of four rows are computed
 * together: S is [rows / 4][keys / 4][4 rows][4 keys]. A Zen 4 starts one product of 16 lanes in each cycle and does
 * everything else in parallel, with two exceptions:
 * - A broadcast into a register takes the place of a product; a broadcast that is an operand of a product does not. So
 *   probabilities, and scales of quantized keys, are operands in memory.
 * - Prefetches in a burst, or into L1, wait for buffers. So lines are prefetched between products, one at a time, in
 *   the order of memory, a block ahead. */

/* -- from keys to products */

AGK_INLINE void add_products(int rows, const vf x[QUAD], const agk_flash_tile *t, const char *q, int64_t n,
                             vf acc[ROWS][QUAD])
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        const vf y = v_part(AGK_F32, q + r * t->q_step, 0, n);
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) acc[r][j] = v_fma(x[j], y, acc[r][j]);
    }
}

/* Four rows and four keys, the keys at k[0] .. k[3]. */
AGK_INLINE vf dots(int type, int rows, const agk_flash_tile *t, const char *q, const char *const k[QUAD], lines *l)
{
    vf acc[ROWS][QUAD];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) acc[r][j] = v_zero();
    }
    int64_t i = 0;
    for (; v_in_blocks(type) && i < t->d; i += V_BLOCK) {
        vf x[2][QUAD];
        const char *at[QUAD];
        float scales[QUAD];
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) at[j] = v_at(type, k[j], i);
        _mm_storeu_ps(scales, scales_of(type, at[0], at[1], at[2], at[3]));
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) {
            vf both[2];
            of_block(type, at[j], &scales[j], both);
            x[0][j] = both[0];
            x[1][j] = both[1];
        }
        add_products(rows, x[0], t, q + 4 * i, VF, acc);
        add_products(rows, x[1], t, q + 4 * (i + VF), VF, acc);
        ask(l, &acc[0][0]);
    }
    for (; !v_in_blocks(type) && i + VF <= t->d; i += VF) {
        vf x[QUAD];
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) x[j] = v_part(type, v_at(type, k[j], i), 0, VF);
        add_products(rows, x, t, q + 4 * i, VF, acc);
        ask(l, &acc[0][0]);
    }
    if (i < t->d) {
        vf x[QUAD];
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) x[j] = v_part(type, v_at(type, k[j], i), 0, t->d - i);
        add_products(rows, x, t, q + 4 * i, t->d - i, acc);
    }
    vf sums[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sums[r] = r < rows ? lanes(acc[r][0], acc[r][1], acc[r][2], acc[r][3]) : v_zero();
    return quarters(sums[0], sums[1], sums[2], sums[3]);
}

/* Probabilities of n keys. */
AGK_INLINE void probabilities(int type, int rows, const agk_flash_tile *t, const agk_flash_narrow *f, int64_t row,
                              int64_t first, int64_t n, const char *k, agk_flash_ahead ahead)
{
    const char *q = t->q + row * t->q_step;
    float *p = f->s + row * AGK_FLASH_KEYS, s[ROWS * AGK_FLASH_KEYS];
    const vf old = by_row(f->max + row, rows);
    logits g = logits_begin(t, f, row, first, n, rows);
    lines l = lines_of(ahead, n, (n + QUAD - 1) / QUAD * (t->d / (v_in_blocks(type) ? V_BLOCK : VF)));
    vf max = old, sum = v_zero();
    for (int64_t j = 0; j < n; j += QUAD) {
        const char *at[QUAD];
#pragma GCC unroll 4
        /* missing keys repeat the last one */
        for (int h = 0; h < QUAD; ++h) at[h] = k + (j + h < n ? j + h : n - 1) * t->k_step;
        add_quad(&g, j, dots(type, rows, t, q, at, &l), s, p, &max, &sum);
    }
    logits_end(&g, f, old, max, sum, s, p);
}

/* -- values */

typedef struct part { /* a part of the width: nv vectors from element i on; n < VF: a part of one vector */
    int64_t i, n;
} part;

/* Probabilities of four keys times the scales of their blocks, of two blocks. */
AGK_INLINE void scale_quad(int type, int blocks, const agk_flash_tile *t, int64_t left, const float *p, const char *v,
                           float to[2][VF])
{
    const int64_t size = v_at(type, v, V_BLOCK) - v;
    const char *at[QUAD];
#pragma GCC unroll 4
    for (int h = 0; h < QUAD; ++h) at[h] = v + (h < left ? h : left - 1) * t->v_step;
#pragma GCC unroll 2
    for (int b = 0; b < blocks; ++b) {
        const __m128 d = scales_of(type, at[0] + b * size, at[1] + b * size, at[2] + b * size, at[3] + b * size);
        v_store(to[b], v_load(p) * _mm512_broadcast_f32x4(d));
    }
}

AGK_INLINE void add_value(int type, int rows, int nv, int64_t n, const char *v, int64_t i, const float *p,
                          const float *p1, vf acc[ROWS][WIDE])
{
    vf x[WIDE];
    if (v_in_blocks(type)) {
#pragma GCC unroll 2
        for (int b = 0; b < nv / 2; ++b) of_block(type, v_at(type, v, i + b * V_BLOCK), NULL, x + 2 * b);
    } else {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) x[h] = v_part(type, v_at(type, v, i), h * VF, n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) add_times(&acc[r][h], x[h], (h < 2 ? p : p1) + r * QUAD);
    }
}

/* o[r] = o[r] * shrink[r] + sum of p[r][j] * v[j]. */
AGK_INLINE void values(int type, int rows, int nv, const agk_flash_tile *t, part at, int64_t n, const float *p,
                       const char *v, lines *l, const float *shrink, float *o)
{
    const int64_t i = at.i;
    vf acc[ROWS][WIDE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) {
            acc[r][h] = v_part(AGK_F32, (const char *)(o + r * t->dv + i), h * VF, at.n) * v_set(shrink[r]);
        }
    }
    float scaled[2][2][VF]; /* for these four keys and the next four, two blocks each */
    if (v_in_blocks(type)) scale_quad(type, nv / 2, t, n, p, v_at(type, v, i), scaled[0]);
    for (int64_t j = 0; j < n; j += QUAD, p += VF) {
        const float *p0 = p, *p1 = p;
        if (v_in_blocks(type)) {
            const int this = (int)(j / QUAD % 2);
            const char *next = v_at(type, v + QUAD * t->v_step, i);
            if (j + QUAD < n) scale_quad(type, nv / 2, t, n - j - QUAD, p + VF, next, scaled[1 - this]);
            p0 = scaled[this][0];
            p1 = scaled[this][nv > 2];
        }
        const int64_t last = n - j < QUAD ? n - j : QUAD;
        for (int64_t h = 0; h < last; ++h, v += t->v_step) {
            add_value(type, rows, nv, at.n, v, i, p0 + h, p1 + h, acc);
            ask(l, &acc[0][0]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        float *to = o + r * t->dv + i;
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) {
            if (at.n >= VF)
                v_store(to + h * VF, acc[r][h]);
            else
                v_store_n(to, acc[r][h], at.n);
        }
    }
}

AGK_INLINE void all_values(int type, int rows, const agk_flash_tile *t, int64_t n, const float *p, const char *v,
                           agk_flash_ahead ahead, const float *shrink, float *o)
{
    lines l = lines_of(ahead, n, n * (t->dv / (WIDE * VF) + (t->dv % (WIDE * VF) + VF - 1) / VF));
    part at = {0, VF};
    for (; at.i + WIDE * VF <= t->dv; at.i += WIDE * VF) values(type, rows, WIDE, t, at, n, p, v, &l, shrink, o);
    for (; v_in_blocks(type) && at.i < t->dv; at.i += V_BLOCK) values(type, rows, 2, t, at, n, p, v, &l, shrink, o);
    for (; !v_in_blocks(type) && at.i < t->dv; at.i += VF) {
        at.n = t->dv - at.i;
        values(type, rows, 1, t, at, n, p, v, &l, shrink, o);
    }
}

AGK_INLINE void typed_probabilities(int type, int rows, const agk_flash_tile *t, const agk_flash_narrow *f, int64_t row,
                                    int64_t first, int64_t n, const char *k, agk_flash_ahead ahead)
{
    switch (rows) {
    case 1: probabilities(type, 1, t, f, row, first, n, k, ahead); break;
    case 2: probabilities(type, 2, t, f, row, first, n, k, ahead); break;
    case 3: probabilities(type, 3, t, f, row, first, n, k, ahead); break;
    default: probabilities(type, 4, t, f, row, first, n, k, ahead); break;
    }
}

AGK_INLINE void typed_values(int type, int rows, const agk_flash_tile *t, int64_t n, const float *p, const char *v,
                             agk_flash_ahead ahead, const float *shrink, float *o)
{
    switch (rows) {
    case 1: all_values(type, 1, t, n, p, v, ahead, shrink, o); break;
    case 2: all_values(type, 2, t, n, p, v, ahead, shrink, o); break;
    case 3: all_values(type, 3, t, n, p, v, ahead, shrink, o); break;
    default: all_values(type, 4, t, n, p, v, ahead, shrink, o); break;
    }
}

void agk_flash_narrow_values(const agk_flash_tile *t, int64_t n, const char *v)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const agk_flash_ahead none = {.rows = v};
    for (int64_t r = 0; r < t->n_rows; r += ROWS) {
        const int rows = t->n_rows - r < ROWS ? (int)(t->n_rows - r) : ROWS;
        const agk_flash_ahead ahead = r == 0 ? t->v_ahead : none;
        const float *p = f.s + r * AGK_FLASH_KEYS, *shrink = f.shrink + r;
        float *o = f.o + r * t->dv;
        switch (t->v_type) {
        case AGK_F16: typed_values(AGK_F16, rows, t, n, p, v, ahead, shrink, o); break;
        case AGK_BF16: typed_values(AGK_BF16, rows, t, n, p, v, ahead, shrink, o); break;
        case AGK_Q8_0: typed_values(AGK_Q8_0, rows, t, n, p, v, ahead, shrink, o); break;
        case AGK_Q4_0: typed_values(AGK_Q4_0, rows, t, n, p, v, ahead, shrink, o); break;
        default: typed_values(AGK_F32, rows, t, n, p, v, ahead, shrink, o); break;
        }
    }
}

void agk_flash_narrow_block_avx512(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const agk_flash_ahead none = {.rows = k};
    for (int64_t r = 0; r < t->n_rows; r += ROWS) { /* only the first rows prefetch the next block */
        const int rows = t->n_rows - r < ROWS ? (int)(t->n_rows - r) : ROWS;
        const agk_flash_ahead ahead = r == 0 ? t->k_ahead : none;
        switch (t->k_type) {
        case AGK_F16: typed_probabilities(AGK_F16, rows, t, &f, r, first, n, k, ahead); break;
        case AGK_BF16: typed_probabilities(AGK_BF16, rows, t, &f, r, first, n, k, ahead); break;
        case AGK_Q8_0: typed_probabilities(AGK_Q8_0, rows, t, &f, r, first, n, k, ahead); break;
        case AGK_Q4_0: typed_probabilities(AGK_Q4_0, rows, t, &f, r, first, n, k, ahead); break;
        default: typed_probabilities(AGK_F32, rows, t, &f, r, first, n, k, ahead); break;
        }
    }
    agk_flash_narrow_values(t, n, v);
}

void agk_flash_narrow_begin_avx512(const agk_flash_tile *t)
{
    v_flash_begin_narrow(t);
}

void agk_flash_narrow_end_avx512(const agk_flash_tile *t)
{
    v_flash_end_narrow(t);
}
