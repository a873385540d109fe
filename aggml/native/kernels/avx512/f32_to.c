/* Rows of f32 to f16, bf16, q8_0 and, from vec/quant_x86.h, q4_0, q4_1, q5_0 and q5_1, AVX-512.
 *
 * As plain C bit for bit (formats/), but for f16, where a NaN keeps its payload (as in ggml's conversion on the CPU).
 * Not here: columns of products (mul_mat_columns.c). */
#include <immintrin.h>
#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "kernels/vec/quant_x86.h"
#include "q8.h"

enum { BLOCK = 32 };

static inline __mmask16 head(int64_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffffu);
}

static inline __m256i to_f16(__m512 x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Masks for the rest alone: a Zen 4 takes a store with a mask apart. */
void agk_f32_to_f16_avx512(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(void *)(y + i), to_f16(_mm512_loadu_ps(src + i)));
    if (i == n) return;
    const __mmask16 mask = head(n - i);
    _mm256_mask_storeu_epi16(y + i, mask, to_f16(_mm512_maskz_loadu_ps(mask, src + i)));
}

/* In integers, since vcvtneps2bf16 takes subnormals as zero. */
static inline __m256i to_bf16(__m512i x)
{
    const __m512i top = _mm512_srli_epi32(x, 16);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(_mm512_castsi512_ps(x), _mm512_castsi512_ps(x), _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, top, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}

void agk_f32_to_bf16_avx512(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(void *)(y + i), to_bf16(_mm512_loadu_si512(src + i)));
    if (i == n) return;
    const __mmask16 mask = head(n - i);
    _mm256_mask_storeu_epi16(y + i, mask, to_bf16(_mm512_maskz_loadu_epi32(mask, src + i)));
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

V_QUANT_KERNELS(avx512)
