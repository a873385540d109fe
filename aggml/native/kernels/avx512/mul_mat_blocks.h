/* The block of 8 rows x 48 columns that f32 and bf16 share: accumulators, groups of rows, the transposed store.
 *
 * A file defines how 16 lanes of b are multiplied by one broadcast of a, and includes this. Rows of a are broadcast,
 * so 8 x 3 products need 11 loads for 12 cycles of the two multipliers. Everything is static inline: nothing here
 * may be shared with files of another instruction set. */
#ifndef AGK_AVX512_MUL_MAT_TILE_H
#define AGK_AVX512_MUL_MAT_TILE_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"

/* 4 rows x 16 columns: column j of 128-bit lane L is column 4 L + j. */
AGK_INLINE void agk_transpose4(const __m512 r[4], __m512 out[4])
{
    const __m512 t0 = _mm512_unpacklo_ps(r[0], r[1]), t1 = _mm512_unpackhi_ps(r[0], r[1]);
    const __m512 t2 = _mm512_unpacklo_ps(r[2], r[3]), t3 = _mm512_unpackhi_ps(r[2], r[3]);
    out[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t0), _mm512_castps_pd(t2)));
    out[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t0), _mm512_castps_pd(t2)));
    out[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t1), _mm512_castps_pd(t3)));
    out[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t1), _mm512_castps_pd(t3)));
}

AGK_INLINE void agk_put4(float *c, __m128 value, bool add)
{
    _mm_storeu_ps(c, add ? _mm_add_ps(value, _mm_loadu_ps(c)) : value);
}

/* Store 4 rows x cols (1..16) columns to c, whose columns are ldc bytes apart. */
AGK_INLINE void agk_store4(const __m512 r[4], float *c, size_t ldc, int64_t cols, bool add)
{
    __m512 t[4];
    agk_transpose4(r, t);
    char *p = (char *)c;
#define AGK_COLUMN(L, j) \
    if (4 * L + j < cols) agk_put4((float *)(void *)(p + (4 * L + j) * ldc), _mm512_extractf32x4_ps(t[j], L), add);
#define AGK_LANE(L) AGK_COLUMN(L, 0) AGK_COLUMN(L, 1) AGK_COLUMN(L, 2) AGK_COLUMN(L, 3)
    AGK_LANE(0) AGK_LANE(1) AGK_LANE(2) AGK_LANE(3)
#undef AGK_LANE
#undef AGK_COLUMN
}

/* Fewer than 4 rows: one 32-bit scatter each. */
AGK_INLINE void agk_store1(__m512 r, float *c, size_t ldc, int64_t cols, bool add)
{
    _Alignas(64) float values[16];
    _mm512_store_ps(values, r);
    char *p = (char *)c;
    for (int64_t j = 0; j < cols; ++j, p += ldc) {
        float *out = (float *)(void *)p;
        *out = add ? *out + values[j] : values[j];
    }
}

AGK_INLINE void agk_store_tile(int R, int W, __m512 acc[8][3], float *c, size_t ldc, int64_t cols, bool add)
{
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        float *p = (float *)(void *)((char *)c + (size_t)w * AGK_MM_UNIT * ldc);
        const int64_t n = cols - w * AGK_MM_UNIT < AGK_MM_UNIT ? cols - w * AGK_MM_UNIT : AGK_MM_UNIT;
        if (R >= 4) {
            AGK_UNROLL for (int r = 0; r + 4 <= R; r += 4)
            {
                const __m512 four[4] = {acc[r][w], acc[r + 1][w], acc[r + 2][w], acc[r + 3][w]};
                agk_store4(four, p + r, ldc, n, add);
            }
        } else {
            AGK_UNROLL for (int r = 0; r < R; ++r) agk_store1(acc[r][w], p + r, ldc, n, add);
        }
    }
}

