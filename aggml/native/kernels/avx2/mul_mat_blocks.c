/* mul_mat in f32, AVX2 + FMA: pack a unit of b, multiply tiles of 6 rows x 16 columns.
 *
 * 12 accumulators hide the latency of 4 or 5 cycles on two multipliers; 8 loads feed them. f16 and bf16 are widened to
 * f32 by the caller. Not here: quantized rows (mul_mat_shorts.c), few columns (mul_mat_dots.c). */
#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "math.h"

enum { MOST_ROWS = 6 };

AGK_INLINE void transpose8(__m256 r[8])
{
    __m256 t[8];
    AGK_UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    AGK_UNROLL for (int i = 0; i < 8; i += 4)
    {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    AGK_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
}

void agk_mm_blocks_pack_f32_avx2(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    float *y = out;
    for (int half = 0; half < 2; ++half) {
        const char *x = (const char *)b + (size_t)(8 * half) * ldb;
        const int64_t n = cols - 8 * half < 8 ? cols - 8 * half : 8;
        int64_t i = 0;
        for (; i + 8 <= k; i += 8) {
            __m256 r[8];
            AGK_UNROLL for (int j = 0; j < 8; ++j)
            {
                r[j] = j < n ? _mm256_loadu_ps((const float *)(const void *)(x + (size_t)j * ldb) + i)
                             : _mm256_setzero_ps();
            }
            transpose8(r);
            AGK_UNROLL for (int j = 0; j < 8; ++j) _mm256_storeu_ps(y + (i + j) * AGK_MM_UNIT + 8 * half, r[j]);
        }
        for (; i < k; ++i) {
            for (int64_t j = 0; j < 8; ++j) {
                y[i * AGK_MM_UNIT + 8 * half + j] =
                    j < n ? ((const float *)(const void *)(x + (size_t)j * ldb))[i] : 0.0f;
            }
        }
    }
}

AGK_INLINE void tile(int R, const agk_mm_block *block, const char *a, const float *b, char *c, int64_t cols)
{
    vf acc[MOST_ROWS][2];
    AGK_UNROLL for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = v_zero();
    for (int64_t k = 0; k < block->k; ++k, a += sizeof(float), b += AGK_MM_UNIT) {
        const vf y0 = v_load(b), y1 = v_load(b + 8);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const vf x = v_set(*(const float *)(const void *)(a + (size_t)r * block->lda));
            v_add_product(&acc[r][0], x, y0);
            v_add_product(&acc[r][1], x, y1);
        }
    }
    float values[AGK_MM_UNIT][MOST_ROWS]; /* a column is R contiguous floats of c */
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float row[AGK_MM_UNIT];
        v_store(row, acc[r][0]);
        v_store(row + 8, acc[r][1]);
        for (int j = 0; j < AGK_MM_UNIT; ++j) values[j][r] = row[j];
    }
    for (int64_t j = 0; j < cols; ++j, c += block->ldc) {
        float *out = (float *)(void *)c;
        for (int r = 0; r < R; ++r) out[r] = block->add ? out[r] + values[j][r] : values[j][r];
    }
}

void agk_mm_blocks_f32_avx2(const agk_mm_block *block)
{
    for (int64_t unit = 0; unit * AGK_MM_UNIT < block->cols; ++unit) {
        const int64_t left = block->cols - unit * AGK_MM_UNIT, cols = left < AGK_MM_UNIT ? left : AGK_MM_UNIT;
        const float *b = (const float *)(const void *)((const char *)block->b + (size_t)unit * block->ldb);
        const char *a = block->a;
        char *c = (char *)block->c + (size_t)(unit * AGK_MM_UNIT) * block->ldc;
        int64_t rows = block->rows;
        for (; rows >= 6; rows -= 6, a += 6 * block->lda, c += 6 * sizeof(float)) tile(6, block, a, b, c, cols);
        for (; rows >= 2; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) tile(2, block, a, b, c, cols);
        if (rows > 0) tile(1, block, a, b, c, cols);
    }
}
