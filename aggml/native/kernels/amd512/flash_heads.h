/* Shared by flash_heads.c and its loops over keys: prefetches, powers of logits, sums of values, with a key in each
 * lane or a number of a row.
 *
 * Not here: products with keys (flash_heads_halves.h, flash_heads_codes.h), the walk over blocks (flash_heads.c). */
#ifndef AGK_AMD512_FLASH_HEADS_H
#define AGK_AMD512_FLASH_HEADS_H

#include "kernels/avx512/flash_heads.h"

enum {
    KEYS = AGK_FLASH_KEYS, /* of a block */
    MOST_ROWS = AGK_FLASH_NARROW - 1,
    MOST_HEADS = 32,
    MOST_WIDE = 128, /* the widest keys of f16 and bf16 */
    PAIR = 2,        /* vectors of a block of 32 numbers */
};

/* A head of K: its queries as the loops read them, and its numbers so far. */
typedef struct head {
    agk_flash_narrow f;
    codes codes;
    const float *q;
    float *p;                               /* powers of a block: [keys / 16][rows][16] */
    float scale[MOST_ROWS];                 /* of products of codes */
    float safe[MOST_ROWS];                  /* powers are those of logit - safe */
    _Alignas(64) float sum[MOST_ROWS * VF]; /* of powers, in lanes */
    bool fresh, shrunk;                     /* a row has seen no key; a factor of this block is not 1 */
} head;

/* Asks for part i of `parts` of some bytes, into L2. */
AGK_INLINE void ask_part(const char *at, int64_t bytes, int i, int parts)
{
    const int64_t all = (bytes + LINE - 1) / LINE;
    AGK_UNROLL for (int64_t l = i * all / parts; l < (i + 1) * all / parts; ++l)
    {
        const int64_t to = l * LINE < bytes - LINE || l == 0 ? l * LINE : bytes - LINE;
        __asm__ volatile("prefetcht1 %0" ::"m"(*(const char (*)[LINE])(at + to)));
    }
}

/* -- from logits to powers */

AGK_INLINE float scale_of_tile(const agk_flash_tile *t)
{
    return t->softcap > 0.0f ? t->scale / t->softcap : t->scale;
}

AGK_INLINE vf power_of(vf x, vf safe)
{
    return v_exp2_down((x - safe) * v_set(1.44269504f));
}

AGK_INLINE float safe_of(float max) /* 0 for a row that has seen no key */
{
    return max > -__builtin_inff() ? max : 0.0f;
}

/* Products, times the scale, of 16 keys from number `key` on become logits. */
AGK_INLINE vf logits_from(const agk_flash_tile *t, int64_t row, int64_t key, vf x)
{
    const vf low = v_set(-__builtin_inff());
    if (t->softcap > 0.0f) x = v_set(t->softcap) * v_tanh(x);
    if (t->mask_form != AGK_FLASH_NO_MASK) {
        const vf m = v_load_f16((const uint16_t *)(const void *)(t->mask + row * t->mask_step) + key);
        x = v_select(v_eq(m, low), low, v_fma(m, v_set(t->slope[row]), x));
    }
    return x;
}

/* Logits x of key `at` of a block and the next ones, some far above the maximum so far: the maximum rises, and what
 * was summed up before shrinks. */
static __attribute__((noinline)) void rise(head *h, int rows, int vectors, int64_t at, vf x[MOST_ROWS][PAIR])
{
    h->fresh = false;
    for (int r = 0; r < rows; ++r) {
        const float old = h->f.max[r], top = v_hmax(vectors > 1 ? v_max(x[r][0], x[r][1]) : x[r][0]);
        float *p = h->p + r * VF;
        vf sum = v_load(h->sum + r * VF);
        if (top > old) {
            float factor[VF];
            v_store(factor, power_of(v_set(old), v_set(top)));
            const vf shrink = v_set(factor[0]);
            h->f.max[r] = top;
            h->f.shrink[r] *= factor[0];
            h->shrunk = true;
            sum = sum * shrink;
            for (int64_t j = 0; j < at; j += VF) v_store(p + j * rows, v_load(p + j * rows) * shrink);
        }
        h->fresh = h->fresh || !(h->f.max[r] > -__builtin_inff());
        h->safe[r] = safe_of(h->f.max[r]);
        for (int g = 0; g < vectors; ++g) {
            const vf y = power_of(x[r][g], v_set(h->safe[r]));
            v_store(p + (at + g * VF) * rows, y);
            sum = sum + y;
        }
        v_store(h->sum + r * VF, sum);
    }
}

/* Products x of key `at` of a block, number `key` of all, and the next ones become powers. The maximum so far stays as
 * long as no logit is far above it, so nothing waits for the maximum of a block. */
