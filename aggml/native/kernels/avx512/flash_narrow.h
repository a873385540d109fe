/* Shared by flash_narrow.c and flash_codes.c: prefetches, sums of quarters, quantized blocks, logits and powers.
 *
 * Not here: the walk over keys. */
#ifndef AGK_AVX512_FLASH_NARROW_H
#define AGK_AVX512_FLASH_NARROW_H

#include "math.h"

#include "formats/blocks.h"
#include "kernels/flash.h"
#include "kernels/vec/flash_narrow.h"
#include "kernels/vec/math.h"

/* FAR_ABOVE: how far a maximum may rise before powers are computed again */
enum { ROWS = 4, QUAD = 4, WIDE = 4, LINE = 64, FAR_ABOVE = 8 };

/* Lines of the next block of keys: `count` of them are prefetched each time. */
typedef struct lines {
    const char *at, *end;  /* of a contiguous piece: a row, or all rows if they have no gaps */
    int64_t stride, bytes; /* distance between rows, bytes of a row */
    int64_t count;
} lines;

static inline lines lines_of(agk_flash_ahead ahead, int64_t n_keys, int64_t steps)
{
    const int64_t whole = n_keys * ahead.bytes;
    lines l = {.at = ahead.rows, .stride = ahead.stride, .bytes = ahead.bytes};
    if (ahead.bytes == 0 || steps < 1) return l;
    const bool one = ahead.stride == ahead.bytes;
    const int64_t all = one ? (whole + LINE - 1) / LINE : n_keys * ((ahead.bytes + LINE - 1) / LINE);
    /* because of rounding up, some lines behind the end are prefetched */
    l.end = ahead.rows + (one ? 2 * whole : ahead.bytes);
    l.count = (all + steps - 1) / steps;
    return l;
}

/* Prefetches behind the product that made `sum`: since this statement claims to change `sum`, the compiler cannot
 * move it before the product. */
AGK_INLINE void ask(lines *l, vf *sum)
{
    for (int64_t i = 0; i < l->count; ++i) {
        __asm__ volatile("prefetcht1 %1" : "+v"(*sum) : "m"(*(const char (*)[LINE])l->at));
        l->at += LINE;
        if (l->at < l->end) continue;
        l->end += l->stride;
        l->at = l->end - l->bytes;
    }
}

/* sum += x times a number in memory. */
AGK_INLINE void add_times(vf *sum, vf x, const float *y)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(x), "m"(*y));
}
AGK_INLINE vf times(vf x, const float *y)
{
    __asm__("vmulps %1%{1to16%}, %0, %0" : "+v"(x) : "m"(*y));
    return x;
}

AGK_INLINE vf quarters(vf a, vf b, vf c, vf d) /* of the sums over the lanes of four quarters */
{
    const vf e = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xEE);
    const vf f = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xEE);
    return _mm512_shuffle_f32x4(e, f, 0x88) + _mm512_shuffle_f32x4(e, f, 0xDD);
}
AGK_INLINE vf lanes(vf a, vf b, vf c, vf d) /* the same within each quarter */
{
    const vf e = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
    const vf f = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
    return _mm512_shuffle_ps(e, f, 0x44) + _mm512_shuffle_ps(e, f, 0xEE);
}

/* A number of each row in the lanes of its four keys, and back. */
AGK_INLINE vf by_row(const float *of, int rows)
{
    const __m512i to = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(to, v_load_n(of, rows));
}
AGK_INLINE void of_rows(float *to, vf x, int rows)
{
    const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    v_store_n(to, _mm512_permutexvar_ps(from, x), rows);
}

/* -- blocks of quantized types */

AGK_INLINE uint64_t scale_of(int type, const char *block)
{
    return type == AGK_Q8_0 ? ((const agk_block_q8_0 *)(const void *)block)->d
                            : ((const agk_block_q4_0 *)(const void *)block)->d;
}

/* The scales of a block of four rows. */
AGK_INLINE __m128 scales_of(int type, const char *a, const char *b, const char *c, const char *d)
{
    const uint64_t low = scale_of(type, a) | scale_of(type, b) << 16;
    const uint64_t high = scale_of(type, c) << 32 | scale_of(type, d) << 48;
    return _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)(low | high)));
}

/* 32 numbers of a block, times `scale` in memory (NULL: 1). The table of levels for codes of four bits is in a
 * register. */
AGK_INLINE void of_block(int type, const char *at, const float *scale, vf x[2])
{
    if (type == AGK_Q8_0) {
        const agk_block_q8_0 *b = (const agk_block_q8_0 *)(const void *)at;
        x[0] = v_load_i8(b->qs);
        x[1] = v_load_i8(b->qs + VF);
        if (scale == NULL) return;
        x[0] = times(x[0], scale);
        x[1] = times(x[1], scale);
    } else {
        const agk_block_q4_0 *b = (const agk_block_q4_0 *)(const void *)at;
        vf codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        if (scale != NULL) codes = times(codes, scale);
        const __m512i at_low = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)b->qs));
        x[0] = _mm512_permutexvar_ps(at_low, codes);
        x[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(at_low, 4), codes);
    }
}

