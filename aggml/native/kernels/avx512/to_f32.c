/* Rows of f16, bf16 and quantized blocks to f32, AVX-512: all types except tq1_0, q8_1 and q8_K, which have plain C
 * only.
 *
 * Bit for bit like plain C (formats/). */
#include "math.h"

/* 16 signed bytes. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* always 0 */
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

#define V_NAME(kernel) agk_##kernel##_avx512
#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

V_ROWS_32
V_ROWS_K
V_ROWS_IQ

/* -- f16, bf16, q8_0, q4_0 --------------------------------------------------------------------------------------- */

enum { BLOCK = 32 };

/* Masked loads and stores throughout. A Zen 4 takes no longer for them in cache. From memory, four plain loads in a row
 * had 13 GB/s where these have 23 (a neg of f16; why is not known: the same loops alone differ by a fifth). */
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

void agk_bf16_to_f32_avx512(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + i));
        _mm512_mask_storeu_epi32(dst + i, mask, _mm512_slli_epi32(wide, 16));
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
