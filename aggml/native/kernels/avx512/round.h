/* f32 to the nearest integer of a byte, and scales of columns, AVX-512. All static inline. */
#ifndef AGK_AVX512_ROUND_H
#define AGK_AVX512_ROUND_H

#include <immintrin.h>

#include "kernels/mul_mat.h"

/* Rounds halves away from zero; values that do not fit a byte become 0. The largest number below 0.5 is added, so
 * that 0.5 becomes 1 and numbers below it become 0. */
static inline __m512i agk_round_fitting(__m512 x)
{
    const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(127.5f), _CMP_LT_OQ);
    const __m512i sign = _mm512_set1_epi32((int)0x80000000u), half = _mm512_set1_epi32(0x3effffff);
    const __m512 add = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(half, _mm512_castps_si512(x), sign, 0xf8));
    return _mm512_maskz_cvttps_epi32(fits, _mm512_add_ps(x, add)); /* half | (x & sign) */
}

/* agk_mm_col_scale of 16 blocks. */
static inline __m512 agk_col_scales(__m512 d)
{
    const __mmask16 most = _mm512_cmp_ps_mask(d, _mm512_set1_ps(AGK_MM_ROUNDED_BELOW), _CMP_LT_OQ);
    const __mmask16 both = _mm512_mask_cmp_ps_mask(most, d, _mm512_set1_ps(AGK_MM_ROUNDED_FROM), _CMP_GE_OQ);
    const __m256i halves = _mm512_cvtps_ph(d, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_mask_cvtph_ps(d, both, halves);
}

#endif
