/* Rows of f32 to f16, bf16, q8_0 and, from vec/quant_x86.h, q4_0, q4_1, q5_0 and q5_1, AVX2.
 *
 * The results are bit for bit those of plain C (formats/), except that a NaN in f16 keeps its payload (as in ggml's
 * conversion on the CPU).
 * Not here: columns of products (mul_mat_columns.c). */
#include <immintrin.h>
#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "kernels/vec/quant_x86.h"
#include "halves.h"
#include "q8.h"

enum { BLOCK = 32, NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

/* Four vectors at a time, so that it does not matter where the linker places the loop (to_f32.c). */
void agk_f32_to_f16_avx2(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        AGK_UNROLL for (int v = 0; v < 32; v += 8)
        {
            const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(src + i + v), NEAREST);
            _mm_storeu_si128((__m128i *)(void *)(y + i + v), halves);
        }
    }
    for (; i + 8 <= n; i += 8) {
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), NEAREST));
    }
    for (; i < n; ++i) y[i] = _cvtss_sh(src[i], NEAREST);
}

/* Rounded to nearest, ties to even; wrong for NaN. In the lower halves of the lanes. */
AGK_INLINE __m256i rounded(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

void agk_f32_to_bf16_avx2(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        vf x[4];
        AGK_UNROLL for (int v = 0; v < 4; ++v) x[v] = v_load(src + i + v * VF);
        const __m256 nan =
            _mm256_or_ps(_mm256_cmp_ps(x[0], x[1], _CMP_UNORD_Q), _mm256_cmp_ps(x[2], x[3], _CMP_UNORD_Q));
        if (_mm256_movemask_ps(nan) != 0) {
            v_store_halves_2(true, y + i, x[0], x[1]);
            v_store_halves_2(true, y + i + 2 * VF, x[2], x[3]);
            continue;
        }
        AGK_UNROLL for (int v = 0; v < 4; v += 2)
        {
            const __m256i both = _mm256_packus_epi32(rounded(x[v]), rounded(x[v + 1]));
            _mm256_storeu_si256((__m256i *)(void *)(y + i + v * VF), _mm256_permute4x64_epi64(both, 0xd8));
        }
    }
    for (; i + VF <= n; i += VF) _mm_storeu_si128((__m128i *)(void *)(y + i), agk_to_bf16(v_load(src + i)));
    if (i < n) agk_f32_to_bf16_scalar(src + i, y + i, n - i);
}

static void put_q8_0(agk_block_q8_0 *y, const float *x)
{
    float d;
    _mm256_storeu_si256((__m256i *)(void *)y->qs, quantize(x, &d));
    y->d = _cvtss_sh(d, NEAREST);
}

/* The scales of the next four blocks are computed before the bytes of these, which would wait for them some 60 cycles:
 * 12.3 cycles for a block on a Zen 4 instead of 19.5; one block after the other takes 29. */
void agk_f32_to_q8_0_avx2(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    const int64_t whole = n / BLOCK & ~(int64_t)3;
    float inverse[2][4];
    __m128 d = _mm_setzero_ps(), next = d;
    bool valid = whole > 0 && scale_4(src, &d, inverse[0]), next_valid = false;
    for (int64_t i = 0; i < whole; i += 4) {
        const int now = (int)(i / 4 & 1);
        if (i + 4 < whole) next_valid = scale_4(src + (i + 4) * BLOCK, &next, inverse[1 - now]);
        if (valid) {
            uint16_t each[8];
            _mm_storeu_si128((__m128i *)(void *)each, _mm_cvtps_ph(d, NEAREST));
            AGK_UNROLL for (int k = 0; k < 4; ++k)
            {
                const __m256i q = codes(src + (i + k) * BLOCK, &inverse[now][k]);
                _mm256_storeu_si256((__m256i *)(void *)y[i + k].qs, q);
                y[i + k].d = each[k];
            }
        } else {
            for (int64_t k = i; k < i + 4; ++k) put_q8_0(&y[k], src + k * BLOCK);
        }
        d = next;
        valid = next_valid;
    }
    for (int64_t i = whole; i < n / BLOCK; ++i) put_q8_0(&y[i], src + i * BLOCK);
}

V_QUANT_KERNELS(avx2)
