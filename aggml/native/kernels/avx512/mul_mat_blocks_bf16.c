/* mul_mat in bf16, AVX-512 BF16: pairs of k in one 32-bit lane, 2 x 32 products per cycle.
 *
 * Used only through lines that need AGK_AVX512_BF16. vdpbf16ps treats subnormals as zero. Not here: CPUs without the
 * instruction, where bf16 is widened (mul_mat_dots.c) and the f32 block is used. */
#include "mul_mat_blocks.h"

/* From f32 columns, rounded to nearest even. */
void agk_mm_blocks_pack_bf16_avx512(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    uint32_t *y = out;
    for (int64_t i = 0; i < k; i += 32, y += 256) {
        const int64_t left = k - i < 32 ? k - i : 32;
        const uint32_t mask = left < 32 ? (1u << left) - 1 : ~0u;
        __m512i r[16];
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            const char *x = (const char *)b + (size_t)j * ldb + 4 * i;
            r[j] = _mm512_setzero_si512();
            if (j < cols) {
                const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, x);
                const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 64);
                r[j] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
                _mm_prefetch(x + 16 * ldb, _MM_HINT_T0); /* the next unit */
                _mm_prefetch(x + 16 * ldb + 64, _MM_HINT_T0);
            }
        }
        agk_transpose16(r);
        const int64_t n = (left + 1) / 2;
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            if (j < n) _mm512_storeu_si512(y + 16 * j, r[j]);
        }
    }
}

AGK_INLINE __m512 product(__m512 acc, __m512i x, __m512i y)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)y);
}

/* Two k; `single`: the second of the pair does not exist, and is zero as in b. */
AGK_INLINE void step(int R, int W, bool single, __m512 acc[8][3], const char *a, const char *a4, size_t lda,
                     const char *b, size_t ldb)
{
    __m512i y[3];
    AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = _mm512_loadu_si512(b + (size_t)w * ldb);
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        int pair = 0;
        memcpy(&pair, (r < 4 ? a : a4) + (size_t)(r & 3) * lda, single ? 2 : 4);
        __m512i x = _mm512_set1_epi32(pair);
        if (W > 1) __asm__("" : "+v"(x)); /* one load, not an embedded broadcast per product */
        AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = product(acc[r][w], x, y[w]);
    }
}

AGK_INLINE void tile(int R, int W, const agk_mm_block *block, const char *a, float *c)
{
    __m512 acc[8][3];
    const size_t lda = block->lda, ldb = block->ldb;
    const char *b = block->b, *a4 = a + 4 * lda;
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_setzero_ps();
    if (block->c_far) agk_prefetch_tile(c, block->ldc, block->cols);
    int64_t k = 0;
    for (; k + 32 <= block->k; k += 32) {
        if (R == 8 && block->a_far) agk_prefetch_rows(a4 + 4 * lda, lda);
#pragma GCC unroll 2
        for (int i = 0; i < 16; ++i, a += 4, a4 += 4, b += 64) step(R, W, false, acc, a, a4, lda, b, ldb);
    }
    for (; k + 2 <= block->k; k += 2, a += 4, a4 += 4, b += 64) step(R, W, false, acc, a, a4, lda, b, ldb);
    if (k < block->k) step(R, W, true, acc, a, a4, lda, b, ldb);
    agk_store_tile(R, W, acc, c, block->ldc, block->cols, block->add);
}

#include "mul_mat_blocks_loop.h"

void agk_mm_blocks_bf16_avx512(const agk_mm_block *block)
{
    all_rows(block);
}
