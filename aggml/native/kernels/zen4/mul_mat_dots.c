/* One column of f32 for AMD processors: the rows are read where they lie, one after the other, as one stream of memory.
 *
 * kernels/avx512/mul_mat_dots.c reads 4 rows at a time and prefetches each of their cache lines. On a Zen 4 that is as
 * fast from memory, but not from the L3: 8 MB took 1.28 times as long. This file serves one column of 512 to 3,072
 * elements and hands all others to that kernel: shorter rows spend their time on the sum at the end, which 4 rows share
 * (128 elements: 47 instead of 67 GB/s), and a longer column leaves the L1, from which every row reads it again (14,336
 * elements from memory: 17 instead of 27 GB/s). Reached only through a line that needs AGK_ZEN4. Not here: packed
 * weights (mul_mat_packed.h). */
#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat.h"
#include "table/kernel_types.h"

enum {
    LEAST = 512,
    MOST = 3072, /* elements: 12 KB of the 32 KB of L1; at 4096 it is 0.9 times as fast from memory */
    LANES = 16,
    SUMS = 8, /* chains of fma, so that none waits for another */
    /* Bytes ahead that every fourth line is asked for, into L2; the processor reads the others by itself. GB/s from the
     * L3 and from memory, k 2048: none 90, 26; every eighth 88, 26.5; every fourth 86, 26.9; each 74, 25.5. With k 768
     * memory has 23.2, 23.1, 24.7 (each line of 4 rows: 65 from the L3, 21). */
    FAR_AHEAD = 6144,
};

static float dot(int64_t n, const float *a, const float *b)
{
    __m512 sum[SUMS];
    AGK_UNROLL for (int i = 0; i < SUMS; ++i) sum[i] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + LANES * SUMS <= n; k += LANES * SUMS) {
        AGK_UNROLL for (int i = 0; i < SUMS; ++i)
        {
            sum[i] = _mm512_fmadd_ps(_mm512_loadu_ps(a + k + LANES * i), _mm512_loadu_ps(b + k + LANES * i), sum[i]);
        }
        _mm_prefetch((const char *)(a + k) + FAR_AHEAD, _MM_HINT_T1);
        _mm_prefetch((const char *)(a + k) + FAR_AHEAD + 256, _MM_HINT_T1);
    }
    for (; k < n; k += LANES) {
        const __mmask16 mask = n - k < LANES ? (__mmask16)((1u << (n - k)) - 1) : (__mmask16)0xffff;
        sum[0] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, a + k), _mm512_maskz_loadu_ps(mask, b + k), sum[0]);
    }
    AGK_UNROLL for (int half = SUMS / 2; half > 0; half /= 2)
    {
        AGK_UNROLL for (int i = 0; i < half; ++i) sum[i] = _mm512_add_ps(sum[i], sum[i + half]);
    }
    return _mm512_reduce_add_ps(sum[0]);
}

void agk_mm_dots_f32_zen4(const agk_mm_block *block)
{
    if (block->cols != 1 || block->k < LEAST || block->k > MOST) {
        agk_mm_dots_f32_avx512(block);
        return;
    }
    const char *a = block->a;
    for (int64_t row = 0; row < block->rows; ++row, a += block->lda) {
        const float sum = dot(block->k, (const float *)(const void *)a, (const float *)block->b);
        block->c[row] = block->add ? block->c[row] + sum : sum;
    }
}
