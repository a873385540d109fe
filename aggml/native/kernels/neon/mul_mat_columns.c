/* Columns of b as bytes with scales (agk_mm_col_q8), NEON: for dots, bytes and packed weights. */
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "bytes.h"
#include "q8.h"

enum { BLOCK = AGK_MM_BLOCK };

/* -128 times the sums of fours. */
AGK_INLINE int32x4_t start_of(int8x16_t q)
{
    return vnegq_s32(vshlq_n_s32(vpaddlq_s16(vpaddlq_s8(q)), 7));
}

void agk_mm_columns_q8_neon(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 2 * BLOCK, ++y) {
        for (int half = 0; half < 2; ++half) {
            const bool there = i + half * BLOCK < n;
            const float d = there ? most_of(x + i + half * BLOCK, BLOCK) / 127.0f : 0.0f;
            const vf inverse = v_set(inverse_of(d));
            y->d[half] = agk_mm_col_scale(d, _cvtsh_ss(half_of(d)));
            for (int e = half * BLOCK; e < (half + 1) * BLOCK; e += 16) {
                const int8x16_t q = there ? round16(x + i + e, inverse, false) : vdupq_n_s8(0);
                vst1q_s8(y->q + e, q);
                vst1q_s32(y->start + e / 4, start_of(q));
            }
        }
    }
}
void agk_mm_columns_q8_wide_neon(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 256, x += 256) {
        const float d = most_of(x, 256) / 127.0f;
        const vf inverse = v_set(inverse_of(d));
        for (int e = 0; e < 256; e += 64, ++y) {
            y->d[0] = y->d[1] = d;
            for (int j = 0; j < 64; j += 16) {
                const int8x16_t q = round16(x + e + j, inverse, true);
                vst1q_s8(y->q + j, q);
                vst1q_s32(y->start + j / 4, start_of(q));
            }
        }
    }
}
