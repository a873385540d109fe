/* Rows of quantized weights to bf16, for the tiles of AMX: code times scale, rounded to nearest even once.
 *
 * Some 5 cycles for a block of 32, where 512 columns take 32. Not here: types that go through floats (the plan's readers). */
#include "../avx512/mul_mat_tile.h"

AGK_INLINE void store_block(uint16_t *y, __m256i codes, float d)
{
    const __m512 scale = _mm512_set1_ps(d);
    const __m512 low = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes))), scale);
    const __m512 high =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1))), scale);
    _mm512_storeu_si512(y, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

void agk_q8_0_to_bf16_amx(const void *src, void *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    for (int64_t i = 0; i < n / AGK_MM_BLOCK; ++i) {
        const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)x[i].qs);
        store_block((uint16_t *)dst + AGK_MM_BLOCK * i, codes, _cvtsh_ss(x[i].d));
    }
}

void agk_q4_0_to_bf16_amx(const void *src, void *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    for (int64_t i = 0; i < n / AGK_MM_BLOCK; ++i) {
        const __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)x[i].qs);
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1);
        const __m256i codes = _mm256_sub_epi8(_mm256_and_si256(both, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
        store_block((uint16_t *)dst + AGK_MM_BLOCK * i, codes, _cvtsh_ss(x[i].d));
    }
}
