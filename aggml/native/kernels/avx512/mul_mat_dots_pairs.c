/* dots_bf16, AVX-512 BF16: few columns, pairs of bf16 in each lane, both operands as they lie.
 *
 * Used only through lines that need AGK_AVX512_BF16. vdpbf16ps treats subnormals as zero. Not here: CPUs without the
 * instruction, where bf16 is widened (mul_mat_dots.c). */
#include "mul_mat_blocks.h"

AGK_INLINE __m512 product(__m512 acc, __m512i x, __m512i y)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)y);
}

AGK_INLINE int agk_dot_width(int type)
{
    (void)type;
    return 2;
}

AGK_INLINE int agk_dot_elements(int type)
{
    (void)type;
    return 32;
}

AGK_INLINE void agk_dot_step(int type, int N, __m512 acc[6][4], const char *const a[4], const char *b, size_t ldb,
                             int64_t k, uint32_t mask)
{
    __m512i x[4];
    (void)type;
    AGK_UNROLL for (int r = 0; r < 4; ++r) x[r] = _mm512_maskz_loadu_epi16(mask, a[r] + 2 * k);
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const __m512i y = _mm512_maskz_loadu_epi16(mask, b + (size_t)n * ldb + 2 * k);
        AGK_UNROLL for (int r = 0; r < 4; ++r) acc[n][r] = product(acc[n][r], x[r], y);
    }
}

#include "mul_mat_dots.h"

void agk_mm_dots_bf16_bf16_avx512(const agk_mm_block *block)
{
    agk_dot(0, block);
}
