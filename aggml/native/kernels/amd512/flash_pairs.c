/* flash_attn_ext of bf16 keys and values on a Zen 4: a block of keys for a tile of rows, laid out as in vec/flash.h and
 * avx512/flash_pairs.c, which begins a tile and makes pairs of values. A Zen 4 has one product a cycle, and beside it
 * conversions, additions and broadcasts from memory for nothing. So the powers of eight keys are computed between the
 * products of the next eight.
 *
 * Not here: the end of a tile (vec/flash.h); f32 and f16: they gained 3 %, and a near tie of SmolLM2 took another token
 * than the recorded one. */
#include "table/kernel_types.h"
#include "kernels/avx512/math.h"

#include "kernels/vec/flash.h"

/* A maximum is only replaced when a logit is far above it (a power of 2^20), and is an integer, so that what was summed
 * up is scaled without rounding. (Replaced in each block that had a larger one it took 5 % of the time.) */
static const float ABOVE = 20.0f;

typedef struct lanes {
    const agk_flash_tile *t;
    v_flash f;
    int64_t lane, from, to; /* the first lane; keys of the block, counted from an even one */
    float *s, *p, *o;       /* S of 16 keys, P and O at the first lane */
    vf top[2], limit[2], sum[2];
} lanes;

/* sum += x times the pair at y, which is an operand in memory: loads of 8 of them to registers take 4 cycles beside 16
 * products. */
AGK_INLINE void add_products(vf *sum, vf x, const uint32_t *y)
{
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(x), "m"(*y));
}

/* 2^x: 2^floor(x) times a polynomial of the rest, 3e-6 relative: the result is rounded to bf16. 0 for -inf; a subnormal
 * result costs nothing. */
AGK_INLINE vf power(vf x)
{
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf q = v_set(0.0135341679f);
    q = v_fma(q, r, v_set(0.0520114606f));
    q = v_fma(q, r, v_set(0.241442757f));
    q = v_fma(q, r, v_set(0.693003834f));
    q = v_fma(q, r, v_set(1.00000259f));
    return v_ldexp(q, x);
}

/* Two keys of S become a pair of P. */
AGK_INLINE vf pair_up(vf a, vf b)
{
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both));
}

AGK_INLINE vf first_of(vf pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
AGK_INLINE vf second_of(vf pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000u)));
}

/* Stores powers of two keys, and adds them to the sum as they are after rounding. Then weights add up to 1, and a row
 * with one key gets its value, exactly. */
AGK_INLINE void add_two(vf a, vf b, float *p, vf *sum)
{
    const vf both = pair_up(a, b);
    v_store(p, both);
    *sum = *sum + (first_of(both) + second_of(both));
}

AGK_INLINE void powers_of_two(lanes *w, int h, const float *s, float *p)
{
    const vf a = power(v_load(s + h * VF) - w->top[h]), b = power(v_load(s + V_T + h * VF) - w->top[h]);
    add_two(a, b, p + h * VF, &w->sum[h]);
}

/* The same for keys j .. j + rows - 1, any number of them, by themselves. A key that is missing counts as 0. */
AGK_INLINE void powers_alone(int nv, lanes *w, int64_t j, int64_t rows, const float *s)
{
    for (int64_t i = j & ~(int64_t)1; i < j + rows; i += 2) {
        for (int h = 0; h < nv; ++h) {
            vf p[2] = {v_zero(), v_zero()};
            if (i >= j) p[0] = power(v_load(s + (i - j) * V_T + h * VF) - w->top[h]);
            if (i + 1 < j + rows) p[1] = power(v_load(s + (i + 1 - j) * V_T + h * VF) - w->top[h]);
            add_two(p[0], p[1], w->p + i / 2 * V_T + h * VF, &w->sum[h]);
        }
    }
}

/* S of `rows` keys at k to s. With `powers`, those of the 8 keys before, at `wait`, become P meanwhile. */
AGK_INLINE void scores(int nv, int rows, bool powers, lanes *w, const uint32_t *k, float *s, const float *wait,
                       float *p, vf max[2])
{
    const int64_t n = w->t->d / 2;
    const float *q = w->f.q + w->lane;
    vf acc[8][2];
    AGK_UNROLL for (int r = 0; r < rows; ++r)
    {
        AGK_UNROLL for (int h = 0; h < nv; ++h) acc[r][h] = v_zero();
    }
    int64_t i = 0;
    for (int u = powers ? 0 : 3; u < 4; ++u, wait += 2 * V_T, p += V_T) {
#pragma GCC unroll 2
        for (int part = powers ? 0 : nv - 1; part < nv; ++part) {
            const int64_t end = powers ? n * (u * nv + part + 1) / (4 * nv) : n;
            for (; i < end; ++i) {
                vf x[2];
                AGK_UNROLL for (int h = 0; h < nv; ++h) x[h] = v_load(q + i * V_T + h * VF);
                AGK_UNROLL for (int r = 0; r < rows; ++r)
                {
                    AGK_UNROLL for (int h = 0; h < nv; ++h) add_products(&acc[r][h], x[h], k + r * n + i);
                }
            }
            if (powers) powers_of_two(w, part, wait, p);
        }
    }
    AGK_UNROLL for (int h = 0; h < nv; ++h) max[h] = v_set(-__builtin_inff());
    AGK_UNROLL for (int r = 0; r < rows; ++r)
    {
        AGK_UNROLL for (int h = 0; h < nv; ++h)
        {
            v_store(s + r * V_T + h * VF, acc[r][h]);
            max[h] = v_max(acc[r][h], max[h]);
        }
    }
}

