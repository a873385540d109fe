/* Rows of f32 to f16, bf16, q8_0 and, from vec/quant_x86.h, q4_0, q4_1, q5_0 and q5_1, AVX-512.
 *
 * Bit for bit like plain C (formats/), except for f16, where a NaN keeps its payload (as in ggml's conversion on the
 * CPU). Not here: columns of products (mul_mat_columns.c). */
#include <immintrin.h>
#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "kernels/vec/quant_x86.h"
#include "halves.h"
#include "q8.h"

enum { BLOCK = 32 };

static inline __mmask16 head(int64_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffffu);
}

/* Two vectors are stored as one: a Zen 4 takes 2.7 us for 65,536 elements in cache, and 3.8 us with a masked store for
 * each. (Masked stores were faster from memory as long as threads took every other chunk of a tensor; now no
 * difference was found.) */
void agk_f32_to_f16_avx512(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + 32 <= n; i += 32) {
        const __m256i first = agk_to_f16(_mm512_loadu_ps(src + i)), second = agk_to_f16(_mm512_loadu_ps(src + i + 16));
        _mm512_storeu_si512(y + i, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
    }
    for (; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, src + i);
        _mm256_mask_storeu_epi16(y + i, mask, agk_to_f16(x));
    }
}

void agk_f32_to_bf16_avx512(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + 32 <= n; i += 32) {
        _mm512_storeu_si512(y + i, agk_two_to_bf16(_mm512_loadu_ps(src + i), _mm512_loadu_ps(src + i + 16)));
    }
    for (; i < n; i += 16) {
        const __mmask16 mask = head(n - i);
        _mm256_mask_storeu_epi16(y + i, mask, agk_to_bf16(_mm512_maskz_loadu_ps(mask, src + i)));
    }
}

static void put_q8_0(agk_block_q8_0 *y, const float *x)
{
    float d;
    _mm256_storeu_si256((__m256i *)(void *)y->qs, quantize(x, &d));
    y->d = _cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

void agk_f32_to_q8_0_avx512(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    int64_t i = 0;
    for (; i + 4 <= n / BLOCK; i += 4) {
        __m512i q[2];
        __m128 d;
        if (!quantize_4(src + i * BLOCK, q, &d)) {
            for (int64_t k = i; k < i + 4; ++k) put_q8_0(&y[k], src + k * BLOCK);
            continue;
        }
        const __m128i scales = _mm_cvtps_ph(d, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        uint16_t each[8];
        _mm_storeu_si128((__m128i *)(void *)each, scales);
        AGK_UNROLL for (int k = 0; k < 4; ++k)
        {
            const __m256i half = k % 2 == 0 ? _mm512_castsi512_si256(q[k / 2]) : _mm512_extracti64x4_epi64(q[k / 2], 1);
            _mm256_storeu_si256((__m256i *)(void *)y[i + k].qs, half);
            y[i + k].d = each[k];
        }
    }
    for (; i < n / BLOCK; ++i) put_q8_0(&y[i], src + i * BLOCK);
}

V_QUANT_KERNELS(avx512)
