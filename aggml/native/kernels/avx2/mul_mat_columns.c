/* Columns of b as bytes with scales (agk_mm_col_q8), AVX2: for dots, shorts and packed weights. */
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "math.h"
#include "q8.h"

enum { BLOCK = AGK_MM_BLOCK, NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

/* Half of a part of a column. */
static inline void put(agk_mm_col_q8 *y, int half, __m256i q, float d)
{
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    y->d[half] = agk_mm_col_scale(d, _cvtsh_ss(_cvtss_sh(d, NEAREST)));
    _mm256_storeu_si256((__m256i *)(void *)(y->q + half * BLOCK), q);
    _mm256_storeu_si256((__m256i *)(void *)(y->start + half * 8), _mm256_madd_epi16(pairs, _mm256_set1_epi16(-128)));
}

/* Four blocks at a time, and the scales of the next four before the bytes of these, which would wait for them
 * (f32_to.c). */
void agk_mm_columns_q8_avx2(const void *src, void *dst, int64_t n)
{
    enum { FOUR = 4 * BLOCK };
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    const int64_t whole = n - n % FOUR;
    float inverse[2][4];
    __m128 d = _mm_setzero_ps(), next = d;
    bool valid = whole > 0 && scale_4(x, &d, inverse[0]), next_valid = false;
    for (int64_t i = 0; i < whole; i += FOUR, y += 2) {
        const int now = (int)(i / FOUR & 1);
        if (i + FOUR < whole) next_valid = scale_4(x + i + FOUR, &next, inverse[1 - now]);
        float each[4];
        _mm_storeu_ps(each, d);
        AGK_UNROLL for (int k = 0; k < 4; ++k)
        {
            const float *from = x + i + k * BLOCK;
            const __m256i q = valid ? codes(from, &inverse[now][k]) : quantize(from, &each[k]);
            put(y + k / 2, k % 2, q, each[k]);
        }
        d = next;
        valid = next_valid;
    }
    for (int64_t i = whole; i < n; i += 2 * BLOCK, ++y) {
        for (int half = 0; half < 2; ++half) {
            float scale = 0.0f;
            __m256i q = _mm256_setzero_si256();
            if (i + half * BLOCK < n) q = quantize(x + i + half * BLOCK, &scale);
            put(y, half, q, scale);
        }
    }
}

/* 256 elements with one scale: elements that are not finite become 0. */
void agk_mm_columns_q8_wide_avx2(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t i = 0; i < n; i += 256, x += 256) {
        vf most[2] = {v_zero(), v_zero()};
        for (int e = 0; e < 256; e += 16) {
            most[0] = v_max(v_abs(v_load(x + e)), most[0]); /* the second if one is NaN */
            most[1] = v_max(v_abs(v_load(x + e + 8)), most[1]);
        }
        const float d = v_hmax(v_max(most[0], most[1])) / 127.0f;
        const vf inverse = v_set(d != 0.0f ? 1.0f / d : 0.0f);
        for (int e = 0; e < 256; e += 64, ++y) {
            AGK_UNROLL for (int h = 0; h < 2; ++h)
            {
                __m256i q[4];
                AGK_UNROLL for (int j = 0; j < 4; ++j)
                {
                    const vf scaled = v_load(x + e + 32 * h + 8 * j) * inverse;
                    q[j] = _mm256_cvtps_epi32(_mm256_and_ps(scaled, v_lt(v_abs(scaled), v_set(127.5f))));
                }
                const __m256i packed =
                    _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
                const __m256i bytes = _mm256_permutevar8x32_epi32(packed, order);
                const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
                _mm256_storeu_si256((__m256i *)(void *)(y->q + 32 * h), bytes);
                _mm256_storeu_si256((__m256i *)(void *)(y->start + 8 * h),
                                    _mm256_madd_epi16(pairs, _mm256_set1_epi16(-128)));
            }
            y->d[0] = y->d[1] = d;
        }
    }
}
