/* flash_attn_ext of bf16 keys and values, AVX-512 BF16: tiles of rows in the lanes, products of pairs by vdpbf16ps, for
 * CPUs where that does more products than FMA (AGK_FAST_BF16). Q and the probabilities are rounded to bf16; sums are
 * f32.
 *
 * Q^T is in pairs of the width [d / 2][32][2], K as it lies; the probabilities and values are in pairs of keys, P
 * [pairs][32][2] in the place of S, V [pairs][dv][2]. Pairs are counted from the first key of the head, so a block
 * may begin or end within a pair. The other key of such a pair does not belong to the block and may be NaN. Not
 * here: other types (kernels/vec/flash.h, whose S, O and sums are used here). */
#include "table/kernel_types.h"
#include "math.h"

#include "kernels/vec/flash.h"

/* 16 pairs of floats from a row, as bf16; the row has n < 32 of them. */
AGK_INLINE __m512i pairs_of_row(const float *x, int64_t n, vf scale)
{
    const __mmask16 low = n < 16 ? v_first(n) : 0xffff, high = n > 16 ? (n < 32 ? v_first(n - 16) : 0xffff) : 0;
    const __m512 a = _mm512_maskz_loadu_ps(low, x) * scale, b = _mm512_maskz_loadu_ps(high, x + 16) * scale;
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* 32 elements of 16 rows, `step` bytes apart, as pairs [16][16 rows] at `to`. Missing rows and elements are 0; whole:
 * there are none. */
AGK_INLINE void turn_rows(bool whole, const char *q, int64_t step, int64_t n_rows, int64_t n, vf scale, float *to)
{
    vf r[VF];
    AGK_UNROLL for (int lane = 0; lane < VF; ++lane, q += step)
    {
        r[lane] = v_zero();
        if (!whole && lane >= n_rows) continue;
        r[lane] = _mm512_castsi512_ps(pairs_of_row((const float *)(const void *)q, whole ? 2 * VF : n, scale));
    }
    v_transpose(r);
    AGK_UNROLL for (int k = 0; k < VF; ++k)
    {
        if (whole || k < n / 2) v_store(to + k * V_T, r[k]); /* n is even */
    }
}

void agk_flash_pairs_begin_avx512(const agk_flash_tile *t)
{
    const v_flash f = v_flash_state(t);
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale * V_LOG2E);
    for (int64_t first = 0; first < t->n_rows; first += VF) {
        const char *q = t->q + first * t->q_step;
        const int64_t n_rows = t->n_rows - first;
        float *to = f.q + first;
        for (int64_t i = 0; i < t->d; i += 2 * VF, q += 2 * VF * sizeof(float), to += VF * V_T) {
            if (n_rows >= VF && t->d - i >= 2 * VF)
                turn_rows(true, q, t->q_step, VF, 2 * VF, scale, to);
            else
                turn_rows(false, q, t->q_step, n_rows, t->d - i, scale, to);
        }
        for (int64_t i = 0; i < t->dv; ++i) v_store(f.o + i * V_T + first, v_zero());
        v_store(f.max + first, v_set(-__builtin_inff()));
        v_store(f.sum + first, v_zero());
    }
}

