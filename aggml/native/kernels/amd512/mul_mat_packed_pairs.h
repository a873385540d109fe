/* Products of packed weights of bf16 with up to 8 columns, AVX-512 BF16, for AMD's processors: the template.
 *
 * A vector of weights is 2 k of 16 rows (mul_mat_packed.h: half a panel of tiles). A column is bf16 as it lies; two
 * of its k are broadcast. So nothing is added up across lanes, and weights are one stream, where dots read four rows
 * at a time, twice for 8 columns. Used only through lines that need AGK_AVX512_BF16 and AGK_AMD512 or
 * AGK_ZEN5. vdpbf16ps treats subnormals as zero. Not here: types with blocks (mul_mat_packed.h). */
#ifndef AGK_AMD_PACKED_PAIRS_H
#define AGK_AMD_PACKED_PAIRS_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_packed.h"

AGK_INLINE __m512bh pair(const char *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return (__m512bh)_mm512_set1_epi32(x);
}

/* 16 rows, of which `rows` are stored. Two sums for each column, so that products need not wait for each other. */
AGK_INLINE void group(int N, const agk_mm_block *b, const char *a, __mmask16 rows, float *c)
{
    __m512 sum[2][AGK_PACKED_COLUMNS];
    const char *x = b->b;
    a += AGK_PACKED_HEAD;
    AGK_UNROLL for (int n = 0; n < N; ++n) sum[0][n] = sum[1][n] = _mm512_setzero_ps();
    for (int64_t k = 0; k < b->k; k += 4, a += 128, x += 8) {
        AGK_UNROLL for (int i = 0; i < 2; ++i)
        {
            const __m512bh w = (__m512bh)_mm512_loadu_si512(a + 64 * i);
            AGK_UNROLL for (int n = 0; n < N; ++n)
            {
                sum[i][n] = _mm512_dpbf16_ps(sum[i][n], w, pair(x + (size_t)n * b->ldb + 4 * i));
            }
            /* Prefetches behind a product: since this claims to change the product's sum, the compiler does not
             * gather prefetches in bursts. */
            __asm__ volatile(AGK_AMD_HINT " %1"
                             : "+v"(sum[i][0])
                             : "m"(*(const char (*)[64])(a + AGK_PAIRS_AHEAD + 64 * i)));
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        _mm512_mask_storeu_ps((char *)c + (size_t)n * b->ldc, rows, _mm512_add_ps(sum[0][n], sum[1][n]));
    }
}

AGK_INLINE void groups(int N, const agk_mm_block *b)
{
    const char *a = b->a;
    for (int64_t row = 0; row < b->rows; row += AGK_PACKED_ROWS, a += b->lda) {
        const int64_t left = b->rows - row;
        const __mmask16 rows = (__mmask16)(left < AGK_PACKED_ROWS ? (1u << left) - 1 : 0xffffu);
        group(N, b, a, rows, b->c + row);
    }
}

AGK_INLINE void packed_pairs(const agk_mm_block *b)
{
    switch (b->cols) {
    case 1: groups(1, b); break;
    case 2: groups(2, b); break;
    case 3: groups(3, b); break;
    case 4: groups(4, b); break;
    case 5: groups(5, b); break;
    case 6: groups(6, b); break;
    case 7: groups(7, b); break;
    default: groups(8, b); break;
    }
}

#endif
