/* Row conversions, AVX-512: f16, bf16, q8_0, q4_0 to f32 and back. Not here: columns of products (mul_mat_columns.c).
 *
 * As formats/types.c and formats/quant.c bit for bit, but for f32 -> f16, where a NaN keeps its payload (as ggml's
 * CPU conversion). Not here: rows for VNNI (mul_mat_blocks_q8.c). */
#include <immintrin.h>

#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "q8.h"

enum { BLOCK = 32 };

static inline __mmask16 head(int64_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffffu);
}

void agk_f16_to_f32_avx512(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        _mm512_mask_storeu_ps(dst + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x + i)));
    }
}

void agk_f32_to_f16_avx512(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, src + i);
        _mm256_mask_storeu_epi16(y + i, mask, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

void agk_bf16_to_f32_avx512(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + i));
        _mm512_mask_storeu_epi32(dst + i, mask, _mm512_slli_epi32(wide, 16));
    }
}

/* In integers, since vcvtneps2bf16 takes subnormals as zero. */
void agk_f32_to_bf16_avx512(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        const __m512i x = _mm512_maskz_loadu_epi32(mask, src + i);
        const __m512i top = _mm512_srli_epi32(x, 16);
        const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
        __m512i r = _mm512_srli_epi32(_mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
        const __mmask16 nan = _mm512_cmp_ps_mask(_mm512_castsi512_ps(x), _mm512_castsi512_ps(x), _CMP_UNORD_Q);
        r = _mm512_mask_or_epi32(r, nan, top, _mm512_set1_epi32(0x40));
        _mm256_mask_storeu_epi16(y + i, mask, _mm512_cvtepi32_epi16(r));
    }
}

static inline __m512 bytes_to_f32(__m128i q)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

void agk_q8_0_to_f32_avx512(const void *src, float *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    for (int64_t i = 0; i < n / BLOCK; ++i, dst += BLOCK) {
        const __m512 d = _mm512_set1_ps(_cvtsh_ss(x[i].d));
        for (int half = 0; half < 2; ++half) {
            const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)(x[i].qs + 16 * half));
            _mm512_storeu_ps(dst + 16 * half, _mm512_mul_ps(bytes_to_f32(q), d));
        }
    }
}

void agk_q4_0_to_f32_avx512(const void *src, float *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    const __m128i low = _mm_set1_epi8(15), offset = _mm_set1_epi8(8);
    for (int64_t i = 0; i < n / BLOCK; ++i, dst += BLOCK) {
        const __m512 d = _mm512_set1_ps(_cvtsh_ss(x[i].d));
        const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)x[i].qs);
        const __m128i first = _mm_sub_epi8(_mm_and_si128(q, low), offset);
        const __m128i second = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(q, 4), low), offset);
        _mm512_storeu_ps(dst, _mm512_mul_ps(bytes_to_f32(first), d));
        _mm512_storeu_ps(dst + 16, _mm512_mul_ps(bytes_to_f32(second), d));
    }
}

void agk_f32_to_q8_0_avx512(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    for (int64_t i = 0; i < n / BLOCK; ++i) {
        float d;
        _mm256_storeu_si256((__m256i *)(void *)y[i].qs, quantize(src + i * BLOCK, &d));
        y[i].d = _cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
}