/* -- from products to probabilities, four rows at a time */

/* The mask of four keys of each row, `left` of them. */
AGK_INLINE vf mask_of(const agk_flash_tile *t, int64_t row, int rows, int64_t key, int64_t left)
{
    uint64_t of[ROWS] = {0};
    for (int r = 0; r < ROWS; ++r) {
        const char *at = t->mask + (row + (r < rows ? r : 0)) * t->mask_step + 2 * key;
        if (left >= QUAD)
            memcpy(&of[r], at, sizeof *of);
        else
            memcpy(&of[r], at, 2 * (size_t)left);
    }
    return v_load_f16((const uint16_t *)(const void *)of);
}

/* The maximum, and the sum, of each quarter, in all lanes of the quarter. */
AGK_INLINE vf top_in_quarters(vf x)
{
    const vf two = v_max(x, _mm512_permute_ps(x, 0x4E));
    return v_max(two, _mm512_permute_ps(two, 0xB1));
}
AGK_INLINE vf sum_in_quarters(vf x)
{
    const vf two = x + _mm512_permute_ps(x, 0x4E);
    return two + _mm512_permute_ps(two, 0xB1);
}

/* The values that are the same for all keys of four rows. */
typedef struct logits {
    const agk_flash_tile *t;
    int64_t row, first, n;
    int rows;
    vf scale, slope, safe; /* probabilities are powers of logit - safe */
} logits;

/* Products of keys j .. j + 3 become logits. */
AGK_INLINE vf logits_of(const logits *g, int64_t j, vf x)
{
    const agk_flash_tile *t = g->t;
    const vf low = v_set(-__builtin_inff());
    x = x * g->scale;
    if (t->softcap > 0.0f) x = v_set(t->softcap) * v_tanh(x);
    if (t->mask_form != AGK_FLASH_NO_MASK) {
        const vf m = mask_of(t, g->row, g->rows, g->first + j, g->n - j);
        x = v_select(v_eq(m, low), low, v_fma(m, g->slope, x));
    }
    if (g->n - j < QUAD) x = v_select((vm)(0x1111u * ((1u << (g->n - j)) - 1u)), x, low);
    return x;
}

AGK_INLINE vf powers(const logits *g, vf x)
{
    return v_exp2_down((x - g->safe) * v_set(1.44269504f));
}

AGK_INLINE vf or_zero(vf max) /* 0 for a row that has seen no key */
{
    return v_select(v_eq(max, v_set(-__builtin_inff())), v_zero(), max);
}

/* From logits in s to probabilities in p, with the true maximum. */
static inline vf again(logits *g, const agk_flash_narrow *f, vf old, vf max, const float *s, float *p)
{
    vf sum = v_zero();
    g->safe = or_zero(max);
    of_rows(f->max + g->row, max, g->rows);
    of_rows(f->shrink + g->row, powers(g, old), g->rows);
    for (int64_t j = 0; j < g->n; j += QUAD) {
        const vf x = powers(g, v_load(s + QUAD * j));
        v_store(p + QUAD * j, x);
        sum = sum + x;
    }
    return sum;
}

/* The logits of some rows and n keys. `safe` comes from the maximum so far, so that powers need not wait for the
 * maximum of this block, which would cost 360 cycles a block. If a logit is far above it, all powers are computed
 * again at the end. */
AGK_INLINE logits logits_begin(const agk_flash_tile *t, const agk_flash_narrow *f, int64_t row, int64_t first,
                               int64_t n, int rows)
{
    logits g = {.t = t, .row = row, .first = first, .n = n, .rows = rows};
    g.safe = or_zero(by_row(f->max + row, rows));
    g.scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale);
    g.slope = by_row(t->slope + row, rows);
    return g;
}

/* Products x of keys j .. j + 3: logits to s, powers to p. */
AGK_INLINE void add_quad(const logits *g, int64_t j, vf x, float *s, float *p, vf *max, vf *sum)
{
    const vf logit = logits_of(g, j, x), power = powers(g, logit);
    v_store(s + QUAD * j, logit);
    v_store(p + QUAD * j, power);
    *max = v_max(logit, *max);
    *sum = *sum + power;
}

AGK_INLINE void logits_end(logits *g, const agk_flash_narrow *f, vf old, vf max, vf sum, const float *s, float *p)
{
    max = top_in_quarters(max);
    vf shrink = v_set(1.0f);
    of_rows(f->shrink + g->row, shrink, g->rows);
    if (v_any(v_lt(old + v_set((float)FAR_ABOVE), max))) {
        sum = again(g, f, old, max, s, p);
        shrink = by_row(f->shrink + g->row, g->rows);
    }
    float *sums = f->sum + g->row;
    of_rows(sums, v_fma(by_row(sums, g->rows), shrink, sum_in_quarters(sum)), g->rows);
}

/* Adds the values of n keys, with probabilities from S (flash_narrow.c). */
void agk_flash_narrow_values(const agk_flash_tile *t, int64_t n, const char *v);

#endif
