/* Row conversions, AVX2 and F16C: f16, bf16, q8_0, q4_0 to f32 and back. Not here: columns of products (mul_mat_columns.c).
 *
 * As formats/types.c and formats/quant.c bit for bit, but for f32 -> f16, where a NaN keeps its payload (as ggml's
 * CPU conversion). */
#include <immintrin.h>

#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "q8.h"

enum { BLOCK = 32, NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

static inline __m128i load_half(const void *x)
{
    return _mm_loadu_si128((const __m128i *)x);
}

void agk_f16_to_f32_avx2(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load_half(x + i)));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(x[i]);
}

void agk_f32_to_f16_avx2(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), NEAREST));
    }
    for (; i < n; ++i) y[i] = _cvtss_sh(src[i], NEAREST);
}

void agk_bf16_to_f32_avx2(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i wide = _mm256_cvtepu16_epi32(load_half(x + i));
        _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    if (i < n) agk_bf16_to_f32_scalar(x + i, dst + i, n - i);
}

void agk_f32_to_bf16_avx2(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        const __m256i top = _mm256_srli_epi32(x, 16);
        const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256 nan = _mm256_cmp_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(x), _CMP_UNORD_Q);
        const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
        const __m256i r = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, _mm256_castps_si256(nan));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_castsi256_si128(packed));
    }
    if (i < n) agk_f32_to_bf16_scalar(src + i, y + i, n - i);
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

void agk_f32_to_q8_0_avx2(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    for (int64_t i = 0; i < n / BLOCK; ++i) {
        float d;
        _mm256_storeu_si256((__m256i *)(void *)y[i].qs, quantize(src + i * BLOCK, &d));
        y[i].d = _cvtss_sh(d, NEAREST);
    }
}
