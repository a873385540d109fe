/* Products of packed weights with up to 16 columns on AMX: 8 vectors of codes are a tile of 16 rows x 32 k as they lie.
 *
 * Columns are the other operand: 8 or 16 of them, zeros beyond the last. A tile of sums is exact; it is taken out after
 * each scale, 16 or 32 k, converted, and added with both scales, which is what takes the time: 4 vector operations for a
 * column where lanes take 11. Four sub-blocks are under way at once. Reached only through lines that need AGK_AMX_INT8. */
#ifndef AGK_AMX_PACKED_H
#define AGK_AMX_PACKED_H

#include "tiles.h"

#include "../avx512/packed_codes.h"

enum { PARTS = 4 };

/* Rows of sums are columns. */
typedef struct parts {
    int32_t sums[PARTS][2][16][16];
    __m512i w[PARTS][8];
} parts;

AGK_INLINE void configure(kind t, uint8_t columns)
{
    const uint8_t k = scale_per_16(t) ? 16 : 32;
    agk_tiles_configure((const agk_tile_shape[8]){{columns, 64},
                                                  {columns, 64},
                                                  {columns, 64},
                                                  {columns, 64},
                                                  {columns, k},
                                                  {columns, k},
                                                  {(uint8_t)(k / 4), 64},
                                                  {(uint8_t)(k / 4), 64}});
}

#define AGK_PRODUCT(sum, column, row, part, half, w, q) \
    do { \
        _tile_zero(sum); \
        _tile_loadd(column, (q) + 16 * (half), 32); \
        _tile_loadd(row, (const char *)(w) + 256 * (half), 64); \
        _tile_dpbsud(sum, column, row); \
        _tile_stored(sum, p->sums[part][half], 64); \
    } while (0)

/* Sub-block `part` of W columns at x; w: its codes. */
#define AGK_PART(part, sum, other) \
    do { \
        const void *w = t == Q8_0 ? (const void *)(data + (part) * 544) : (const void *)p->w[part]; \
        const char *q = x + (part) * 44 * W + 12 * W; \
        AGK_PRODUCT(sum, 4, 6, part, 0, w, q); \
        if (scale_per_16(t)) AGK_PRODUCT(other, 5, 7, part, 1, w, q); \
    } while (0)

AGK_INLINE void add(kind t, int W, const parts *p, int part, const __m512 scale[2], const __m512 minimum[2],
                    const char *x, __m512 acc[16])
{
    const int scales = scale_per_16(t) ? 2 : 1;
    AGK_UNROLL for (int n = 0; n < W; ++n)
    {
        const __m512 dx = one(x + 4 * n);
        AGK_UNROLL for (int h = 0; h < scales; ++h)
        {
            const char *sum = x + 4 * ((h + 1) * W + n);
            __m512i s = _mm512_load_si512(p->sums[part][h][n]);
            if (!has_minimum(t)) s = _mm512_add_epi32(s, four(sum));
            acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale[h], dx), acc[n]);
            if (has_minimum(t)) acc[n] = _mm512_fmadd_ps(minimum[h], one(sum), acc[n]);
        }
    }
}

AGK_INLINE void scales_of_block(kind t, const char *a, __m512 *d, __m512 *m)
{
    *d = t == MXFP4 ? half_of_e8m0(bytes(a)) : halves(a);
    *m = _mm512_setzero_ps();
    if (has_minimum(t)) *m = halves(a + 32);
    if (of_256(t)) *m = _mm512_sub_ps(_mm512_setzero_ps(), *m); /* those of 256 are taken off */
}

AGK_INLINE void prefetch(const char *a, size_t n)
{
    for (size_t line = 0; line < n; line += 64) _mm_prefetch(a + AGK_PACKED_AHEAD + line, _MM_HINT_T1);
}

/* Blocks of 32: n (1..4) of them. Of 256: the four parts of one half. */
AGK_INLINE void four_parts(kind t, int W, int n, parts *p, const char *a, int64_t half, __m512 d, __m512 m,
                           const char *x, __m512 acc[16])
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t);
    const char *data = a + data_at(t);
    if (t != Q8_0) {
        AGK_UNROLL for (int i = 0; i < n; ++i)
        {
            if (of_256(t))
                codes(t, data, half, i, p->w[i]);
            else
                codes(t, data + (size_t)i * bytes_of_block, 0, 0, p->w[i]);
        }
    }
    AGK_PART(0, 0, 1);
    if (n > 1) AGK_PART(1, 2, 3);
    if (n > 2) AGK_PART(2, 0, 1);
    if (n > 3) AGK_PART(3, 2, 3);
    AGK_UNROLL for (int i = 0; i < n; ++i)
    {
        __m512 scale[2], minimum[2];
        if (of_256(t)) {
            scales_of(t, a, 4 * half + i, d, m, scale, minimum);
        } else {
            scales_of_block(t, a + (size_t)i * bytes_of_block, &d, &m);
            scales_of(t, a, 0, d, m, scale, minimum);
        }
        add(t, W, p, i, scale, minimum, x + i * 44 * W, acc);
    }
}

AGK_INLINE void group(kind t, int W, const agk_mm_block *b, parts *p, const char *a, __mmask16 rows, float *c)
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t), unit = (size_t)W * 44;
    const char *x = b->b;
    __m512 acc[16];
    AGK_UNROLL for (int n = 0; n < W; ++n) acc[n] = _mm512_setzero_ps();
    if (of_256(t)) {
        for (int64_t k = 0; k < b->k; k += 256, a += bytes_of_block) {
            __m512 d, m;
            scales_of_block(t, a, &d, &m);
            for (int64_t half = 0; half < 2; ++half, x += 4 * unit) {
                prefetch(a + (size_t)half * (bytes_of_block / 2), bytes_of_block / 2);
                four_parts(t, W, 4, p, a, half, d, m, x, acc);
            }
        }
    } else {
        const __m512 none = _mm512_setzero_ps();
        int64_t k = 0;
        for (; k + 128 <= b->k; k += 128, a += 4 * bytes_of_block, x += 4 * unit) {
            prefetch(a, 4 * bytes_of_block);
            four_parts(t, W, 4, p, a, 0, none, none, x, acc);
        }
        for (; k < b->k; k += 32, a += bytes_of_block, x += unit) four_parts(t, W, 1, p, a, 0, none, none, x, acc);
    }
    AGK_UNROLL for (int n = 0; n < W; ++n)
    {
        if (n < b->cols) _mm512_mask_storeu_ps((char *)c + (size_t)n * b->ldc, rows, acc[n]);
    }
}

AGK_INLINE void groups(kind t, int W, const agk_mm_block *b)
{
    parts p;
    const char *a = b->a;
    configure(t, (uint8_t)W);
    for (int64_t row = 0; row < b->rows; row += 16, a += b->lda) {
        const __mmask16 rows = (__mmask16)(b->rows - row < 16 ? (1u << (b->rows - row)) - 1 : 0xffffu);
        group(t, W, b, &p, a, rows, b->c + row);
    }
    _tile_release();
}

#define AGK_PACKED(name, t) \
    void agk_mm_packed16_##name##_amx(const agk_mm_block *b) \
    { \
        if (b->cols <= 8) \
            groups(t, 8, b); \
        else \
            groups(t, 16, b); \
    }

#endif
