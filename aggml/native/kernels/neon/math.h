/* One vector of 4 floats (NEON) under the names that vec/ uses.
 *
 * kernels/avx2/math.h gives the same names for 8 lanes. Here: loads, stores, lanes, operations of a few
 * instructions. Not here: functions (kernels/vec/math.h). */
#ifndef AGK_NEON_MATH_H
#define AGK_NEON_MATH_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

enum { VF = 4 };
typedef float32x4_t vf;
typedef uint32x4_t vm; /* all bits of a lane, or none */

AGK_INLINE vf v_set(float x)
{
    return vdupq_n_f32(x);
}
AGK_INLINE vf v_zero(void)
{
    return vdupq_n_f32(0.0f);
}

AGK_INLINE vm v_first(int64_t n)
{
    const int32_t numbers[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(numbers), vdupq_n_s32((int32_t)n));
}

AGK_INLINE vf v_load(const float *p)
{
    return vld1q_f32(p);
}
AGK_INLINE void v_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
/* n < VF elements; the other lanes are 0, nothing beyond p[n - 1] is touched. */
AGK_INLINE vf v_load_n(const float *p, int64_t n)
{
    float part[4] = {0};
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    return v_load(part);
}
AGK_INLINE void v_store_n(float *p, vf x, int64_t n)
{
    float part[4];
    v_store(part, x);
    for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}

AGK_INLINE vf v_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
AGK_INLINE vf v_load_f16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[4] = {0};
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    return v_load_f16(part);
}

AGK_INLINE vf v_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
AGK_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[4] = {0};
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    return v_load_bf16(part);
}

/* a * b + c and c - a * b, rounded once. */
/* VF signed bytes; VF low (high: upper) halves of bytes. */
AGK_INLINE vf v_load_i8(const int8_t *p)
{
    int8_t four[8] = {0};
    memcpy(four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(four)))));
}
AGK_INLINE vf v_load_u4(const uint8_t *p, int high)
{
    uint8_t four[8] = {0};
    memcpy(four, p, 4);
    const uint8x8_t q = vld1_u8(four), one = high ? vshr_n_u8(q, 4) : vand_u8(q, vdup_n_u8(15));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(one))));
}

AGK_INLINE vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
AGK_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return vfmsq_f32(c, a, b);
}
AGK_INLINE vf v_select(vm m, vf yes, vf no)
{
    return vbslq_f32(m, yes, no);
}
/* If either is NaN the result is b: not what fmin and fmax do. */
AGK_INLINE vf v_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
AGK_INLINE vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
AGK_INLINE vf v_sqrt(vf x)
{
    return vsqrtq_f32(x);
}
AGK_INLINE vf v_round(vf x)
{
    return vrndnq_f32(x);
} /* to nearest, ties to even */

AGK_INLINE vf v_abs(vf x)
{
    return vabsq_f32(x);
}
AGK_INLINE vf v_xor(vf a, vf b)
{
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}
AGK_INLINE vf v_sign(vf x)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x80000000u)));
} /* the sign bit alone */

AGK_INLINE vm v_lt(vf a, vf b)
{
    return vcltq_f32(a, b);
} /* false if either is NaN */
AGK_INLINE vm v_le(vf a, vf b)
{
    return vcleq_f32(a, b);
}
AGK_INLINE vm v_eq(vf a, vf b)
{
    return vceqq_f32(a, b);
}
AGK_INLINE vm v_either(vm a, vm b)
{
    return vorrq_u32(a, b);
}
AGK_INLINE int v_any(vm m)
{
    return vmaxvq_u32(m) != 0;
}

/* The first n lanes of x, the rest of fill. */
AGK_INLINE vf v_fill(vf x, int64_t n, vf fill)
{
    return v_select(v_first(n), x, fill);
}

/* p * 2^n for integral |n| <= 252, in two steps so that subnormal results round once. */
AGK_INLINE vf v_ldexp(vf p, vf n)
{
    const int32x4_t i = vcvtq_s32_f32(n), half = vshrq_n_s32(i, 1), bias = vdupq_n_s32(127);
    const int32x4_t low = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t high = vshlq_n_s32(vaddq_s32(vsubq_s32(i, half), bias), 23);
    return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(low)), vreinterpretq_f32_s32(high));
}

enum { V_LDEXP_OVERFLOWS = 0 }; /* v_ldexp_from is wrong for n of 128 and p from 1 on */

/* The same for n in -126 .. 127, or 128 where p < 1, where x >= low or is NaN, 0 elsewhere; p is near 1, or NaN. */
AGK_INLINE vf v_ldexp_from(vf low, vf x, vf p, vf n)
{
    const int32x4_t moved = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(moved), vcltq_f32(x, low)));
}

AGK_INLINE float v_sum(vf x)
{
    return vaddvq_f32(x);
}

AGK_INLINE float v_hmax(vf x)
{
    return vmaxvq_f32(x);
}

/* out[i] = the sum of the lanes of x[i]. */
AGK_INLINE void v_sum4(const vf x[4], float *out)
{
    v_store(out, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
}

/* Pairs of neighbouring lanes exchanged. */
AGK_INLINE vf v_swap_pairs(vf x)
{
    return vrev64q_f32(x);
}

/* One load feeds several products: here a broadcast is a lane of an operand, and nothing has to be kept. */
AGK_INLINE void v_keep(vf *x)
{
    (void)x;
}

/* r[i] lane j <-> r[j] lane i. */
AGK_INLINE void v_transpose(vf r[VF])
{
    const float32x4_t a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const float32x4_t c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    r[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    r[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    r[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}

/* 2 doubles at a time, for the phases of rope. */
enum { VD = 2 };
typedef float64x2_t vd;
AGK_INLINE vd vd_set(double x)
{
    return vdupq_n_f64(x);
}
AGK_INLINE vd vd_load(const double *p)
{
    return vld1q_f64(p);
}
AGK_INLINE vd vd_round(vd x)
{
    return vrndnq_f64(x);
}
/* VF doubles as floats. */
AGK_INLINE vf v_narrow(vd a, vd b)
{
    return vcombine_f32(vcvt_f32_f64(a), vcvt_f32_f64(b));
}

#endif
