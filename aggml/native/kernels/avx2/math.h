/* One vector of 8 floats (AVX2, FMA, F16C) under the names that vec/ computes with.
 *
 * kernels/avx512/math.h gives the same names for 16 lanes. Here: loads, stores, lanes, functions of a few instructions.
 * Not here: functions (kernels/vec/math.h). */
#ifndef AGK_AVX2_MATH_H
#define AGK_AVX2_MATH_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

enum { VF = 8, VD = 4 };
typedef __m256 vf;
typedef __m256 vm;  /* all bits of a lane, or none */
typedef __m256d vd; /* doubles, for the phases of rope */
#define V(name) _mm256_##name
#include "kernels/vec/lanes_x86.h"

AGK_INLINE __m256i v_first(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* n < VF elements; the other lanes are 0, nothing beyond p[n - 1] is touched. */
AGK_INLINE vf v_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, v_first(n));
}
AGK_INLINE void v_store_n(float *p, vf x, int64_t n)
{
    _mm256_maskstore_ps(p, v_first(n), x);
}

AGK_INLINE vf v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
AGK_INLINE vf v_load_f16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[8] = {0}; /* AVX2 masks 32-bit lanes only */
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    return v_load_f16(part);
}

AGK_INLINE vf v_load_bf16(const uint16_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
AGK_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[8] = {0};
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    return v_load_bf16(part);
}

/* VF signed bytes; VF low (high: upper) halves of bytes. */
AGK_INLINE vf v_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
AGK_INLINE vf v_load_u4(const uint8_t *p, int high)
{
    const __m128i q = _mm_loadl_epi64((const __m128i *)(const void *)p);
    const __m128i one = _mm_and_si128(high ? _mm_srli_epi16(q, 4) : q, _mm_set1_epi8(15));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(one));
}

/* The bits of i32 in the lanes of a vf. */
AGK_INLINE vf v_to_i32(vf x)
{
    return _mm256_castsi256_ps(_mm256_cvttps_epi32(x));
}
AGK_INLINE vf v_from_i32(vf bits)
{
    return _mm256_cvtepi32_ps(_mm256_castps_si256(bits));
}

AGK_INLINE vf v_round(vf x)
{
    return _mm256_round_ps(x, 8);
} /* to nearest, ties to even */

AGK_INLINE vm v_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
} /* false if either is NaN */
AGK_INLINE vm v_le(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
AGK_INLINE vm v_eq(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
AGK_INLINE vm v_either(vm a, vm b)
{
    return _mm256_or_ps(a, b);
}
AGK_INLINE int v_any(vm m)
{
    return _mm256_movemask_ps(m) != 0;
}
AGK_INLINE vf v_select(vm m, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, m);
}

/* The first n lanes of x, the rest of fill. */
AGK_INLINE vf v_fill(vf x, int64_t n, vf fill)
{
    return _mm256_blendv_ps(fill, x, _mm256_castsi256_ps(v_first(n)));
}

/* p * 2^n for integral |n| <= 252, in two steps so that subnormal results round once. */
AGK_INLINE vf v_ldexp(vf p, vf n)
{
    const __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return p * _mm256_castsi256_ps(low) * _mm256_castsi256_ps(high);
}

enum { V_LDEXP_OVERFLOWS = 0 }; /* v_ldexp_from is wrong for n of 128 and p from 1 on */

/* The same for n in -126 .. 127, or 128 where p < 1, where x >= low or is NaN, 0 elsewhere; p is near 1, or NaN. */
AGK_INLINE vf v_ldexp_from(vf low, vf x, vf p, vf n)
{
    const __m256i moved = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), _mm256_castsi256_ps(moved));
}

AGK_INLINE float v_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

AGK_INLINE float v_hmax(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* out[i] = the sum of the lanes of x[i]. */
AGK_INLINE void v_sum4(const vf x[4], float *out)
{
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    _mm_storeu_ps(out, _mm256_castps256_ps128(s) + _mm256_extractf128_ps(s, 1));
}

/* Keeps the compiler from folding a broadcast into each use of it: one load feeds several products. */
AGK_INLINE void v_keep(vf *x)
{
    __asm__("" : "+x"(*x));
}

/* *sum += a * b, in the register of the sum, with a and b in registers, in the order of the program. Left to itself GCC
 * 12 reads an operand out of memory again for each use, and moves sums from one register to another: 46 loads and 76
 * instructions where 28 and 80 are enough (mul_mat_floats.c, 48 products). */
AGK_INLINE void v_add_product(vf *sum, vf a, vf b)
{
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}

/* r[i] lane j <-> r[j] lane i. */
AGK_INLINE void v_transpose(vf r[VF])
{
    vf t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        r[i + 0] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) {
        const vf low = r[i], high = r[i + 4];
        r[i] = _mm256_permute2f128_ps(low, high, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

AGK_INLINE vd vd_round(vd x)
{
    return _mm256_round_pd(x, 8);
}
/* VF doubles as floats. */
AGK_INLINE vf v_narrow(vd a, vd b)
{
    return _mm256_set_m128(_mm256_cvtpd_ps(b), _mm256_cvtpd_ps(a));
}

#endif
