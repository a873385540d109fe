/* Products of packed weights with up to 16 columns on AMX: 64 k of 16 rows are one tile, 16 vectors of codes.
 *
 * Sums must be taken out of the tiles after each scale, every 16 or 32 k. So the other operand has 8 columns twice,
 * or 4 columns four times, and each line holds only the k of one scale (agk_packed_tiles): one product then gives
 * the sums of all scales separately. These sums are exact. Converting them and adding them with both scales takes 3
 * or 4 vector operations for a column and a scale, where lanes take 11. The results are bit for bit those of lanes.
 * Used only through lines that need AGK_AMX_INT8. */
#ifndef AGK_AMX_PACKED_H
#define AGK_AMX_PACKED_H

#include "tiles.h"

#include "kernels/avx512/mul_mat_packed_codes.h"

/* A stored tile is not forwarded to vector loads, nor stored vectors to a tile load. So there are four stages, each one
 * unit of 64 k behind the one before: codes are unpacked, a tile is multiplied, it is stored, its sums are added. 8
 * columns and 32 k of 16 rows, in cache: q8_0 14.0 ns, q4_0 14.4, q4_K 19; in lanes 20.9, 21.5, 23.7; one group at a
 * time 17.3, 15.0, 20. The stages hardly overlap: tiles alone take 5.7, adding 5.1, unpacking 4 to 7. From memory two
 * groups give 12.4 GB/s of q4_0, one 10.9, where reading gives 18: prefetches and all other loads share 16 buffers.
 *
 * The buffers between the stages, for two units. Lines of sums are columns, 8 (4) for each scale; tiles of a group
 * follow each other. */
typedef struct stages {
    __m512i w[2][2][16]; /* of each group */
    /* in this order, because a load must not lie 4 KB from an address that is being stored */
    int32_t sums[4][2][16][16];
} stages;

/* Columns in one tile. */
AGK_INLINE int columns_of_tile(code_type t)
{
    return scale_per_16(t) ? 4 : 8;
}

/* Types whose codes can be made signed at no cost: their sums need no offset. */
AGK_INLINE bool made_signed(code_type t)
{
    return t == Q8_0 || t == Q4_0;
}

/* Types whose high nibbles are not shifted down: the codes are 16 times too large. */
AGK_INLINE bool high_nibbles(code_type t, int part)
{
    return t == Q4_0 || (t == Q4_K && part % 2 == 1);
}

AGK_INLINE size_t bytes_of_unit(code_type t, int W)
{
    return 24 * (size_t)W + 1024 * (size_t)(W / columns_of_tile(t));
}

AGK_INLINE __m512i high_bits(__m512i x, int flipped)
{
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8((char)0xf0), _mm512_set1_epi8((char)flipped), 0x6a);
}

/* Codes of block `i` of 32, or of part `i` (0..3) of one half of a block of 256. */
AGK_INLINE void take_apart(code_type t, const char *data, int64_t half, int i, __m512i w[8])
{
    if (t == Q8_0) {
        AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = _mm512_xor_si512(vector(data, v), _mm512_set1_epi8((char)0x80));
    } else if (t == Q4_0) { /* 16 (q - 8): 8 (q - 8) of a nibble in the high bits is its code with one bit flipped */
        AGK_UNROLL for (int v = 0; v < 4; ++v)
        {
            const __m512i x = vector(data, v);
            w[v] = high_bits(_mm512_slli_epi16(x, 4), 0x80);
            w[v + 4] = high_bits(x, 0x80);
        }
    } else if (t == Q4_K && i % 2 == 1) {
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            w[v] = _mm512_and_si512(vector(data + low_bits_at(t, half, i, v), 0), _mm512_set1_epi8((char)0xf0));
        }
    } else {
        codes(t, data, half, i, w);
    }
}

/* One product: 16 lines of columns. First it stores the sums that the tile holds of the unit before, which are long
 * done. */
#define AGK_PRODUCT(i, column, weights) \
    do { \
        if (store) _tile_stored(i, p->sums[i][1 - odd], 64); \
        _tile_zero(i); \
        if (made_signed(t)) \
            _tile_dpbssd(i, column, weights); \
        else \
            _tile_dpbsud(i, column, weights); \
    } while (0)

/* Multiplies the unit of columns x by that of G groups. Their weights, and the sums of the unit before, are in the
 * halves `odd` and 1 - `odd`. Columns are loaded once for both groups. */
