/* Few columns times types with blocks of 256, AVX2. A block is unpacked into magnitudes, signs and factors in L1; one
 * block of each of 2 rows is multiplied by up to 8 columns. With one column the unpacked values stay in registers.
 *
 * A product is a magnitude of at most 63 times a byte of the column that has taken the sign of the weight. Sums of
 * two products fit in 16 bits; integer factors multiply them while they are widened to 32 bits. No byte of a column
 * is -128, because columns are quantized from floats here and never come as q8_0. One scale for 256 elements of a
 * column, as for many columns and in ggml, would be 10 to 20 % faster (ternary types 50 %) with three times the
 * error. Not here: the unpacking (mul_mat_dots_iq.c, mul_mat_dots_tq.c). */
#ifndef AGK_AVX2_MUL_MAT_APART_H
#define AGK_AVX2_MUL_MAT_APART_H

#include <immintrin.h>

#include "formats/blocks.h"
#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"

enum { WIDE = 256, GROUPS = WIDE / 32, MOST = 8 };

/* A block: elements are unit * factor * magnitude with the sign of `sign`, which is not 0; of a ternary type unit *
 * (magnitude - 1). */
typedef struct apart {
    _Alignas(32) int8_t sign[WIDE];
    uint8_t magnitude[WIDE];
    int16_t factor[GROUPS][16]; /* one for each pair of elements */
    float unit;
} apart;

typedef void take_apart_fn(const void *block, apart *to);

typedef struct kind {
    take_apart_fn *take_apart;
    size_t block_size;
    bool ternary;
} kind;

AGK_INLINE float half_at(const void *p)
{
    uint16_t d;
    memcpy(&d, p, sizeof d);
    return _cvtsh_ss(d);
}

AGK_INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

AGK_INLINE void store(void *p, __m256i x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}

AGK_INLINE float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Sums of R rows and a column, each in 8 lanes. */
AGK_INLINE void sums_of(int R, const apart x[2], const agk_mm_col_q8 *col, __m256 sum[2])
{
    AGK_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_ps();
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const __m256i y = load(col[g / 2].q + g % 2 * 32);
        const __m256 d = _mm256_broadcast_ss(&col[g / 2].d[g % 2]);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m256i with_sign = _mm256_sign_epi8(y, load(x[r].sign + 32 * g));
            const __m256i p = _mm256_maddubs_epi16(load(x[r].magnitude + 32 * g), with_sign);
            sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(p, load(x[r].factor[g]))), d, sum[r]);
        }
    }
}

/* The sums of ternary codes: their offset of 1 adds a 128th of the column's start value too much, in every row. */
AGK_INLINE void ternary_sums_of(int R, const apart x[2], const agk_mm_col_q8 *col, __m256 sum[2])
{
    __m256 start = _mm256_setzero_ps();
    AGK_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_ps();
    AGK_UNROLL for (int g = 0; g < GROUPS; ++g)
    {
        const __m256i y = load(col[g / 2].q + g % 2 * 32);
        const __m256 d = _mm256_broadcast_ss(&col[g / 2].d[g % 2]);
        start = _mm256_fmadd_ps(_mm256_cvtepi32_ps(load(col[g / 2].start + g % 2 * 8)), d, start);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m256i p = _mm256_maddubs_epi16(load(x[r].magnitude + 32 * g), y);
            sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(p, _mm256_set1_epi16(1))), d, sum[r]);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm256_fmadd_ps(start, _mm256_set1_ps(1.0f / 128.0f), sum[r]);
}

/* R rows times n columns, at most MOST. */
AGK_INLINE void panel(kind t, int R, int64_t n, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    __m256 acc[MOST][2];
    for (int64_t j = 0; j < n; ++j) acc[j][0] = acc[j][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < block->k; k += WIDE, a += t.block_size, b += WIDE / 64 * sizeof(agk_mm_col_q8)) {
        apart x[2];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *row = a + (size_t)r * block->lda;
            AGK_UNROLL for (size_t line = 0; line < t.block_size; line += 64) /* of the next rows */
            {
                _mm_prefetch(row + (size_t)R * block->lda + line, _MM_HINT_T0);
            }
            t.take_apart(row, &x[r]);
        }
        for (int64_t j = 0; j < n; ++j) {
            const agk_mm_col_q8 *col = (const agk_mm_col_q8 *)(const void *)(b + (size_t)j * block->ldb);
            __m256 sum[2];
            if (t.ternary)
                ternary_sums_of(R, x, col, sum);
            else
                sums_of(R, x, col, sum);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                acc[j][r] = _mm256_fmadd_ps(sum[r], _mm256_set1_ps(x[r].unit), acc[j][r]);
            }
        }
    }
    for (int64_t j = 0; j < n; ++j) AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            ((float *)(void *)(c + (size_t)j * block->ldc))[r] = sum8(acc[j][r]);
        }
}

AGK_INLINE void all(kind t, bool single, const agk_mm_block *block)
{
    const char *a = block->a;
    char *c = (char *)block->c;
    int64_t rows = block->rows;
    for (; rows > 1; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) {
        for (int64_t col = 0; col < block->cols; col += MOST) {
            const int64_t left = block->cols - col;
            panel(t, 2,
                  single        ? 1
                  : left < MOST ? left
                                : MOST,
                  block, a, (const char *)block->b + (size_t)col * block->ldb, c + (size_t)col * block->ldc);
        }
    }
    for (int64_t col = 0; rows > 0 && col < block->cols; ++col) {
        panel(t, 1, 1, block, a, (const char *)block->b + (size_t)col * block->ldb, c + (size_t)col * block->ldc);
    }
}

/* Defines the kernel of a type from the function that unpacks its blocks. */
#define DOT(name, ternary) \
    void agk_mm_dots_##name##_avx2(const agk_mm_block *block) \
    { \
        const kind t = {name, sizeof(agk_block_##name), ternary}; \
        if (block->cols == 1) \
            all(t, true, block); \
        else \
            all(t, false, block); \
    }

#endif
