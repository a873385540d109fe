/* Transposing copies, fill, f32 to i32 and back, copies of rows, AVX2. Bit for bit what kernels/scalar/cpy.c gives. */
#include "math.h"

#include "kernels/vec/cpy.h"

V_CPY_KERNELS(avx2)
V_CPY_NUMBERS(avx2)
V_CPY_ROW(avx2)

/* 8 x 8 halves in SSE registers; also what AVX-512 uses. */
static void square_16(char *y, int64_t y_step, const char *x, int64_t x_step)
{
    __m128i r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128((const __m128i *)(const void *)(x + i * x_step));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm_unpacklo_epi16(r[i], r[i + 1]);
        t[i + 1] = _mm_unpackhi_epi16(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        r[i + 0] = _mm_unpacklo_epi32(t[i], t[i + 2]);
        r[i + 1] = _mm_unpackhi_epi32(t[i], t[i + 2]);
        r[i + 2] = _mm_unpacklo_epi32(t[i + 1], t[i + 3]);
        r[i + 3] = _mm_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
        const __m128i low = _mm_unpacklo_epi64(r[j], r[j + 4]), high = _mm_unpackhi_epi64(r[j], r[j + 4]);
        _mm_storeu_si128((__m128i *)(void *)(y + 2 * j * y_step), low);
        _mm_storeu_si128((__m128i *)(void *)(y + (2 * j + 1) * y_step), high);
    }
}

V_CPY_TRANSPOSE_16(avx2)
