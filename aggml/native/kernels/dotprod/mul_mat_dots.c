/* mul_mat of few columns, sdot: lanes run along k; q8_0, q4_0, q4_K and q5_K weights as they lie, 2 rows x up to 4
 * columns.
 *
 * sdot multiplies 16 signed bytes, so no offset is needed. Not here: packed weights (mul_mat_packed.h), floats
 * (kernels/neon/mul_mat_dots.c). */
#include <arm_neon.h>

#include "kernels/type_facts.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"

enum { Q8_0 = AGK_Q8_0, Q4_0 = AGK_Q4_0, Q4_K = AGK_Q4_K, Q5_K = AGK_Q5_K };

AGK_INLINE float scale_of(const char *a)
{
    __fp16 d;
    memcpy(&d, a, sizeof d);
    return (float)d;
}

/* 32 signed weights, in the order of k. */
AGK_INLINE void load_q(int type, const char *a, int8x16_t q[2])
{
    if (type == Q8_0) {
        q[0] = vld1q_s8((const int8_t *)a + 2);
        q[1] = vld1q_s8((const int8_t *)a + 18);
        return;
    }
    const uint8x16_t pairs = vld1q_u8((const uint8_t *)a + 2);
    q[0] = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(15))), vdupq_n_s8(8));
    q[1] = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(pairs, 4)), vdupq_n_s8(8));
}

AGK_INLINE void quantized(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    float32x4_t acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < block->k / AGK_MM_BLOCK; ++i) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *weights = a + (size_t)r * block->lda + (size_t)i * agk_facts(type).bytes;
            const float d = scale_of(weights);
            int8x16_t q[2];
            load_q(type, weights, q);
            __builtin_prefetch(weights + 1024);
            AGK_UNROLL for (int n = 0; n < N; ++n)
            {
                const agk_mm_col_q8 *col = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * block->ldb) + i / 2;
                const int8_t *x = col->q + (i & 1) * AGK_MM_BLOCK;
                int32x4_t s = vdotq_s32(vdupq_n_s32(0), q[0], vld1q_s8(x));
                s = vdotq_s32(s, q[1], vld1q_s8(x + 16));
                acc[r][n] = vfmaq_n_f32(acc[r][n], vcvtq_f32_s32(s), d * col->d[i & 1]);
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = vaddvq_f32(acc[r][n]);
    }
}

/* -- quantized, blocks of 256 with scales and minimums of 6 bits ------------------------------------------------- */

typedef struct groups {
    float d[8], m[8]; /* one for each 32 elements: q * d - m */
} groups;

AGK_INLINE groups groups_of(const agk_block_q4_k *block)
{
    const uint8_t *s = block->scales;
    const float d = scale_of((const char *)&block->d), m = scale_of((const char *)&block->m);
    groups found;
    for (int j = 0; j < 4; ++j) {
        found.d[j] = d * (float)(s[j] & 63);
        found.m[j] = m * (float)(s[j + 4] & 63);
        found.d[j + 4] = d * (float)((s[j + 8] & 15) | (s[j] >> 6 << 4));
        found.m[j + 4] = m * (float)((s[j + 8] >> 4) | (s[j + 4] >> 6 << 4));
    }
    return found;
}

/* Group j of a block, unsigned codes. */
AGK_INLINE void load_group(int type, const char *a, int j, int8x16_t q[2])
{
    const uint8_t *high = ((const agk_block_q5_k *)(const void *)a)->qh;
    const uint8_t *low =
        type == Q4_K ? ((const agk_block_q4_k *)(const void *)a)->qs : ((const agk_block_q5_k *)(const void *)a)->qs;
    for (int h = 0; h < 2; ++h) {
        const uint8x16_t pairs = vld1q_u8(low + 32 * (j / 2) + 16 * h);
        uint8x16_t x = j % 2 == 0 ? vandq_u8(pairs, vdupq_n_u8(15)) : vshrq_n_u8(pairs, 4);
        if (type == Q5_K) {
            const uint8x16_t bit = vtstq_u8(vld1q_u8(high + 16 * h), vdupq_n_u8((uint8_t)(1 << j)));
            x = vorrq_u8(x, vandq_u8(bit, vdupq_n_u8(16)));
        }
        q[h] = vreinterpretq_s8_u8(x);
    }
}

AGK_INLINE void grouped(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    const size_t size = agk_facts(type).bytes;
    const int8x16_t ones = vdupq_n_s8(1);
    float32x4_t acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < block->k / 256; ++i) {
        groups g[2];
        const char *weights[2];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            weights[r] = a + (size_t)r * block->lda + (size_t)i * size;
            /* the beginning of a q5_K block has the same layout */
            g[r] = groups_of((const agk_block_q4_k *)(const void *)weights[r]);
            __builtin_prefetch(weights[r] + 1024);
        }
        for (int j = 0; j < 8; ++j) {
            int8x16_t q[2][2];
            AGK_UNROLL for (int r = 0; r < R; ++r) load_group(type, weights[r], j, q[r]);
            AGK_UNROLL for (int n = 0; n < N; ++n)
            {
                const agk_mm_col_q8 *col =
                    (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * block->ldb) + 4 * i + j / 2;
                const int8_t *at = col->q + j % 2 * AGK_MM_BLOCK;
                const int8x16_t x0 = vld1q_s8(at), x1 = vld1q_s8(at + 16);
                const float d = col->d[j % 2];
                const int32x4_t sum = vdotq_s32(vdotq_s32(vdupq_n_s32(0), ones, x0), ones, x1);
                AGK_UNROLL for (int r = 0; r < R; ++r)
                {
                    const int32x4_t s = vdotq_s32(vdotq_s32(vdupq_n_s32(0), q[r][0], x0), q[r][1], x1);
                    acc[r][n] = vfmaq_n_f32(acc[r][n], vcvtq_f32_s32(s), g[r].d[j] * d);
                    acc[r][n] = vfmsq_n_f32(acc[r][n], vcvtq_f32_s32(sum), g[r].m[j] * d);
                }
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = vaddvq_f32(acc[r][n]);
    }
}

/* -- rows and columns ----------------------------------------------------------------------------------------- */

AGK_INLINE void panel(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    if (type >= Q4_K)
        grouped(type, R, N, block, a, b, c);
    else
        quantized(type, R, N, block, a, b, c);
}

/* The loops over rows and columns, which call panel() above. */
#include "kernels/mul_mat_dots_loop.h"

#define DOT(name, type) \
    void agk_mm_dots_##name##_dotprod(const agk_mm_block *block) \
    { \
        agk_dot_blocks(type, block); \
    }
DOT(q8_0, Q8_0)
DOT(q4_0, Q4_0)
DOT(q4_k, Q4_K)
DOT(q5_k, Q5_K)
