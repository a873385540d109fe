/* f32 to f16 and bf16 in registers, AVX2. As plain C bit for bit, but for f16, where a NaN keeps its payload.
 *
 * kernels/avx512/halves.h gives the same names for 16 lanes. */
#ifndef AGK_AVX2_HALVES_H
#define AGK_AVX2_HALVES_H

#include <stdbool.h>

#include "math.h"

/* The bf16 of each lane in its lower half; the upper half is zero. */
AGK_INLINE __m256i agk_lanes_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
}

AGK_INLINE __m128i agk_to_f16(__m256 x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

AGK_INLINE __m128i agk_to_bf16(__m256 x)
{
    const __m256i lanes = agk_lanes_bf16(x);
    return _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
}

/* Two vectors, next to each other. */
AGK_INLINE void v_store_halves_2(bool bf16, uint16_t *p, vf a, vf b)
{
    if (bf16) {
        const __m256i both = _mm256_packus_epi32(agk_lanes_bf16(a), agk_lanes_bf16(b));
        _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(both, 0xd8));
    } else {
        _mm_storeu_si128((__m128i *)(void *)p, agk_to_f16(a));
        _mm_storeu_si128((__m128i *)(void *)(p + VF), agk_to_f16(b));
    }
}

/* n <= VF elements; nothing beyond p[n - 1] is touched. */
AGK_INLINE void v_store_halves_n(bool bf16, uint16_t *p, vf x, int64_t n)
{
    uint16_t all[VF];
    _mm_storeu_si128((__m128i *)(void *)all, bf16 ? agk_to_bf16(x) : agk_to_f16(x));
    memcpy(p, all, (size_t)n * sizeof *p);
}

#endif
