/* mul_mat of nvfp4 rows with few columns, AVX2: weights are read once and not repacked, 64 elements of k at a time, in
 * tiles of 2 rows x up to 4 columns.
 *
 * A block has four scales, each for 16 elements, whose codes are the low and then the high nibbles of 8 bytes. Vectors
 * of 32 codes hold the first and the third 16, or the second and the fourth, because that is what unpacking gives, so
 * the elements of a column are put in the same order. A product is the magnitude of the column's element times the
 * weight with the sign of that element; sums of two are at most 2 * 12 * 128 and fit in 16 bits. 64 elements of one row
 * and column take 34 vector instructions. Not here: mxfp4 (mul_mat_dots_q.c). */
#include <immintrin.h>

#include "formats/blocks.h"
#include "kernels/inline.h"
#include "kernels/mul_mat.h"
#include "table/kernel_types.h"

enum { OF_BLOCK = 64 };

/* The four scales of a block, halved, because the table of weights has doubled values. A code without its sign is a
 * half with another bias of the exponent, subnormal numbers included; 0x7f means 0. */
AGK_INLINE __m128 scales_of(const agk_block_nvfp4 *x)
{
    int32_t word;
    memcpy(&word, x->d, sizeof word);
    const __m128i codes = _mm_and_si128(_mm_cvtsi32_si128(word), _mm_set1_epi8(0x7f));
    const __m128i numbers = _mm_andnot_si128(_mm_cmpeq_epi8(codes, _mm_set1_epi8(0x7f)), codes);
    const __m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(numbers), 7);
    return _mm_mul_ps(_mm_cvtph_ps(halves), _mm_set1_ps(128.0f));
}

/* Weights 0 .. 15 and 32 .. 47, then the others. */
AGK_INLINE void weights_of(const agk_block_nvfp4 *x, __m256i w[2])
{
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i fifteen = _mm256_set1_epi8(15), q = _mm256_loadu_si256((const __m256i *)(const void *)x->qs);
    const __m256i low = _mm256_and_si256(q, fifteen), high = _mm256_and_si256(_mm256_srli_epi16(q, 4), fifteen);
    w[0] = _mm256_shuffle_epi8(table, _mm256_unpacklo_epi64(low, high));
    w[1] = _mm256_shuffle_epi8(table, _mm256_unpackhi_epi64(low, high));
}

/* A scale in the lanes of each half: `at` 0: of the first and third 16, 1: of the others. */
AGK_INLINE __m256 spread(__m128 scales, int at)
{
    const __m256 both = _mm256_insertf128_ps(_mm256_castps128_ps256(scales), scales, 1);
    const __m256i lanes =
        at == 0 ? _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2) : _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3);
    return _mm256_permutevar_ps(both, lanes);
}

AGK_INLINE float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Sums of 4 products. An element of a column may be -128, an entry of the table may not. */
AGK_INLINE __m256 products(__m256i w, __m256i x)
{
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

AGK_INLINE void panel(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    (void)type;
    __m256 acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
    for (int64_t i = 0; i < block->k / OF_BLOCK; ++i) {
        __m256i w[2][2];
        __m256 scale[2][2];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *row = a + (size_t)r * block->lda + (size_t)i * sizeof(agk_block_nvfp4);
            const agk_block_nvfp4 *x = (const agk_block_nvfp4 *)(const void *)row;
            _mm_prefetch(row + (size_t)R * block->lda, _MM_HINT_T0); /* of the next rows */
            const __m128 scales = scales_of(x);
            weights_of(x, w[r]);
            AGK_UNROLL for (int h = 0; h < 2; ++h) scale[r][h] = spread(scales, h);
        }
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const agk_mm_col_q8 *col = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * block->ldb) + i;
            const __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)col->q);
            const __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)(col->q + OF_BLOCK / 2));
            const __m256i y[2] = {_mm256_permute2x128_si256(first, second, 0x20),
                                  _mm256_permute2x128_si256(first, second, 0x31)};
            const __m256 d = _mm256_insertf128_ps(_mm256_set1_ps(col->d[0]), _mm_set1_ps(col->d[1]), 1);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                const __m256 sum = _mm256_mul_ps(products(w[r][0], y[0]), scale[r][0]);
                acc[r][n] = _mm256_fmadd_ps(_mm256_fmadd_ps(products(w[r][1], y[1]), scale[r][1], sum), d, acc[r][n]);
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = sum8(acc[r][n]);
    }
}

/* The loops over rows and columns, which call panel() above. */
#include "kernels/mul_mat_dots_loop.h"

void agk_mm_dots_nvfp4_avx2(const agk_mm_block *block)
{
    agk_dot_blocks(0, block);
}
