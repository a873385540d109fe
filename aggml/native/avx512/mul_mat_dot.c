/* mul_mat of few columns in f32, f16 and bf16, AVX-512: lanes run along k, nothing is packed or converted before.
 *
 * 4 rows x up to 6 columns at a time; the next 4 rows are prefetched meanwhile, since from memory this is a stream
 * of weights (1 to 8 columns) and from cache a product of half the multipliers' peak and more (9 to 16). bf16 and
 * f16 are widened on the fly, by the pipes that do not multiply. Not here: quantized weights (mul_mat_dot_q.c). */
#include "mul_mat_tile.h"

enum { F32, F16, BF16 };

/* 16 elements, those beyond the mask are zero. */
AGK_INLINE __m512 load(int type, const char *a, int64_t k, __mmask16 mask)
{
    if (type == F32) return _mm512_maskz_loadu_ps(mask, a + 4 * k);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, a + 2 * k);
    if (type == F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* The sums of four vectors. */
AGK_INLINE __m128 sum4(const __m512 r[4])
{
    __m512 t[4];
    agk_transpose4(r, t);
    const __m512 s = _mm512_add_ps(_mm512_add_ps(t[0], t[1]), _mm512_add_ps(t[2], t[3]));
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

AGK_INLINE void step(int type, int N, __m512 acc[6][4], const char *const a[4], const char *b, size_t ldb, int64_t k,
                     __mmask16 mask)
{
    __m512 x[4];
    AGK_UNROLL for (int r = 0; r < 4; ++r) x[r] = load(type, a[r], k, mask);
    AGK_UNROLL for (int n = 0; n < N; ++n) {
        const __m512 y = load(F32, b + (size_t)n * ldb, k, mask);
        AGK_UNROLL for (int r = 0; r < 4; ++r) acc[n][r] = _mm512_fmadd_ps(x[r], y, acc[n][r]);
    }
}

/* Up to 4 rows; missing ones repeat the last and are not stored. Group g of `groups` prefetches its share of the next
 * 4 rows, `ahead` bytes from here. */
AGK_INLINE void panel(int type, int N, const agk_mm_block *block, const char *a, int64_t rows, const char *b, char *c,
                      int64_t g, int64_t groups)
{
    const size_t lda = block->lda, ahead = 4 * lda;
    const char *const row[4] = {a, a + (rows > 1 ? lda : 0), a + (rows > 2 ? 2 * lda : rows > 1 ? lda : 0),
                                a + (size_t)(rows - 1) * lda};
    __m512 acc[6][4];
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < 4; ++r) acc[n][r] = _mm512_setzero_ps();
    const int64_t k = block->k, line = type == F32 ? 16 : 32; /* elements of a cache line */
    const int width = type == F32 ? 4 : 2;
    int64_t i = 0, due = g * line;
    for (; i + 16 <= k; i += 16) {
        if (i == due) {
            AGK_UNROLL for (int r = 0; r < 4; ++r) _mm_prefetch(row[r] + ahead + (size_t)(i * width), _MM_HINT_T0);
            due += groups * line;
        }
        step(type, N, acc, row, b, block->ldb, i, (__mmask16)0xffff);
    }
    if (i < k) step(type, N, acc, row, b, block->ldb, i, (__mmask16)((1u << (k - i)) - 1));
    const __mmask8 mask = (__mmask8)((1u << rows) - 1);
    AGK_UNROLL for (int n = 0; n < N; ++n, c += block->ldc) {
        const __m128 old = block->add ? _mm_maskz_loadu_ps(mask, c) : _mm_setzero_ps();
        _mm_mask_storeu_ps(c, mask, _mm_add_ps(sum4(acc[n]), old));
    }
}

/* Columns in groups as equal as can be: 14 = 5 + 5 + 4. */
AGK_INLINE void dot(int type, const agk_mm_block *block)
{
    const int64_t groups = (block->cols + 5) / 6;
    const char *a = block->a;
    char *c = (char *)block->c;
    for (int64_t row = 0; row < block->rows; row += 4, a += 4 * block->lda, c += 4 * sizeof(float)) {
        const int64_t rows = block->rows - row < 4 ? block->rows - row : 4;
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t from = block->cols * g / groups, n = block->cols * (g + 1) / groups - from;
            const char *b = (const char *)block->b + (size_t)from * block->ldb;
            char *to = c + (size_t)from * block->ldc;
#define AGK_CASE(N) \
    case N: panel(type, N, block, a, rows, b, to, g, groups); break;
            switch (n) {
                AGK_CASE(1) AGK_CASE(2) AGK_CASE(3) AGK_CASE(4) AGK_CASE(5) AGK_CASE(6)
            default: break;
            }
#undef AGK_CASE
        }
    }
}

void agk_mm_dot_f32_avx512(const agk_mm_block *block)
{
    dot(F32, block);
}

void agk_mm_dot_f16_avx512(const agk_mm_block *block)
{
    dot(F16, block);
}

void agk_mm_dot_bf16_avx512(const agk_mm_block *block)
{
    dot(BF16, block);
}
