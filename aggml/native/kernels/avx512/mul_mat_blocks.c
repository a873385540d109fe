/* blocks_f32, AVX-512: columns of b are packed to a unit, 8 rows are multiplied by 48 columns at a time.
 *
 * Not here: bf16 (mul_mat_blocks_bf16.c), VNNI (mul_mat_blocks_q8.c), few columns (mul_mat_dots.c). */
#include "mul_mat_blocks.h"

void agk_mm_blocks_pack_f32_avx512(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    float *y = out;
    for (int64_t i = 0; i < k; i += 16, y += 256) {
        const __mmask16 mask = (__mmask16)(k - i < 16 ? (1u << (k - i)) - 1 : 0xffffu);
        __m512i r[16];
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            const float *x = (const float *)(const void *)((const char *)b + (size_t)j * ldb) + i;
            r[j] = j < cols ? _mm512_maskz_loadu_epi32(mask, x) : _mm512_setzero_si512();
            _mm_prefetch((const char *)x + 16 * ldb, _MM_HINT_T0); /* the next unit */
        }
        agk_transpose16(r);
        const int64_t n = k - i < 16 ? k - i : 16;
        if (n == 16) {
            AGK_UNROLL for (int j = 0; j < 16; ++j) _mm512_storeu_si512(y + 16 * j, r[j]);
        } else {
            AGK_UNROLL for (int j = 0; j < 16; ++j)
            {
                if (j < n) _mm512_storeu_si512(y + 16 * j, r[j]);
            }
        }
    }
}

AGK_INLINE void step(int R, int W, __m512 acc[8][3], const char *a, const char *a4, size_t lda, const char *b,
                     size_t ldb)
{
    __m512 y[3];
    AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = _mm512_loadu_ps(b + (size_t)w * ldb);
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        const char *row = (r < 4 ? a : a4) + (size_t)(r & 3) * lda;
        __m512 x = _mm512_set1_ps(*(const float *)(const void *)row);
        if (W > 1) __asm__("" : "+v"(x)); /* one load, not an embedded broadcast per product */
        AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_fmadd_ps(x, y[w], acc[r][w]);
    }
}

AGK_INLINE void tile(int R, int W, const agk_mm_block *block, const char *a, float *c)
{
    __m512 acc[8][3];
    const size_t lda = block->lda, ldb = block->ldb;
    const char *b = block->b;
    const char *a4 = a + 4 * lda; /* two bases: every row is base + {0, 1, 2, 3} * lda */
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_setzero_ps();
    if (block->c_far) agk_prefetch_tile(c, block->ldc, block->cols);
    int64_t k = 0;
    for (; k + 16 <= block->k; k += 16) {
        if (R == 8 && block->a_far) agk_prefetch_rows(a4 + 4 * lda, lda);
#pragma GCC unroll 2
        for (int i = 0; i < 16; ++i, a += 4, a4 += 4, b += 64) step(R, W, acc, a, a4, lda, b, ldb);
    }
    for (; k < block->k; ++k, a += 4, a4 += 4, b += 64) step(R, W, acc, a, a4, lda, b, ldb);
    agk_store_tile(R, W, acc, c, block->ldc, block->cols, block->add);
}

#include "mul_mat_blocks_loop.h"

void agk_mm_blocks_f32_avx512(const agk_mm_block *block)
{
    all_rows(block);
}