/* A row has seen its first key, or one far above its maximum. What was computed with the old one is scaled down: sums,
 * O, and P of the keys before j. The other rows keep their maxima, and their bits: a row does not depend on its
 * neighbours. */
static __attribute__((noinline)) void raise_top(lanes *w, int h, int64_t j, vf max)
{
    const vf low = v_set(-__builtin_inff()), old = v_load(w->f.max + w->lane + h * VF);
    const vf above = _mm512_roundscale_ps(max, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const vf new = v_select(v_lt(w->limit[h], max), above, old);
    const vf safe = v_select(v_eq(new, low), v_zero(), new), shrink = v_ldexp(v_set(1.0f), old - safe);
    if (v_any(v_lt(low, old))) {
        w->sum[h] = w->sum[h] * shrink;
        for (int64_t i = 0; i < w->t->dv; ++i) {
            float *o = w->o + i * V_T + h * VF;
            v_store(o, v_load(o) * shrink);
        }
        for (int64_t i = 0; i < (j + 1) / 2; ++i) {
            float *p = w->p + i * V_T + h * VF;
            const vf x = v_load(p);
            v_store(p, pair_up(first_of(x) * shrink, second_of(x) * shrink));
        }
    }
    v_store(w->f.max + w->lane + h * VF, new);
    w->top[h] = safe;
    w->limit[h] = new + v_set(ABOVE);
}

/* S of keys j .. j + rows - 1 with softcap and mask, and a maximum that is not far below them. */
AGK_INLINE void look(int nv, lanes *w, int64_t j, int64_t rows, float *s, vf max[2])
{
    const agk_flash_tile *t = w->t;
    const int form = t->mask_form;
    const vf low = v_set(-__builtin_inff());
    if (form != AGK_FLASH_NO_MASK || t->softcap > 0.0f) {
        const int64_t i = j - w->from;
        for (int h = 0; h < nv; ++h) {
            const int64_t lane = w->lane + h * VF;
            if (form == AGK_FLASH_FULL_MASK)
                max[h] = v_flash_logits(AGK_FLASH_FULL_MASK, t, lane, rows, s + h * VF, w->f.m + i * V_T + lane, low);
            else if (form == AGK_FLASH_SAME_MASK)
                max[h] = v_flash_logits(AGK_FLASH_SAME_MASK, t, lane, rows, s + h * VF, w->f.m + i, low);
            else
                max[h] = v_flash_logits(AGK_FLASH_NO_MASK, t, lane, rows, s + h * VF, w->f.m, low);
        }
    }
    for (int h = 0; h < nv; ++h) {
        if (v_any(v_lt(w->limit[h], max[h]))) raise_top(w, h, j, max[h]);
    }
}

/* P of all keys of the block. */
AGK_INLINE void probabilities(int nv, lanes *w, const uint32_t *k)
{
    const agk_flash_tile *t = w->t;
    const int64_t n = t->d / 2, ask = w->lane == 0 ? 1 : 0;
    float *s = w->s, *other = w->s;
    bool waits = false;
    for (int64_t j = w->from, rows; j < w->to; j += rows, k += rows * n) {
        const int64_t left = w->to - j;
        rows = j % 2 != 0 ? 1 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        s = other == w->s ? w->s + 8 * V_T : w->s; /* two places in turns */
        vf max[2];
        v_flash_ask(&t->k_ahead, ask * (j - w->from), ask * (j - w->from + rows));
        if (waits && rows == 8) {
            scores(nv, 8, true, w, k, s, other, w->p + (j / 2 - 4) * V_T, max);
        } else {
            if (waits) powers_alone(nv, w, j - 8, 8, other);
            if (rows == 8)
                scores(nv, 8, false, w, k, s, NULL, NULL, max);
            else if (rows == 4)
                scores(nv, 4, false, w, k, s, NULL, NULL, max);
            else if (rows == 2)
                scores(nv, 2, false, w, k, s, NULL, NULL, max);
            else
                scores(nv, 1, false, w, k, s, NULL, NULL, max);
        }
        look(nv, w, j, rows, s, max);
        waits = rows == 8;
        if (!waits) powers_alone(nv, w, j, rows, s);
        other = s;
    }
    if (waits) powers_alone(nv, w, w->to - 8, 8, other);
}

/* O of `rows` numbers of values += P of n pairs of keys times v [n][dv]. */
AGK_INLINE void some_values(int nv, int rows, int64_t n, int64_t dv, const float *p, const uint32_t *v, float *o)
{
    vf acc[8][2];
    AGK_UNROLL for (int r = 0; r < rows; ++r)
    {
        AGK_UNROLL for (int h = 0; h < nv; ++h) acc[r][h] = v_load(o + r * V_T + h * VF);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; ++i, v += dv, p += V_T) {
        vf x[2];
        AGK_UNROLL for (int h = 0; h < nv; ++h) x[h] = v_load(p + h * VF);
        AGK_UNROLL for (int r = 0; r < rows; ++r)
        {
            AGK_UNROLL for (int h = 0; h < nv; ++h) add_products(&acc[r][h], x[h], v + r);
        }
    }
    AGK_UNROLL for (int r = 0; r < rows; ++r)
    {
        AGK_UNROLL for (int h = 0; h < nv; ++h) v_store(o + r * V_T + h * VF, acc[r][h]);
    }
}

/* The same for half a pair. The other key may be NaN, so it is removed. */
AGK_INLINE void half_a_pair(int nv, uint32_t mask, int64_t dv, const float *p, const uint32_t *v, float *o)
{
    for (int64_t i = 0; i < dv; ++i) {
        const uint32_t one = v[i] & mask;
        for (int h = 0; h < nv; ++h) {
            vf sum = v_load(o + i * V_T + h * VF);
            add_products(&sum, v_load(p + h * VF), &one);
            v_store(o + i * V_T + h * VF, sum);
        }
    }
}

AGK_INLINE void values(int nv, lanes *w, const uint32_t *v)
{
    const agk_flash_tile *t = w->t;
    const int64_t first = (w->from + 1) / 2, last = w->to / 2; /* whole pairs */
    const int64_t n = last - first, dv = t->dv;
    const int64_t keys = w->lane == 0 ? w->to - w->from : 0;
    const float *p = w->p + first * V_T;
    const uint32_t *whole = v + first * dv;
    int64_t i = 0;
    for (; i + 8 <= dv && n > 0; i += 8) {
        v_flash_ask(&t->v_ahead, i * keys / dv, (i + 8) * keys / dv);
        some_values(nv, 8, n, dv, p, whole + i, w->o + i * V_T);
    }
    for (; i < dv && n > 0; ++i) some_values(nv, 1, n, dv, p, whole + i, w->o + i * V_T);
    if (w->from % 2 != 0) half_a_pair(nv, 0xffff0000u, dv, w->p, v, w->o);
    if (w->to % 2 != 0) half_a_pair(nv, 0x0000ffffu, dv, w->p + last * V_T, v + last * dv, w->o);
}

AGK_INLINE void block(int nv, lanes *w, const uint32_t *k, const uint32_t *v)
{
    const vf low = v_set(-__builtin_inff());
    AGK_UNROLL for (int h = 0; h < nv; ++h)
    {
        const vf max = v_load(w->f.max + w->lane + h * VF);
        w->top[h] = v_select(v_eq(max, low), v_zero(), max);
        w->limit[h] = max + v_set(ABOVE);
        w->sum[h] = v_load(w->f.sum + w->lane + h * VF);
    }
    probabilities(nv, w, k);
    values(nv, w, v);
    AGK_UNROLL for (int h = 0; h < nv; ++h) v_store(w->f.sum + w->lane + h * VF, w->sum[h]);
}

/* Without a mask a block may have twice as many keys: P is half as large as S, and S of the 16 keys on their way lies
 * where the mask would be; else behind P. */
void agk_flash_pairs_block_amd512(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    lanes w = {.t = t, .f = v_flash_state(t), .from = first & 1};
    w.to = w.from + n;
    v_flash_mask(t, &w.f, first, n);
    for (; w.lane < t->n_rows; w.lane += 2 * VF) {
        w.p = w.f.s + w.lane;
        w.s = (t->mask_form == AGK_FLASH_NO_MASK ? w.f.m : w.f.s + AGK_FLASH_KEYS / 2 * V_T) + w.lane;
        w.o = w.f.o + w.lane;
        if (t->n_rows - w.lane > VF)
            block(2, &w, k, v);
        else
            block(1, &w, k, v);
    }
}
