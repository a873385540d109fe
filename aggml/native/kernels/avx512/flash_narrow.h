/* What products and values of a few rows share (flash_narrow.c): requests, sums of quarters, quantized blocks.
 *
 * Not here: the walk over keys. */
#ifndef AGK_AVX512_FLASH_NARROW_H
#define AGK_AVX512_FLASH_NARROW_H

#include "math.h"

#include "formats/blocks.h"
#include "kernels/flash.h"
#include "kernels/vec/flash_narrow.h"

enum { ROWS = 4, QUAD = 4, WIDE = 4, LINE = 64, FAR_ABOVE = 8 }; /* FAR_ABOVE: what a maximum may rise unnoticed */

/* Lines of the next block of keys: `count` of them are asked for at each step. */
typedef struct lines {
    const char *at, *end; /* of a piece: a row, or all rows where they have no gaps */
    int64_t step, bytes;  /* from a row to the next, of a row */
    int64_t count;
} lines;

static inline lines lines_of(agk_flash_ahead ahead, int64_t n_keys, int64_t steps)
{
    const int64_t whole = n_keys * ahead.bytes;
    lines l = {.at = ahead.rows, .step = ahead.step, .bytes = ahead.bytes};
    if (ahead.bytes == 0 || steps < 1) return l;
    const bool one = ahead.step == ahead.bytes;
    const int64_t all = one ? (whole + LINE - 1) / LINE : n_keys * ((ahead.bytes + LINE - 1) / LINE);
    l.end = ahead.rows + (one ? 2 * whole : ahead.bytes); /* what is rounded up goes on behind the end */
    l.count = (all + steps - 1) / steps;
    return l;
}

/* Behind the product that made `sum`: what claims to change it can't be moved before it. */
AGK_INLINE void ask(lines *l, vf *sum)
{
    for (int64_t i = 0; i < l->count; ++i) {
        __asm__ volatile("prefetcht1 %1" : "+v"(*sum) : "m"(*(const char (*)[LINE])l->at));
        l->at += LINE;
        if (l->at < l->end) continue;
        l->end += l->step;
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

/* 32 numbers of a block, times `scale` in memory (NULL: 1). What a code of four bits is lies in a register. */
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

#endif
