/* mul_mat of few columns, AVX2 + FMA: lanes run along k; f32, f16, bf16 and q8_0 weights as they lie.
 *
 * 2 rows x up to 4 columns. q8_0: 8-bit products through 16 bits, exact; weights and columns of 32 k at a time.
 * Not here: other quantized types (mul_mat_dots_q.c), many columns (mul_mat.c). */
#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"

enum { F32, F16, BF16, Q8_0 };

AGK_INLINE float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

AGK_INLINE __m256 load(int type, const char *a)
{
    if (type == F32) return _mm256_loadu_ps((const float *)(const void *)a);
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)a);
    if (type == F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The last k % 8 elements, filled up with zeros. */
AGK_INLINE __m256 load_tail(int type, const char *a, int64_t n)
{
    char padded[32] = {0};
    memcpy(padded, a, (size_t)n * (type == F32 ? 4 : 2));
    return load(type, padded);
}

AGK_INLINE void floats(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    const int width = type == F32 ? 4 : 2;
    __m256 acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= block->k; k += 8) {
        __m256 x[2];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *row = a + (size_t)r * block->lda + (size_t)(k * width);
            x[r] = load(type, row);
            _mm_prefetch(row + (size_t)R * block->lda, _MM_HINT_T0);
        }
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const __m256 y = load(F32, b + (size_t)n * block->ldb + (size_t)(k * 4));
            AGK_UNROLL for (int r = 0; r < R; ++r) acc[r][n] = _mm256_fmadd_ps(x[r], y, acc[r][n]);
        }
    }
    if (k < block->k) {
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const __m256 y = load_tail(F32, b + (size_t)n * block->ldb + (size_t)(k * 4), block->k - k);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                const char *row = a + (size_t)r * block->lda + (size_t)(k * width);
                acc[r][n] = _mm256_fmadd_ps(load_tail(type, row, block->k - k), y, acc[r][n]);
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float *out = (float *)(void *)(c + (size_t)n * block->ldc) + r;
        *out = block->add ? *out + sum8(acc[r][n]) : sum8(acc[r][n]);
    }
}

AGK_INLINE void quantized(int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    __m256 acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
    for (int64_t i = 0; i < block->k / AGK_MM_BLOCK; ++i) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *weights = a + (size_t)r * block->lda + (size_t)i * sizeof(agk_block_q8_0);
            uint16_t half;
            memcpy(&half, weights, sizeof half);
            const float d = _cvtsh_ss(half);
            const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(weights + 2));
            const __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
            const __m256i high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
            _mm_prefetch(weights + (size_t)R * block->lda, _MM_HINT_T0);
            AGK_UNROLL for (int n = 0; n < N; ++n)
            {
                const agk_mm_col_q8 *col = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * block->ldb) + i / 2;
                const __m128i *x = (const __m128i *)(const void *)(col->q + (i & 1) * AGK_MM_BLOCK);
                const __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(x));
                const __m256i x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(x + 1));
                const __m256i s = _mm256_add_epi32(_mm256_madd_epi16(low, x0), _mm256_madd_epi16(high, x1));
                acc[r][n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_set1_ps(d * col->d[i & 1]), acc[r][n]);
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = sum8(acc[r][n]);
    }
}

AGK_INLINE void panel(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    if (type == Q8_0)
        quantized(R, N, block, a, b, c);
    else
        floats(type, R, N, block, a, b, c);
}

AGK_INLINE void columns(int type, int R, const agk_mm_block *block, const char *a, char *c)
{
    for (int64_t col = 0; col < block->cols; col += 4) {
        const char *b = (const char *)block->b + (size_t)col * block->ldb;
        char *to = c + (size_t)col * block->ldc;
        switch (block->cols - col) {
        case 1: panel(type, R, 1, block, a, b, to); break;
        case 2: panel(type, R, 2, block, a, b, to); break;
        case 3: panel(type, R, 3, block, a, b, to); break;
        default: panel(type, R, 4, block, a, b, to); break;
        }
    }
}

AGK_INLINE void dot(int type, const agk_mm_block *block)
{
    const char *a = block->a;
    char *c = (char *)block->c;
    int64_t rows = block->rows;
    for (; rows >= 2; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) columns(type, 2, block, a, c);
    if (rows > 0) columns(type, 1, block, a, c);
}

void agk_mm_dots_f32_avx2(const agk_mm_block *block)
{
    dot(F32, block);
}

void agk_mm_dots_f16_avx2(const agk_mm_block *block)
{
    dot(F16, block);
}

void agk_mm_dots_bf16_avx2(const agk_mm_block *block)
{
    dot(BF16, block);
}

void agk_mm_dots_q8_0_avx2(const agk_mm_block *block)
{
    dot(Q8_0, block);
}
