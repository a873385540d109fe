/* mul_mat of few columns, NEON: lanes run along k; f32, f16 and bf16 weights as they lie, 2 rows x up to 4 columns.
 *
 * Not here: quantized weights (kernels/dotprod/mul_mat_dots.c), many columns (mul_mat.c). */
#include <arm_neon.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"

enum { F32, F16, BF16 };

AGK_INLINE float32x4_t load(int type, const char *a)
{
    if (type == F32) {
        float32x4_t x;
        memcpy(&x, a, sizeof x);
        return x;
    }
    uint16x4_t half;
    memcpy(&half, a, sizeof half);
    if (type == F16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

/* The last n elements, fewer than 4, filled up with zeros. */
AGK_INLINE float32x4_t load_tail(int type, const char *a, int64_t n)
{
    char padded[16] = {0};
    memcpy(padded, a, (size_t)n * (type == F32 ? 4 : 2));
    return load(type, padded);
}

AGK_INLINE void panel(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    const size_t width = type == F32 ? 4 : 2;
    float32x4_t acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < block->k; k += 4) {
        const int64_t left = block->k - k;
        float32x4_t x[2];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *row = a + (size_t)r * block->lda + (size_t)k * width;
            x[r] = left >= 4 ? load(type, row) : load_tail(type, row, left);
        }
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const char *column = b + (size_t)n * block->ldb + (size_t)k * 4;
            const float32x4_t y = left >= 4 ? load(F32, column) : load_tail(F32, column, left);
            AGK_UNROLL for (int r = 0; r < R; ++r) acc[r][n] = vfmaq_f32(acc[r][n], x[r], y);
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float *out = (float *)(void *)(c + (size_t)n * block->ldc) + r;
        *out = block->add ? *out + vaddvq_f32(acc[r][n]) : vaddvq_f32(acc[r][n]);
    }
}

/* The loops over rows and columns, which call panel() above. */
#include "kernels/mul_mat_dots_loop.h"

#define DOT(name, type) \
    void agk_mm_dots_##name##_neon(const agk_mm_block *block) \
    { \
        agk_dot_blocks(type, block); \
    }
DOT(f32, F32)
DOT(f16, F16)
DOT(bf16, BF16)
