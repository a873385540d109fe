/* One column times rows of q4_K, q5_K or q8_0, AVX2: rows are not repacked and are read one after the other, as one
 * stream of memory.
 *
 * The lanes of 4 sums are added up together. Values that are the same for all rows are computed once in each call:
 * scales and sums of the column, and a copy of its elements in which no load crosses a cache line. Not here: other
 * types, more columns (mul_mat_dots.c, mul_mat_dots_q.c). */
#ifndef AGK_AVX2_MUL_MAT_DOTS_ONE_H
#define AGK_AVX2_MUL_MAT_DOTS_ONE_H

#include <immintrin.h>

#include "formats/blocks.h"
#include "kernels/inline.h"
#include "kernels/mul_mat.h"
#include "kernels/type_facts.h"

enum {
    ONE_MOST = 16384,     /* elements of a column of q4_K and q5_K */
    ONE_MOST_Q8_0 = 8192, /* of q8_0: longer rows, with what they push out of L1, were faster two at a time */
    ONE_K = 256,          /* elements of a block of q4_K */
    /* How many bytes ahead rows are prefetched into L2. One cache line in some 576 bytes is prefetched. Prefetching
     * every line, or every second one, was slower (k 2048, GB/s on a Zen 4: 16.3, 9.5, 13.3; no prefetch 15.5). */
    ONE_FAR_AHEAD = 6144,
};

/* For 8 x 32 elements of the column: the scales, and each scale times minus the sum of its elements. */
typedef struct one_scales {
    __m256 scale, minus_sum;
} one_scales;

AGK_INLINE one_scales one_scales_of(const agk_mm_col_q8 *x)
{
    float scale[8], sum[8];
    for (int b = 0; b < 8; ++b) {
        const int32_t *start = x[b / 2].start + 8 * (b % 2);
        int32_t all = 0;
        for (int i = 0; i < 8; ++i) all += start[i];
        scale[b] = x[b / 2].d[b % 2];
        sum[b] = scale[b] * 0x1p-7f * (float)all;
    }
    return (one_scales){_mm256_loadu_ps(scale), _mm256_loadu_ps(sum)};
}

AGK_INLINE __m256 one_of_bytes(uint32_t low, uint32_t high)
{
    const __m128i bytes = _mm_cvtsi64_si128((int64_t)((uint64_t)high << 32 | low));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

/* 256 k of a row of q4_K (or, if `fifth`, of q5_K, which begins with the same fields): sums in 8 lanes. */
AGK_INLINE void one_block_of_256(bool fifth, const char *block, const int8_t *x, const one_scales *column,
                                 __m256 sum[4])
{
    const agk_block_q4_k *four = (const agk_block_q4_k *)(const void *)block;
    const agk_block_q5_k *five = (const agk_block_q5_k *)(const void *)block;
    const uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, top = 0x30303030;
    uint32_t w[3];
    int32_t halves;
    memcpy(&halves, block, sizeof halves);
    memcpy(w, four->scales, sizeof w);
    const __m128 d_and_m = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
    const __m256 d = _mm256_broadcastss_ps(d_and_m), m = _mm256_broadcastss_ps(_mm_movehdup_ps(d_and_m));
    const __m256 scales = one_of_bytes(w[0] & six, (w[2] & low) | (w[0] >> 2 & top));
    const __m256 minimums = one_of_bytes(w[1] & six, (w[2] >> 4 & low) | (w[1] >> 2 & top));
    float factor[8];
    _mm256_storeu_ps(factor, _mm256_mul_ps(scales, _mm256_mul_ps(d, column->scale)));
    sum[0] = _mm256_fmadd_ps(minimums, _mm256_mul_ps(m, column->minus_sum), sum[0]);
    const __m256i fifteen = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const __m256i bits = fifth ? _mm256_loadu_si256((const __m256i *)(const void *)five->qh) : fifteen;
    const uint8_t *codes = fifth ? five->qs : four->qs;
    __m256i both = fifteen;
    AGK_UNROLL for (int g = 0; g < 8; ++g)
    {
        if (g % 2 == 0) {
            both = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 16 * g));
            __asm__("" : "+x"(both)); /* else it is loaded twice */
        }
        __m256i q = _mm256_and_si256(g % 2 == 0 ? both : _mm256_srli_epi16(both, 4), fifteen);
        if (fifth) {
            const __m256i moved = g < 4 ? _mm256_slli_epi16(bits, 4 - g) : _mm256_srli_epi16(bits, g - 4);
            q = _mm256_or_si256(q, _mm256_and_si256(moved, _mm256_set1_epi8(16)));
        }
        const __m256i y = _mm256_load_si256((const __m256i *)(const void *)(x + 32 * g));
        const __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(q, y), ones);
        sum[(g + 1) % 4] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(p), _mm256_broadcast_ss(factor + g), sum[(g + 1) % 4]);
    }
}

