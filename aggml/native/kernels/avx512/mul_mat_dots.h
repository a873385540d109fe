/* The dot of 4 rows x up to 6 columns, which f32, f16, bf16 and pairs of bf16 share.
 *
 * A file says how many elements a step takes (agk_dot_elements), how wide those of a are (agk_dot_width), defines
 * the step itself (agk_dot_step), and includes this. */
#ifndef AGK_AVX512_MUL_MAT_DOT_H
#define AGK_AVX512_MUL_MAT_DOT_H

#include "mul_mat_blocks.h"

/* The sums of four vectors. */
AGK_INLINE __m128 agk_sum4(const __m512 r[4])
{
    __m512 t[4];
    agk_transpose4(r, t);
    const __m512 s = _mm512_add_ps(_mm512_add_ps(t[0], t[1]), _mm512_add_ps(t[2], t[3]));
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* Up to 4 rows; missing ones repeat the last and are not stored. Group g of `groups` prefetches its share of the
 * bytes AHEAD; at the end of the rows, its share of the next 4 rows. Prefetched into L2, f32 reaches 98 % of the
 * read bandwidth, f16 and bf16 91 %. Prefetched into L1, with the next 4 rows all the time, it was 80, 85 and 86 %. */
AGK_INLINE void agk_dot_panel(int type, int N, const agk_mm_block *block, const char *a, int64_t rows, const char *b,
                              char *c, int64_t g, int64_t groups)
{
    enum { AHEAD = 1536 };
    const size_t lda = block->lda;
    const char *const row[4] = {a, a + (rows > 1 ? lda : 0),
                                a + (rows > 2   ? 2 * lda
                                     : rows > 1 ? lda
                                                : 0),
                                a + (size_t)(rows - 1) * lda};
    __m512 acc[6][4];
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < 4; ++r) acc[n][r] = _mm512_setzero_ps();
    const int width = agk_dot_width(type), elements = agk_dot_elements(type), line = 64 / width;
    const int64_t k = block->k, last = k * width - AHEAD;
    int64_t i = 0, due = g * line;
    for (; i + elements <= k; i += elements) {
        if (i == due) {
            const int64_t at = i * width;
            const size_t ahead = at < last ? (size_t)at + AHEAD : (size_t)(at - last) + 4 * lda;
            AGK_UNROLL for (int r = 0; r < 4; ++r) _mm_prefetch(row[r] + ahead, _MM_HINT_T1);
            due += groups * line;
        }
        agk_dot_step(type, N, acc, row, b, block->ldb, i, ~0u);
    }
    if (i < k) agk_dot_step(type, N, acc, row, b, block->ldb, i, (1u << (k - i)) - 1);
    const __mmask8 mask = (__mmask8)((1u << rows) - 1);
    AGK_UNROLL for (int n = 0; n < N; ++n, c += block->ldc)
    {
        const __m128 old = block->add ? _mm_maskz_loadu_ps(mask, c) : _mm_setzero_ps();
        _mm_mask_storeu_ps(c, mask, _mm_add_ps(agk_sum4(acc[n]), old));
    }
}

/* Columns in groups as equal as can be: 14 = 5 + 5 + 4. */
AGK_INLINE void agk_dot(int type, const agk_mm_block *block)
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
    case N: agk_dot_panel(type, N, block, a, rows, b, to, g, groups); break;
            switch (n) {
                AGK_CASE(1) AGK_CASE(2) AGK_CASE(3) AGK_CASE(4) AGK_CASE(5) AGK_CASE(6) default : break;
            }
#undef AGK_CASE
        }
    }
}

#endif
