/* One column of f32, f16 and bf16 for AMD processors: what the kernels of a Zen 4 and a Zen 5 share. Rows are not
 * repacked.
 *
 * Reached only through lines of kernels_mul_mat.def that need AGK_AMD512 or AGK_ZEN5; pairs of bf16 need
 * AGK_AVX512_BF16 as well. A file includes the lines.h of its core first, and defines one_column(type, block). Not
 * here: the order in which rows are read (amd512/mul_mat_dots.c, zen5/mul_mat_dots.c), packed weights
 * (mul_mat_packed.h). */
#ifndef AGK_AMD_DOTS_H
#define AGK_AMD_DOTS_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat.h"
#include "table/kernel_types.h"

enum { F32, F16, PAIRS };

/* Prefetches a line; the hint is that of the core (lines.h). */
AGK_INLINE void ask(const char *line)
{
    __asm__ volatile(AGK_AMD_HINT " %0" : : "m"(*(const char (*)[64])line));
}

AGK_INLINE int elements_of(int type)
{
    return type == PAIRS ? 32 : 16;
}

AGK_INLINE int width_of(int type) /* of an element of a row */
{
    return type == F32 ? 4 : 2;
}

AGK_INLINE int column_width(int type)
{
    return type == PAIRS ? 2 : 4;
}

/* sum + a vector of a times one of b; n elements if fewer are left. */
AGK_INLINE __m512 add_product(int type, __m512 sum, const char *a, const char *b, int64_t n)
{
    if (type == PAIRS) {
        const __mmask32 mask = n < 32 ? (1u << n) - 1 : ~0u;
        const __m512i x = n < 32 ? _mm512_maskz_loadu_epi16(mask, a) : _mm512_loadu_si512(a);
        const __m512i y = n < 32 ? _mm512_maskz_loadu_epi16(mask, b) : _mm512_loadu_si512(b);
        return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
    }
    const __mmask16 mask = n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff;
    const __m512 y = n < 16 ? _mm512_maskz_loadu_ps(mask, b) : _mm512_loadu_ps(b);
    if (type == F32) return _mm512_fmadd_ps(n < 16 ? _mm512_maskz_loadu_ps(mask, a) : _mm512_loadu_ps(a), y, sum);
    const __m256i x = n < 16 ? _mm256_maskz_loadu_epi16(mask, a) : _mm256_loadu_si256((const __m256i *)(const void *)a);
    return _mm512_fmadd_ps(_mm512_cvtph_ps(x), y, sum);
}

/* The sums of 4 rows, one in each lane. */
AGK_INLINE __m128 fours(const __m512 sum[4])
{
    __m256 h[4];
    AGK_UNROLL for (int r = 0; r < 4; ++r)
    {
        h[r] = _mm256_add_ps(_mm512_castps512_ps256(sum[r]), _mm512_extractf32x8_ps(sum[r], 1));
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

/* The kernel of a type; more than one column is passed on. */
#define AGK_ONE_COLUMN(name, type) \
    void AGK_AMD(mm_dots_##name)(const agk_mm_block *block) \
    { \
        if (block->cols == 1) \
            one_column(type, block); \
        else \
            agk_mm_dots_##name##_avx512(block); \
    }

#endif
