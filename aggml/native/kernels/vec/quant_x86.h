/* Rows of f32 to q4_0, q4_1, q5_0 and q5_1, on vectors of 8 floats: bit for bit as plain C (formats/quant.c,
 * quant_legacy.c), which converts a block itself where the sign of a zero or the place of an extreme matters.
 *
 * AVX2 and AVX-512 include this; a block is 32 floats, so longer vectors would gain little. Not here: q8_0 (q8.h). */
#ifndef AGK_VEC_QUANT_X86_H
#define AGK_VEC_QUANT_X86_H

#include <immintrin.h>
#include <string.h>

#include "formats/blocks.h"
#include "formats/quant.h"
#include "formats/quant_search.h"
#include "kernels/inline.h"

enum { V_QUANT_BLOCK = 32 };

typedef struct v_four {
    __m256 x[4];
} v_four;

AGK_INLINE v_four v_block(const float *x)
{
    return (v_four){{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)}};
}

AGK_INLINE float v_least_of(__m256 x)
{
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

AGK_INLINE float v_most_of(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

AGK_INLINE uint16_t v_half(float x)
{
    return x == x ? _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : agk_f16_from_float(x);
}

/* agk_codes(): min and max give their second operand if the first is NaN. */
AGK_INLINE __m256i v_codes(v_four b, float inverse, float shift, int top)
{
    const __m256 scale = _mm256_set1_ps(inverse), add = _mm256_set1_ps(shift), most = _mm256_set1_ps((float)top);
    __m256i q[4];
    for (int v = 0; v < 4; ++v) {
        const __m256 code = _mm256_add_ps(_mm256_mul_ps(b.x[v], scale), add);
        q[v] = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(code, _mm256_setzero_ps()), most));
    }
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

AGK_INLINE void v_put_nibbles(uint8_t *qs, __m256i codes)
{
    const __m256i low = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    const __m128i high = _mm_slli_epi16(_mm256_extracti128_si256(low, 1), 4);
    _mm_storeu_si128((__m128i *)(void *)qs, _mm_or_si128(_mm256_castsi256_si128(low), high));
}

AGK_INLINE void v_put_five_bits(uint8_t *qh, uint8_t *qs, __m256i codes)
{
    const int fifth = _mm256_movemask_epi8(_mm256_slli_epi16(codes, 3));
    memcpy(qh, &fifth, sizeof fifth);
    v_put_nibbles(qs, codes);
}

/* agk_extreme() */
AGK_INLINE float v_extreme(v_four b, const float *x)
{
    __m256 high = _mm256_setzero_ps(), low = high;
    for (int v = 0; v < 4; ++v) {
        high = _mm256_max_ps(b.x[v], high);
        low = _mm256_min_ps(b.x[v], low);
    }
    const float most = v_most_of(high), least = v_least_of(low);
    if (most > -least) return most;
    if (most < -least) return least;
    return agk_extreme(V_QUANT_BLOCK, x);
}

AGK_INLINE __m256i v_levels(const float *x, int middle, float *d)
{
    const v_four b = v_block(x);
    *d = v_extreme(b, x) / (float)-middle;
    return v_codes(b, *d != 0.0f ? 1.0f / *d : 0.0f, (float)middle + 0.5f, 2 * middle - 1);
}

/* Codes 0 .. top from the least element on; false: plain C has to decide which element is the least. */
AGK_INLINE bool v_even(const float *x, int top, float *d, float *least, __m256i *codes)
{
    v_four b = v_block(x);
    const __m256 low = _mm256_min_ps(_mm256_min_ps(b.x[0], b.x[1]), _mm256_min_ps(b.x[2], b.x[3]));
    const __m256 high = _mm256_max_ps(_mm256_max_ps(b.x[0], b.x[1]), _mm256_max_ps(b.x[2], b.x[3]));
    const __m256 none = _mm256_cmp_ps(_mm256_sub_ps(_mm256_add_ps(b.x[0], b.x[1]), _mm256_add_ps(b.x[2], b.x[3])),
                                      _mm256_setzero_ps(), _CMP_UNORD_Q); /* not finite */
    const float most = v_most_of(high);
    *least = v_least_of(low);
    if (_mm256_movemask_ps(none) != 0 || *least == 0.0f || most == 0.0f) return false;
    *d = (most - *least) / (float)top;
    for (int v = 0; v < 4; ++v) b.x[v] = _mm256_sub_ps(b.x[v], _mm256_set1_ps(*least));
    *codes = v_codes(b, *d != 0.0f ? 1.0f / *d : 0.0f, 0.5f, top);
    return true;
}

/* The functions of this file, named for an instruction set. */
#define V_QUANT_KERNELS(isa) \
    void agk_f32_to_q4_0_##isa(const float *src, void *dst, int64_t n) \
    { \
        agk_block_q4_0 *y = dst; \
        for (int64_t i = 0; i < n / V_QUANT_BLOCK; ++i, src += V_QUANT_BLOCK, ++y) { \
            float d; \
            v_put_nibbles(y->qs, v_levels(src, 8, &d)); \
            y->d = v_half(d); \
        } \
    } \
    void agk_f32_to_q5_0_##isa(const float *src, void *dst, int64_t n) \
    { \
        agk_block_q5_0 *y = dst; \
        for (int64_t i = 0; i < n / V_QUANT_BLOCK; ++i, src += V_QUANT_BLOCK, ++y) { \
            float d; \
            v_put_five_bits(y->qh, y->qs, v_levels(src, 16, &d)); \
            y->d = v_half(d); \
        } \
    } \
    void agk_f32_to_q4_1_##isa(const float *src, void *dst, int64_t n) \
    { \
        agk_block_q4_1 *y = dst; \
        for (int64_t i = 0; i < n / V_QUANT_BLOCK; ++i, src += V_QUANT_BLOCK, ++y) { \
            float d, least; \
            __m256i codes; \
            if (!v_even(src, 15, &d, &least, &codes)) { \
                agk_f32_to_q4_1_scalar(src, y, V_QUANT_BLOCK); \
                continue; \
            } \
            v_put_nibbles(y->qs, codes); \
            y->d = v_half(d); \
            y->m = v_half(least); \
        } \
    } \
    void agk_f32_to_q5_1_##isa(const float *src, void *dst, int64_t n) \
    { \
        agk_block_q5_1 *y = dst; \
        for (int64_t i = 0; i < n / V_QUANT_BLOCK; ++i, src += V_QUANT_BLOCK, ++y) { \
            float d, least; \
            __m256i codes; \
            if (!v_even(src, 31, &d, &least, &codes)) { \
                agk_f32_to_q5_1_scalar(src, y, V_QUANT_BLOCK); \
                continue; \
            } \
            v_put_five_bits(y->qh, y->qs, codes); \
            y->d = v_half(d); \
            y->m = v_half(least); \
        } \
    }

#endif