/* The sums of up to 4 rows, each in 8 lanes. */
AGK_INLINE void one_put(int64_t rows, const __m256 sum[4], float *c)
{
    const __m256 fours = _mm256_hadd_ps(_mm256_hadd_ps(sum[0], sum[1]), _mm256_hadd_ps(sum[2], sum[3]));
    float all[4];
    _mm_storeu_ps(all, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
    if (rows >= 4)
        memcpy(c, all, sizeof all);
    else
        memcpy(c, all, (size_t)rows * sizeof(float));
}

/* Rows of q4_K or q5_K; k is at most ONE_MOST. */
AGK_INLINE void one_column_of_256(bool fifth, const agk_mm_block *block)
{
    one_scales column[ONE_MOST / ONE_K];
    _Alignas(32) int8_t x[ONE_MOST];
    const size_t size = agk_facts(fifth ? AGK_Q5_K : AGK_Q4_K).bytes;
    const agk_mm_col_q8 *b = block->b;
    const int64_t blocks = block->k / ONE_K;
    for (int64_t i = 0; i < blocks; ++i) column[i] = one_scales_of(b + 4 * i);
    for (int64_t i = 0; i < 4 * blocks; ++i) memcpy(x + 64 * i, b[i].q, 64);
    const char *a = block->a;
    for (int64_t row = 0; row < block->rows; row += 4) {
        const int64_t rows = block->rows - row < 4 ? block->rows - row : 4;
        __m256 sums[4];
        for (int r = 0; r < 4; ++r) sums[r] = _mm256_setzero_ps();
        for (int r = 0; r < rows; ++r, a += block->lda) {
            __m256 sum[4];
            AGK_UNROLL for (int j = 0; j < 4; ++j) sum[j] = _mm256_setzero_ps();
            for (int64_t i = 0; i < blocks; ++i) {
                if (i % 4 == 0) _mm_prefetch(a + (size_t)i * size + ONE_FAR_AHEAD, _MM_HINT_T1);
                one_block_of_256(fifth, a + (size_t)i * size, x + 256 * i, column + i, sum);
            }
            sums[r] = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
        }
        one_put(rows, sums, block->c + row);
    }
}

/* One block of a row of q8_0: magnitudes of at most 128 times elements of the column with the signs of the row, which
 * are no -128, so that sums of two products fit in 16 bits. */
AGK_INLINE __m256 one_block_of_q8_0(const char *block, const int8_t *x, float scale, __m256 sum)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(block + sizeof half));
    const __m256i y = _mm256_sign_epi8(_mm256_load_si256((const __m256i *)(const void *)x), q);
    const __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(q), y), _mm256_set1_epi16(1));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(p), _mm256_set1_ps(_cvtsh_ss(half) * scale), sum);
}

/* Whether an element of the column is -128, which only a column has that was q8_0 before. */
AGK_INLINE bool one_has_least(const agk_mm_block *block)
{
    const agk_mm_col_q8 *b = block->b;
    __m256i least = _mm256_setzero_si256();
    for (int64_t i = 0; i < block->k / AGK_MM_BLOCK; ++i) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(b[i / 2].q + i % 2 * AGK_MM_BLOCK));
        least = _mm256_min_epi8(least, x);
    }
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(least, _mm256_set1_epi8(-128))) != 0;
}

/* Rows of q8_0; k is at most ONE_MOST_Q8_0, and no element of the column is -128. */
AGK_INLINE void one_column_of_q8_0(const agk_mm_block *block)
{
    _Alignas(32) int8_t x[ONE_MOST_Q8_0];
    float scales[ONE_MOST_Q8_0 / AGK_MM_BLOCK];
    const agk_mm_col_q8 *b = block->b;
    const int64_t blocks = block->k / AGK_MM_BLOCK;
    const size_t size = sizeof(agk_block_q8_0);
    for (int64_t i = 0; i < blocks; ++i) {
        memcpy(x + AGK_MM_BLOCK * i, b[i / 2].q + i % 2 * AGK_MM_BLOCK, AGK_MM_BLOCK);
        scales[i] = b[i / 2].d[i % 2];
    }
    const char *a = block->a;
    for (int64_t row = 0; row < block->rows; row += 4) {
        const int64_t rows = block->rows - row < 4 ? block->rows - row : 4;
        __m256 sums[4];
        for (int r = 0; r < 4; ++r) sums[r] = _mm256_setzero_ps();
        for (int r = 0; r < rows; ++r, a += block->lda) {
            __m256 sum[4];
            AGK_UNROLL for (int j = 0; j < 4; ++j) sum[j] = _mm256_setzero_ps();
            int64_t i = 0;
            for (; i + 4 <= blocks; i += 4) {
                if (i % 16 == 0) _mm_prefetch(a + (size_t)i * size + ONE_FAR_AHEAD, _MM_HINT_T1);
                AGK_UNROLL for (int j = 0; j < 4; ++j)
                {
                    const char *w = a + (size_t)(i + j) * size;
                    sum[j] = one_block_of_q8_0(w, x + AGK_MM_BLOCK * (i + j), scales[i + j], sum[j]);
                }
            }
            for (; i < blocks; ++i) {
                sum[0] = one_block_of_q8_0(a + (size_t)i * size, x + AGK_MM_BLOCK * i, scales[i], sum[0]);
            }
            sums[r] = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
        }
        one_put(rows, sums, block->c + row);
    }
}
#endif
