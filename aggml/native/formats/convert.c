/* f32 to i32, defined for all numbers: to the nearest i32, and as ops convert. */
#include <limits.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "quant.h"

void agk_f32_to_i32(const float *src, void *dst, int64_t n)
{
    int32_t *y = dst;
    for (int64_t i = 0; i < n; ++i) {
        const float x = src[i];
        const bool fits = x > -2147483648.0f && x < 2147483648.0f;
        const int32_t whole = (int32_t)(fits ? x : 0.0f), end = x > 0.0f ? INT_MAX : INT_MIN;
        y[i] = fits ? whole : x == x ? end : 0;
    }
}

/* Gives the same results as the instruction of x86; for cpy and set_rows. */
void agk_i32_from_float(const float *src, void *dst, int64_t n)
{
    int32_t *y = dst;
    int64_t i = 0;
#ifdef __SSE2__
    for (; i + 4 <= n; i += 4) {
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm_cvttps_epi32(_mm_loadu_ps(src + i)));
    }
#endif
    for (; i < n; ++i) {
        const float x = src[i];
        y[i] = x >= -2147483648.0f && x < 2147483648.0f ? (int32_t)x : INT_MIN;
    }
}