/* Prefetches the lines of c that a block will store, while it is computed. */
AGK_INLINE void agk_prefetch_tile(const float *c, size_t ldc, int64_t cols)
{
    for (int64_t j = 0; j < cols; ++j) _mm_prefetch((const char *)c + (size_t)j * ldc, _MM_HINT_T0);
}

/* Prefetches one line of each of the next 8 rows: a is read once per block, often from L3 or memory. */
AGK_INLINE void agk_prefetch_rows(const char *a, size_t lda)
{
    AGK_UNROLL for (int r = 0; r < 8; ++r) _mm_prefetch(a + (size_t)r * lda, _MM_HINT_T0);
}

/* 16 vectors of 16 x 32 bits, transposed in place: for packing b. */
AGK_INLINE void agk_transpose16(__m512i r[16])
{
    __m512i t[16];
    AGK_UNROLL for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    AGK_UNROLL for (int i = 0; i < 16; i += 4)
    {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* 64 k, two blocks, of up to 16 quantized columns: 16 vectors of 4 k of each, and the scales of each block. */
AGK_INLINE void agk_transpose_q8(const void *b, size_t ldb, int64_t cols, int64_t pair, __m512i r[16], float d[2][16])
{
    AGK_UNROLL for (int j = 0; j < 16; ++j)
    {
        r[j] = _mm512_setzero_si512();
        if (j < cols) {
            const char *column = (const char *)b + (size_t)j * ldb;
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)column + pair;
            r[j] = _mm512_loadu_si512(x->q);
            d[0][j] = x->d[0];
            d[1][j] = x->d[1];
        }
    }
    agk_transpose16(r);
}

/* Lane L of the result: columns 4 L .. 4 L + 3 of rows i, i + 4, i + 8, i + 12, so that what remains to be transposed
 * lies within lanes. Half of the shuffles of a whole transposition become loads: 40 cycles instead of 64. */
AGK_INLINE __m512 agk_tile_gather4(const float *x)
{
    __m512 r = _mm512_castps128_ps512(_mm_load_ps(x));
    r = _mm512_mask_broadcast_f32x4(r, 0x00f0, _mm_load_ps(x + 4 * 16));
    r = _mm512_mask_broadcast_f32x4(r, 0x0f00, _mm_load_ps(x + 8 * 16));
    return _mm512_mask_broadcast_f32x4(r, 0xf000, _mm_load_ps(x + 12 * 16));
}

/* Stores `rows` x `cols` of a block that was stored row by row to columns of c. */
AGK_INLINE void agk_tile_put(const float *sums, float *c, size_t ldc, int64_t rows, int64_t cols, bool add)
{
    const __mmask16 mask = (__mmask16)((1u << rows) - 1);
    char *to = (char *)c;
    AGK_UNROLL for (int j = 0; j < 16; j += 4)
    {
        const __m512 r[4] = {agk_tile_gather4(sums + j), agk_tile_gather4(sums + 16 + j),
                             agk_tile_gather4(sums + 32 + j), agk_tile_gather4(sums + 48 + j)};
        __m512 t[4];
        agk_transpose4(r, t);
        AGK_UNROLL for (int i = 0; i < 4; ++i, to += ldc)
        {
            if (j + i >= cols) return;
            __m512 value = t[i];
            if (add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
            _mm512_mask_storeu_ps(to, mask, value);
        }
    }
}

/* Rows are read two at a time and prefetched in the order of memory, two rows ahead, or 6 KB if they are short. The
 * prefetches go into L2 and each stands behind a product, so that the compiler does not gather them. */
AGK_INLINE const char *agk_mm_ahead(const agk_mm_block *block, const char *a, int rows)
{
    const size_t ahead = (size_t)rows * block->lda;
    return a + (ahead < 6144 ? 6144 : ahead);
}
AGK_INLINE const char *agk_mm_ask(const char *next, const char *until, __m512 *sum)
{
    for (; next < until; next += 64) __asm__ volatile("prefetcht1 %1" : "+v"(*sum) : "m"(*(const char (*)[64])next));
    return next;
}

#endif