AGK_INLINE void multiply(code_type t, int W, int G, stages *p, int odd, const char *x, bool store)
{
    const int tiles = W / columns_of_tile(t);
    const char *lines = x + 24 * W;
    _tile_loadd(6, p->w[0][odd], 64);
    if (G > 1) _tile_loadd(7, p->w[1][odd], 64);
    _tile_loadd(4, lines, 64);
    if (tiles > 1) _tile_loadd(5, lines + 1024, 64);
    AGK_PRODUCT(0, 4, 6);
    if (tiles > 1) AGK_PRODUCT(1, 5, 6);
    if (G > 1) {
        if (tiles == 1) {
            AGK_PRODUCT(1, 4, 7);
        } else {
            AGK_PRODUCT(2, 4, 7);
            AGK_PRODUCT(3, 5, 7);
        }
    } else if (tiles > 2) {
        _tile_loadd(4, lines + 2048, 64);
        _tile_loadd(5, lines + 3072, 64);
        AGK_PRODUCT(2, 4, 6);
        AGK_PRODUCT(3, 5, 6);
    }
}

AGK_INLINE void store_last(code_type t, int W, int G, stages *p, int odd)
{
    const int tiles = W / columns_of_tile(t) * G;
    _tile_stored(0, p->sums[0][odd], 64);
    if (tiles > 1) _tile_stored(1, p->sums[1][odd], 64);
    if (tiles > 2) _tile_stored(2, p->sums[2][odd], 64);
    if (tiles > 3) _tile_stored(3, p->sums[3][odd], 64);
}

/* Adds 32 k, half `part` % 2 of a unit at x, with their scales. */
AGK_INLINE void add(code_type t, int W, const stages *p, int tile, int odd, int part, const __m512 scale[2],
                    const __m512 minimum[2], const char *x, __m512 *acc)
{
    const int scales = scale_per_16(t) ? 2 : 1, columns = columns_of_tile(t);
    AGK_UNROLL for (int n = 0; n < W; ++n)
    {
        const __m512 dx = one(x + 4 * ((part % 2) * W + n));
        AGK_UNROLL for (int h = 0; h < scales; ++h)
        {
            const char *sum = x + 4 * ((2 + 2 * (part % 2) + h) * W + n);
            const int line = (part % 2 * scales + h) * columns + n % columns;
            __m512i s = _mm512_load_si512(p->sums[tile + n / columns][odd][line]);
            if (!has_minimum(t) && !made_signed(t)) s = _mm512_add_epi32(s, four(sum));
            acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale[h], dx), acc[n]);
            if (has_minimum(t)) acc[n] = _mm512_fmadd_ps(minimum[h], one(sum), acc[n]);
        }
    }
}

/* A unit: two blocks of 32 from `a` on (one, if k ends there), or two parts of a block of 256: odd parts belong to
 * its second, fourth, ... unit. */
typedef struct unit {
    const char *a, *x;
    int64_t half;
    bool whole;
} unit;

AGK_INLINE unit unit_of(code_type t, int W, const char *a, const char *x, int64_t blocks, int64_t i)
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t);
    unit u = {.x = x + (size_t)i * bytes_of_unit(t, W)};
    u.a = a + (size_t)(of_256(t) ? i / 4 : 2 * i) * bytes_of_block;
    u.half = of_256(t) ? i / 2 % 2 : 0;
    u.whole = of_256(t) || 2 * i + 1 < blocks;
    return u;
}

AGK_INLINE void add_unit(code_type t, int W, const stages *p, int tile, int odd, const unit *u, __m512 *acc)
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t);
    __m512 d, m;
    if (of_256(t)) scales_of_block(t, u->a, &d, &m);
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        const int part = of_256(t) ? 2 * odd + i : i;
        const char *block = of_256(t) ? u->a : u->a + (size_t)i * bytes_of_block;
        __m512 scale[2], minimum[2];
        if (!of_256(t)) {
            if (i == 1 && !u->whole) break;
            scales_of_block(t, block, &d, &m);
        }
        scales_of(t, block, 4 * u->half + part, d, m, scale, minimum);
        if (high_nibbles(t, part)) scale[0] = _mm512_mul_ps(scale[0], _mm512_set1_ps(0.0625f));
        add(t, W, p, tile, odd, i, scale, minimum, u->x, acc);
    }
}

/* n bytes from `next` on were prefetched. The hardware prefetcher goes on beyond them, but stops at the end of a
 * page. So where they enter a new page, the first lines of the page behind it are prefetched as well. From memory,
 * 32 k of 16 rows: q4_0 24.1 -> 22.4 ns, q4_K 26.2 -> 25.3, q8_0 39.1 -> 37.2; one line or four, or two pages ahead,
 * make no difference. In lanes this costs 8 %: up to 4 columns only memory limits them. */
