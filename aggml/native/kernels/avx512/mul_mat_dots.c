/* mul_mat of few columns in f32, f16 and bf16, AVX-512: lanes run along k, nothing is packed or converted before.
 *
 * 4 rows x up to 6 columns at a time, while the next 4 rows are prefetched. From memory this is a stream of weights
 * (1 to 8 columns); from cache it is a product at half the multipliers' peak and more (9 to 16). bf16 and f16 are
 * widened on the fly, by pipes that do not multiply. Not here: pairs of bf16 (mul_mat_dots_pairs.c), quantized
 * weights (mul_mat_dots_32.c). */
#include "mul_mat_blocks.h"

enum { F32, F16, BF16 };

AGK_INLINE int agk_dot_width(int type)
{
    return type == F32 ? 4 : 2;
}

AGK_INLINE int agk_dot_elements(int type)
{
    (void)type;
    return 16;
}

/* 16 elements, those beyond the mask are zero. */
AGK_INLINE __m512 load(int type, const char *a, int64_t k, __mmask16 mask)
{
    if (type == F32) return _mm512_maskz_loadu_ps(mask, a + 4 * k);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, a + 2 * k);
    if (type == F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

AGK_INLINE void agk_dot_step(int type, int N, __m512 acc[6][4], const char *const a[4], const char *b, size_t ldb,
                             int64_t k, uint32_t mask32)
{
    const __mmask16 mask = (__mmask16)mask32;
    __m512 x[4];
    AGK_UNROLL for (int r = 0; r < 4; ++r) x[r] = load(type, a[r], k, mask);
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const __m512 y = load(F32, b + (size_t)n * ldb, k, mask);
        AGK_UNROLL for (int r = 0; r < 4; ++r) acc[n][r] = _mm512_fmadd_ps(x[r], y, acc[n][r]);
    }
}

#include "mul_mat_dots.h"

void agk_mm_dots_f32_avx512(const agk_mm_block *block)
{
    agk_dot(F32, block);
}

void agk_mm_dots_f16_avx512(const agk_mm_block *block)
{
    agk_dot(F16, block);
}

void agk_mm_dots_bf16_avx512(const agk_mm_block *block)
{
    agk_dot(BF16, block);
}