AGK_INLINE void powers_of(int rows, int vectors, const agk_flash_tile *t, head *h, int64_t key, int64_t at,
                          vf x[MOST_ROWS][PAIR])
{
    const float far_above = 2980.0f; /* e^FAR_ABOVE */
    if (t->softcap > 0.0f || t->mask_form != AGK_FLASH_NO_MASK) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
            for (int g = 0; g < vectors; ++g) x[r][g] = logits_from(t, r, key + g * VF, x[r][g]);
        }
    }
    vf y[MOST_ROWS][PAIR];
    __m512i top = _mm512_setzero_si512(); /* as integers: a NaN is above all numbers */
    float *p = h->p + at * rows;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        const vf safe = v_set(h->safe[r]);
#pragma GCC unroll 2
        for (int g = 0; g < vectors; ++g) {
            y[r][g] = power_of(x[r][g], safe);
            v_store(p + (g * rows + r) * VF, y[r][g]);
            top = _mm512_max_epu32(top, _mm512_castps_si512(y[r][g]));
        }
    }
    if (h->fresh || _mm512_cmpgt_epu32_mask(top, _mm512_castps_si512(v_set(far_above))) != 0) {
        vf copy[MOST_ROWS][PAIR];
        memcpy(copy, x, sizeof copy);
        rise(h, rows, vectors, at, copy);
        return;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        const vf sum = v_load(h->sum + r * VF);
        v_store(h->sum + r * VF, vectors > 1 ? sum + (y[r][0] + y[r][1]) : sum + y[r][0]);
    }
}

/* -- values */

AGK_INLINE int wide(int rows) /* vectors of values that are computed together: up to 28 sums are in registers */
{
    return rows > 7 ? PAIR : WIDE;
}

/* Powers of 16 keys times the scales of their blocks: [blocks][rows][16]. */
AGK_INLINE void scale_16(int type, int rows, int blocks, const float *p, const char *v, int64_t step,
                         float to[2][MOST_ROWS * VF])
{
    const char *at[TURNED];
#pragma GCC unroll 4
    for (int g = 0; g < TURNED; g += QUAD, v = as_is(v + QUAD * step)) {
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) at[g + j] = v + j * step;
    }
#pragma GCC unroll 2
    for (int b = 0; b < blocks; ++b) {
        const vf scales = turned_scales(type, at, b * bytes_of(type, V_BLOCK));
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) v_store(to[b] + r * VF, v_load(p + r * VF) * scales);
    }
}

/* The sums of values of a head += those of n keys, for a part of the width. shrink NULL: the sums so far need no
 * factor. */
AGK_INLINE void add_values(int type, int rows, int64_t dv, int64_t step, int64_t n, const float *p, const char *v,
                           const float *shrink, const char *ask, float *o)
{
    const int nv = wide(rows), blocks = nv / PAIR;
    const int64_t each = bytes_of(type, nv * VF);
    vf acc[MOST_ROWS][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) acc[r][h] = v_load(o + r * dv + h * VF);
    }
    if (shrink != NULL) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int h = 0; h < nv; ++h) acc[r][h] = times(acc[r][h], shrink + r);
        }
    }
    /* of these 16 keys and of the next 16: what was just stored can't be loaded yet */
    float scaled[2][2][MOST_ROWS * VF];
    if (v_in_blocks(type)) scale_16(type, rows, blocks, p, v, step, scaled[0]);
#pragma GCC unroll 1
    for (int64_t j = 0; j < n; j += VF, p += rows * VF) {
        const float *y[2] = {p, p};
        if (v_in_blocks(type)) {
            y[0] = scaled[j / VF % 2][0];
            y[1] = scaled[j / VF % 2][1];
            if (j + VF < n) scale_16(type, rows, blocks, p + rows * VF, v + VF * step, step, scaled[1 - j / VF % 2]);
        }
#pragma GCC unroll 1
        for (int64_t c = 0; c < VF; c += QUAD, y[0] += QUAD, y[1] += QUAD, ask += QUAD * each) {
#pragma GCC unroll 4
            for (int key = 0; key < QUAD; ++key, v += step) {
                vf x[WIDE];
#pragma GCC unroll 4
                for (int h = 0; h < nv; h += PAIR) {
                    if (v_in_blocks(type)) {
                        of_block(type, v + h / PAIR * bytes_of(type, V_BLOCK), NULL, x + h);
                    } else {
                        x[h] = v_part(type, v, h * VF, VF);
                        x[h + 1] = v_part(type, v, (h + 1) * VF, VF);
                    }
                }
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
                    for (int h = 0; h < nv; ++h) {
                        add_times(&acc[r][h], x[h], y[v_in_blocks(type) ? h / PAIR : 0] + r * VF + key);
                    }
                    if (r == rows / 2) ask_part(ask, QUAD * each, key, QUAD);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) v_store(o + r * dv + h * VF, acc[r][h]);
    }
}

#endif