AGK_INLINE void fetch_next_page(const char *next, size_t n)
{
    enum { PAGE = 4096, LINE = 64 };
    const uintptr_t before = (uintptr_t)next - 1, last = before + n;
    if (before / PAGE == last / PAGE) return;
    const char *page = (const char *)((last / PAGE + 1) * PAGE);
    _mm_prefetch(page, _MM_HINT_T0);
    _mm_prefetch(page + LINE, _MM_HINT_T0);
}

/* Prefetching goes on `skip` bytes behind the end of the group. */
AGK_INLINE void take_unit_apart(code_type t, __m512i *to, int odd, const unit *u, const char *end, size_t skip)
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t), n = of_256(t) ? bytes_of_block / 4 : 2 * bytes_of_block;
    const char *next = u->a + AGK_PACKED_AHEAD + (of_256(t) ? (size_t)(2 * u->half + odd) * n : 0);
    if (next >= end) next += skip;
    for (size_t line = 0; line < n; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
    fetch_next_page(next, n);
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        __m512i *w = to + 8 * i;
        if (of_256(t)) {
            take_apart(t, u->a + data_at(t), u->half, 2 * odd + i, w);
        } else if (i == 0 || u->whole) {
            take_apart(t, u->a + (size_t)i * bytes_of_block + data_at(t), 0, i, w);
        } else { /* their part of the columns is zeros */
            AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = _mm512_setzero_si512();
        }
    }
}

/* G groups from `a` on; rows: of the last one. */
AGK_INLINE void group(code_type t, int W, int G, const agk_mm_block *b, stages *p, const char *a, __mmask16 rows,
                      float *c)
{
    const int64_t blocks = b->k / 32, n = (blocks + 1) / 2;
    const int tiles = W / columns_of_tile(t);
    __m512 acc[16];
    AGK_UNROLL for (int i = 0; i < G * W; ++i) acc[i] = _mm512_setzero_ps();
    for (int64_t two = 0; two < n + 3; two += 2) {
        AGK_UNROLL for (int odd = 0; odd < 2; ++odd)
        {
            const int64_t i = two + odd;
            AGK_UNROLL for (int g = 0; g < G; ++g)
            {
                if (i < n) {
                    /* after the first group comes the second of the next two */
                    const char *from = a + (size_t)g * b->lda;
                    const unit u = unit_of(t, W, from, b->b, blocks, i);
                    take_unit_apart(t, p->w[g][odd], odd, &u, from + b->lda, g + 1 < G ? 2 * b->lda : 0);
                }
            }
            if (i > 0 && i <= n) {
                const unit u = unit_of(t, W, a, b->b, blocks, i - 1);
                multiply(t, W, G, p, 1 - odd, u.x, i > 1);
            } else if (i == n + 1) {
                store_last(t, W, G, p, odd);
            }
            AGK_UNROLL for (int g = 0; g < G; ++g)
            {
                if (i > 2 && i < n + 3) {
                    const unit u = unit_of(t, W, a + (size_t)g * b->lda, b->b, blocks, i - 3);
                    add_unit(t, W, p, g * tiles, 1 - odd, &u, acc + g * W);
                }
            }
        }
    }
    AGK_UNROLL for (int g = 0; g < G; ++g)
    {
        const __mmask16 mask = g + 1 < G ? (__mmask16)0xffff : rows;
        AGK_UNROLL for (int i = 0; i < W; ++i)
        {
            if (i < b->cols) _mm512_mask_storeu_ps((char *)(c + 16 * g) + (size_t)i * b->ldc, mask, acc[g * W + i]);
        }
    }
}

AGK_INLINE void groups(code_type t, int W, const agk_mm_block *b)
{
    stages p;
    const char *a = b->a;
    const agk_tile_shape whole = {16, 64};
    agk_tiles_configure((const agk_tile_shape[8]){whole, whole, whole, whole, whole, whole, whole, whole});
    int64_t row = 0;
    if (W == 8) {
        for (; row + 16 < b->rows; row += 32, a += 2 * b->lda) {
            group(t, W, 2, b, &p, a, rows_of_group(b->rows - row - 16), b->c + row);
        }
    }
    for (; row < b->rows; row += 16, a += b->lda) {
        group(t, W, 1, b, &p, a, rows_of_group(b->rows - row), b->c + row);
    }
    _tile_release();
}

#define AGK_PACKED(name, t, ...) \
    void agk_mm_packed_tiles_##name##_amx(const agk_mm_block *b) \
    { \
        if (b->cols <= 8) \
            groups(t, 8, b); \
        else \
            groups(t, 16, b); \
    }

#endif
