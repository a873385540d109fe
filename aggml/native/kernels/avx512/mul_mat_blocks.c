/* blocks_f32, AVX-512: columns of b are packed to a unit, 8 rows are multiplied by 48 columns at a time.
 *
 * Not here: bf16 (mul_mat_blocks_bf16.c), VNNI (mul_mat_blocks_q8.c), few columns (mul_mat_dots.c). */
#define AGK_BLOCKS_LOADS 1
#include "mul_mat_blocks_floats.h"

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

void agk_mm_blocks_f32_avx512(const agk_mm_block *block)
{
    all_rows(block);
}
