/* Rows of f32 to f16, bf16 and q8_0, NEON.
 *
 * Bit for bit like plain C (formats/), except for f16, where a NaN keeps its payload (as in ggml's conversion on the
 * CPU). Not here: columns of products (mul_mat_columns.c). */
#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "bytes.h"
#include "math.h"
#include "q8.h"

enum { BLOCK = 32 };

void agk_f32_to_f16_neon(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(v_load(src + i))));
    for (; i < n; ++i) y[i] = half_of(src[i]);
}

void agk_f32_to_bf16_neon(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    int64_t i = 0;
    for (; i + VF <= n; i += VF) {
        const vf v = v_load(src + i);
        const uint32x4_t x = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
        const uint32x4_t sum = vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        const uint32x4_t quiet = vorrq_u32(x, vdupq_n_u32(0x400000));
        vst1_u16(y + i, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), sum, quiet), 16));
    }
    if (i < n) agk_f32_to_bf16_scalar(src + i, y + i, n - i);
}

void agk_f32_to_q8_0_neon(const float *src, void *dst, int64_t n)
{
    agk_block_q8_0 *y = dst;
    for (int64_t i = 0; i < n / BLOCK; ++i, src += BLOCK) {
        const float d = most_of(src, BLOCK) / 127.0f;
        const vf inverse = v_set(inverse_of(d));
        for (int h = 0; h < BLOCK; h += 16) vst1q_s8(y[i].qs + h, round16(src + h, inverse, false));
        y[i].d = half_of(d);
    }
}
