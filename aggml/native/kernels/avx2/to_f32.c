/* Rows of f16, bf16 and quantized blocks to f32, AVX2: all types but tq1_0, q8_1 and q8_K, which only have plain C.
 *
 * The results are bit for bit those of plain C (formats/). */
#include "math.h"

/* VF of 16 signed bytes, from the first or the ninth. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first == 0 ? q : _mm_unpackhi_epi64(q, q)));
}

#define V_NAME(kernel) agk_##kernel##_avx2
#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

V_ROWS_32
V_ROWS_K
V_ROWS_IQ

/* -- f16, bf16, q8_0, q4_0 --------------------------------------------------------------------------------------- */

enum { BLOCK = 32 };

static inline __m128i load_half(const void *x)
{
    return _mm_loadu_si128((const __m128i *)x);
}

/* Four vectors at a time: a loop of 20 bytes around a single one took 1.0 or 1.75 cycles for it on a Zen 4, as the
 * linker happened to place it, and 1.5 instead of 1.05 while the core's other thread was busy. */
void agk_f16_to_f32_avx2(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        AGK_UNROLL for (int v = 0; v < 32; v += 8)
        {
            _mm256_storeu_ps(dst + i + v, _mm256_cvtph_ps(load_half(x + i + v)));
        }
    }
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load_half(x + i)));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(x[i]);
}

void agk_bf16_to_f32_avx2(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        AGK_UNROLL for (int v = 0; v < 32; v += 8) _mm256_storeu_ps(dst + i + v, v_load_bf16(x + i + v));
    }
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, v_load_bf16(x + i));
    if (i < n) agk_bf16_to_f32_scalar(x + i, dst + i, n - i);
}

static inline void put8(float *dst, __m128i bytes, __m256 d)
{
    _mm256_storeu_ps(dst, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d));
}

void agk_q8_0_to_f32_avx2(const void *src, float *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    for (int64_t i = 0; i < n / BLOCK; ++i, dst += BLOCK) {
        const __m256 d = _mm256_set1_ps(_cvtsh_ss(x[i].d));
        for (int v = 0; v < BLOCK; v += 8) {
            put8(dst + v, _mm_loadl_epi64((const __m128i *)(const void *)(x[i].qs + v)), d);
        }
    }
}

void agk_q4_0_to_f32_avx2(const void *src, float *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    const __m128i low = _mm_set1_epi8(15), offset = _mm_set1_epi8(8);
    for (int64_t i = 0; i < n / BLOCK; ++i, dst += BLOCK) {
        const __m256 d = _mm256_set1_ps(_cvtsh_ss(x[i].d));
        const __m128i q = load_half(x[i].qs);
        const __m128i first = _mm_sub_epi8(_mm_and_si128(q, low), offset);
        const __m128i second = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(q, 4), low), offset);
        put8(dst, first, d);
        put8(dst + 8, _mm_unpackhi_epi64(first, first), d);
        put8(dst + 16, second, d);
        put8(dst + 24, _mm_unpackhi_epi64(second, second), d);
    }
}
