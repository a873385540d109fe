/* One vector of 16 floats (AVX-512 F/BW/DQ/VL) under the names that vec/ uses.
 *
 * kernels/avx2/math.h gives the same names for 8 lanes. Here: loads, stores, lanes, operations of one or two
 * instructions. Not here: functions (kernels/vec/math.h). */
#ifndef AGK_AVX512_MATH_H
#define AGK_AVX512_MATH_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/inline.h"

enum { VF = 16, VD = 8 };
typedef __m512 vf;
typedef __mmask16 vm;
typedef __m512d vd; /* doubles, for the phases of rope */
#define V(name) _mm512_##name
#include "kernels/vec/lanes_x86.h"

AGK_INLINE __mmask16 v_first(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

/* n < VF elements; the other lanes are 0, nothing beyond p[n - 1] is touched. */
AGK_INLINE vf v_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
AGK_INLINE void v_store_n(float *p, vf x, int64_t n)
{
    _mm512_mask_storeu_ps(p, v_first(n), x);
}

AGK_INLINE vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
AGK_INLINE vf v_load_f16_n(const uint16_t *p, int64_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_first(n), p));
}

AGK_INLINE vf v_load_bf16(const uint16_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
AGK_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_first(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* VF signed bytes; VF low (high: upper) halves of bytes. */
AGK_INLINE vf v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
AGK_INLINE vf v_load_u4(const uint8_t *p, int high)
{
    const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i one = _mm_and_si128(high ? _mm_srli_epi16(q, 4) : q, _mm_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(one));
}

/* The bits of i32 in the lanes of a vf. */
AGK_INLINE vf v_to_i32(vf x)
{
    return _mm512_castsi512_ps(_mm512_cvttps_epi32(x));
}
AGK_INLINE vf v_from_i32(vf bits)
{
    return _mm512_cvtepi32_ps(_mm512_castps_si512(bits));
}

AGK_INLINE vf v_round(vf x)
{
    return _mm512_roundscale_ps(x, 8);
} /* to nearest, ties to even */

AGK_INLINE vm v_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
} /* false if either is NaN */
AGK_INLINE vm v_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
AGK_INLINE vm v_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
AGK_INLINE vm v_either(vm a, vm b)
{
    return (vm)(a | b);
}
AGK_INLINE int v_any(vm m)
{
    return m != 0;
}
AGK_INLINE vf v_select(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

/* The first n lanes of x, the rest of fill. */
AGK_INLINE vf v_fill(vf x, int64_t n, vf fill)
{
    return _mm512_mask_blend_ps(v_first(n), fill, x);
}

enum { V_LDEXP_OVERFLOWS = 1 }; /* v_ldexp_from gives inf for n of 128 and p from 1 on */

/* p * 2^n for integral n, also where the result is subnormal or overflows. */
AGK_INLINE vf v_ldexp(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}

/* The same for n in -126 .. 127, or 128 where p < 1, where x >= low or is NaN; 0 elsewhere, without the price of an
 * underflow. */
AGK_INLINE vf v_ldexp_from(vf low, vf x, vf p, vf n)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), p, n);
}

AGK_INLINE float v_sum(vf x)
{
    return _mm512_reduce_add_ps(x);
}
AGK_INLINE float v_hmax(vf x)
{
    return _mm512_reduce_max_ps(x);
}

/* out[i] = the sum of the lanes of x[i]. */
AGK_INLINE void v_sum4(const vf x[4], float *out)
{
    __m256 h[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) h[i] = _mm512_castps512_ps256(x[i]) + _mm512_extractf32x8_ps(x[i], 1);
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
    _mm_storeu_ps(out, _mm256_castps256_ps128(s) + _mm256_extractf128_ps(s, 1));
}

/* Keeps the compiler from folding a broadcast into each use of it: one load feeds several products. */
AGK_INLINE void v_keep(vf *x)
{
    __asm__("" : "+v"(*x));
}

/* r[i] lane j <-> r[j] lane i. */
AGK_INLINE void v_transpose(vf r[VF])
{
    vf t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        r[i + 0] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
        t[i + 0] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
        r[i + 0] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

AGK_INLINE vd vd_round(vd x)
{
    return _mm512_roundscale_pd(x, 8);
}
/* VF doubles as floats. */
AGK_INLINE vf v_narrow(vd a, vd b)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a)), _mm512_cvtpd_ps(b), 1);
}

#endif
