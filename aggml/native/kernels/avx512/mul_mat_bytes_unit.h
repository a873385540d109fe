/* 32 k of 16 columns of floats as a unit of bytes (mul_mat_bytes.h), AVX-512 VNNI. The columns are lanes, so nothing is
 * added up or compared across lanes. All static inline. */
#ifndef AGK_AVX512_BYTES_UNIT_H
#define AGK_AVX512_BYTES_UNIT_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_bytes.h"
#include "round.h"

/* The scale of each column, and what its elements are multiplied by. */
typedef struct agk_unit_scales {
    __m512 d, inverse;
} agk_unit_scales;

AGK_INLINE agk_unit_scales agk_unit_scales_of(__m512 most)
{
    const __m512 zero = _mm512_setzero_ps(), d = _mm512_div_ps(most, _mm512_set1_ps(127.0f));
    const __mmask16 some = _mm512_cmp_ps_mask(d, zero, _CMP_NEQ_UQ);
    return (agk_unit_scales){d, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), d)};
}

/* The larger absolute value; NaN does not count. */
AGK_INLINE __m512 agk_unit_most(__m512 most, __m512 x)
{
    return _mm512_max_ps(_mm512_abs_ps(x), most); /* gives the second operand if one is NaN */
}

/* One element of each column; values that do not fit become 0. wide: halves are rounded to even numbers, as ggml does
 * where columns have one scale for 256 k; else away from zero. */
AGK_INLINE __m512i agk_unit_round(bool wide, __m512 x)
{
    if (!wide) return agk_round_fitting(x);
    const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(127.5f), _CMP_LT_OQ);
    return _mm512_maskz_cvtps_epi32(fits, x);
}

/* x: 32 rows of 16 columns. Scales for 32 k are rounded as agk_mm_col_scale says. */
AGK_INLINE void agk_unit_put(bool halves, bool wide, float (*x)[16], agk_unit_scales scales, agk_bytes_unit *unit)
{
    const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi8(1), byte = _mm512_set1_epi32(255);
    __m512i sum[2] = {zero, zero};
    AGK_UNROLL for (int v = 0; v < AGK_MM_BLOCK / 4; ++v)
    {
        __m512i q[4];
        AGK_UNROLL for (int i = 0; i < 4; ++i)
        {
            q[i] = agk_unit_round(wide, _mm512_mul_ps(_mm512_load_ps(x[4 * v + i]), scales.inverse));
        }
        const __m512i low =
            _mm512_or_si512(_mm512_and_si512(q[0], byte), _mm512_slli_epi32(_mm512_and_si512(q[1], byte), 8));
        const __m512i four = _mm512_ternarylogic_epi32(low, _mm512_slli_epi32(_mm512_and_si512(q[2], byte), 16),
                                                       _mm512_slli_epi32(q[3], 24), 0xfe); /* or */
        sum[v / 4] = _mm512_dpbusd_epi32(sum[v / 4], ones, four);
        _mm512_store_si512(unit->q[v], four);
    }
    const __m512 d = wide ? scales.d : agk_col_scales(scales.d);
    if (!halves) {
        sum[0] = _mm512_add_epi32(sum[0], sum[1]);
        sum[1] = zero;
    }
    _mm512_store_ps(unit->d, d);
    AGK_UNROLL for (int h = 0; h < 2; ++h)
    {
        const __m512 floats = _mm512_cvtepi32_ps(sum[h]);
        _mm512_store_si512(unit->start[h], _mm512_sub_epi32(zero, _mm512_slli_epi32(sum[h], 7)));
        _mm512_store_ps(unit->sum[h], wide ? floats : _mm512_mul_ps(d, floats));
    }
}

#endif
