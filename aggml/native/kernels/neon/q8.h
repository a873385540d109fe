/* Floats as bytes with a scale, NEON: for blocks of q8_0 (f32_to.c) and for columns of products (mul_mat_columns.c). */
#ifndef AGK_NEON_Q8_H
#define AGK_NEON_Q8_H

#include "math.h"

AGK_INLINE uint16_t half_of(float x)
{
    const __fp16 half = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

/* The largest magnitude of n floats, ignoring NaN. */
AGK_INLINE float most_of(const float *x, int n)
{
    vf most[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (int e = 0; e < n; e += 16) {
        AGK_UNROLL for (int v = 0; v < 4; ++v) most[v] = v_max(v_abs(v_load(x + e + 4 * v)), most[v]);
    }
    return v_hmax(v_max(v_max(most[0], most[1]), v_max(most[2], most[3])));
}

/* 16 floats as bytes; values that do not fit (sources that are not finite, subnormal scales) become 0. Halves are
 * rounded away from zero, or to even. */
AGK_INLINE int8x16_t round16(const float *x, vf inverse, bool even)
{
    int32x4_t q[4];
    AGK_UNROLL for (int v = 0; v < 4; ++v)
    {
        const vf y = v_load(x + 4 * v) * inverse;
        const int32x4_t whole = even ? vcvtnq_s32_f32(y) : vcvtaq_s32_f32(y);
        q[v] = vandq_s32(whole, vreinterpretq_s32_u32(v_lt(v_abs(y), v_set(127.5f))));
    }
    const int16x8_t low = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]))));
}

AGK_INLINE float inverse_of(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

#endif