/* Packs rows of values to pairs of rows. */
void agk_flash_pairs_pack_avx512(int64_t n, int64_t dv, const char *rows, int64_t step, void *out)
{
    static const uint16_t order[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_loadu_si512(order), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    uint32_t *to = out;
    for (int64_t j = 0; j < n; j += 2, to += dv) {
        const uint16_t *x = (const uint16_t *)(const void *)(rows + j * step);
        const uint16_t *y = (const uint16_t *)(const void *)(rows + (j + 1) * step);
        for (int64_t i = 0; i < dv; i += 32) {
            const int64_t left = dv - i;
            const __mmask32 part = left < 32 ? (1u << left) - 1u : ~0u;
            const __m512i a = _mm512_maskz_loadu_epi16(part, x + i);
            const __m512i b = j + 1 < n ? _mm512_maskz_loadu_epi16(part, y + i) : _mm512_setzero_si512();
            const __m512i first = _mm512_permutex2var_epi16(a, low, b), second = _mm512_permutex2var_epi16(a, high, b);
            _mm512_mask_storeu_epi32(to + i, left < 16 ? v_first(left) : 0xffff, first);
            if (left > 16) _mm512_mask_storeu_epi32(to + i + 16, left < 32 ? v_first(left - 16) : 0xffff, second);
        }
    }
}

/* out[r][32] (+)= sum over i < n of the pairs a[i][32] and b[r * across + i * along] & mask, for r < rows. */
AGK_INLINE void product(int nv, int rows, int add, uint32_t mask, int64_t n, const float *a, const uint32_t *b,
                        int64_t across, int64_t along, float *out)
{
    vf acc[8][2];
    AGK_UNROLL for (int r = 0; r < rows; ++r)
    {
        AGK_UNROLL for (int h = 0; h < nv; ++h) acc[r][h] = add ? v_load(out + r * V_T + h * VF) : v_zero();
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; ++i) {
        __m512bh x[2];
        AGK_UNROLL for (int h = 0; h < nv; ++h) x[h] = (__m512bh)v_load(a + i * V_T + h * VF);
        AGK_UNROLL for (int r = 0; r < rows; ++r)
        {
            vf y = _mm512_castsi512_ps(_mm512_set1_epi32((int)(b[r * across + i * along] & mask)));
            if (nv == 2) v_keep(&y);
            AGK_UNROLL for (int h = 0; h < nv; ++h) acc[r][h] = _mm512_dpbf16_ps(acc[r][h], x[h], (__m512bh)y);
        }
    }
    AGK_UNROLL for (int r = 0; r < rows; ++r)
    {
        AGK_UNROLL for (int h = 0; h < nv; ++h) v_store(out + r * V_T + h * VF, acc[r][h]);
    }
}

AGK_INLINE void products(int nv, int add, uint32_t mask, int64_t rows, int64_t n, const float *a, const uint32_t *b,
                         int64_t across, int64_t along, float *out, const agk_flash_ahead *ahead, int64_t keys)
{
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) {
        v_flash_ask(ahead, r * keys / rows, (r + 8) * keys / rows);
        product(nv, 8, add, mask, n, a, b + r * across, across, along, out + r * V_T);
    }
    for (; r + 2 <= rows; r += 2) product(nv, 2, add, mask, n, a, b + r * across, across, along, out + r * V_T);
    if (r < rows) product(nv, 1, add, mask, n, a, b + r * across, across, along, out + r * V_T);
}

/* Turns rows `from` to `to` of S into pairs of 2^(S - max), stored in the first half of the same place; returns the
 * sums of their lanes, as f32. A row of a pair that is not in S counts as 0. */
AGK_INLINE vf soft_max(int64_t from, int64_t to, float *s, vf max)
{
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pairs = _mm512_loadu_si512(order);
    vf sum[2] = {v_zero(), v_zero()};
#pragma GCC unroll 2
    for (int64_t j = 0; j < to; j += 2) {
        vf p[2] = {v_zero(), v_zero()};
        if (j >= from) p[0] = v_exp2_down(v_load(s + j * V_T) - max);
        if (j + 1 < to) p[1] = v_exp2_down(v_load(s + (j + 1) * V_T) - max);
        sum[0] = sum[0] + p[0];
        sum[1] = sum[1] + p[1];
        const __m512i both = _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
        _mm512_storeu_si512(s + j / 2 * V_T, both);
    }
    return sum[0] + sum[1];
}

AGK_INLINE void vectors(int nv, const agk_flash_tile *t, const v_flash *f, int64_t lane, int64_t from, int64_t to,
                        const uint32_t *k, const uint32_t *v)
{
    enum { FIRST = 0x0000ffff, SECOND = (int)0xffff0000 };
    float *s = f->s + lane, *o = f->o + lane;
    const int64_t keys = lane == 0 ? to - from : 0;
    products(nv, 0, ~0u, to - from, t->d / 2, f->q + lane, k, t->d / 2, 1, s + from * V_T, &t->k_ahead, keys);
    for (int h = 0; h < nv; ++h) {
        const vf safe = v_flash_top(t, f, lane + h * VF, to - from, s + h * VF + from * V_T);
        const vf sum = soft_max(from, to, s + h * VF, safe);
        v_store(f->sum + lane + h * VF, v_load(f->sum + lane + h * VF) + sum);
    }
    const int64_t first = (from + 1) / 2, last = to / 2; /* whole pairs */
    if (first < last) {
        const float *p = s + first * V_T;
        products(nv, 1, ~0u, t->dv, last - first, p, v + first * t->dv, 1, t->dv, o, &t->v_ahead, keys);
    }
    if (from % 2 != 0) products(nv, 1, (uint32_t)SECOND, t->dv, 1, s, v, 1, t->dv, o, &t->v_ahead, 0);
    if (to % 2 != 0) products(nv, 1, FIRST, t->dv, 1, s + last * V_T, v + last * t->dv, 1, t->dv, o, &t->v_ahead, 0);
}

void agk_flash_pairs_block_avx512(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    const v_flash f = v_flash_state(t);
    const int64_t from = first & 1;
    v_flash_mask(t, &f, first, n);
    int64_t lane = 0;
    for (; t->n_rows - lane > VF; lane += 2 * VF) vectors(2, t, &f, lane, from, from + n, k, v);
    if (lane < t->n_rows) vectors(1, t, &f, lane, from, from + n, k, v);
}
