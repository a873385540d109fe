/* Sines, cosines and rotations of rope on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_ROPE_H
#define AGK_VEC_ROPE_H

#include <math.h>

#include "table/kernel_types.h"

/* Phases are reduced in double: to turns, then to an eighth of a turn around a quarter. So position 10^6 costs no
 * accuracy. The polynomials are minimax on |angle| <= pi/4, 4e-9 relative. */
AGK_INLINE void v_sincos_turns(const double *turns, vf *sine, vf *cosine)
{
    vd rest[2], quarter[2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
        const vd t = vd_load(turns + k * VD), part = t - vd_round(t);
        quarter[k] = vd_round(part * vd_set(4.0));
        rest[k] = (part - quarter[k] * vd_set(0.25)) * vd_set(6.28318530717958647693);
    }
    const vf a = v_narrow(rest[0], rest[1]), q = v_narrow(quarter[0], quarter[1]), u = a * a; /* q: -2 .. 2 */
    vf s = v_fma(v_set(-0.00019511f), u, v_set(0.00833213f));
    s = v_fma(s, u, v_set(-0.16666654f));
    s = v_fma(s * u, a, a);
    vf c = v_fma(v_set(2.44312411e-5f), u, v_set(-1.38873064e-3f));
    c = v_fma(c, u, v_set(4.16666457e-2f));
    c = v_fma(c * u, u, v_fma(u, v_set(-0.5f), v_set(1.0f)));
    const vm odd = v_eq(v_abs(q), v_set(1.0f)), half = v_eq(v_abs(q), v_set(2.0f));
    const vf sin_q = v_select(odd, c, s), cos_q = v_select(odd, s, c), minus = v_set(-0.0f);
    const vf flip = v_select(half, minus, v_zero());
    /* q = 1: (c, -s); q = -1: (-c, s); q = 2 or -2: (-s, -c) */
    *sine = v_xor(sin_q, v_select(odd, v_sign(q), flip));
    *cosine = v_xor(cos_q, v_select(odd, v_xor(v_sign(q), minus), flip));
}

static inline void v_rope_table(int64_t n, double position, const double *freq, float magnitude, float *cosine,
                                float *sine)
{
    const double scale = position * 0.15915494309189533577; /* turns */
    for (int64_t i = 0; i < n; i += VF) {
        double turns[VF] = {0.0};
        const int64_t rest = n - i < VF ? n - i : VF;
        for (int64_t k = 0; k < rest; ++k) turns[k] = freq[i + k] * scale;
        vf s, c;
        v_sincos_turns(turns, &s, &c);
        if (rest == VF) {
            v_store(cosine + i, c * v_set(magnitude));
            v_store(sine + i, s * v_set(magnitude));
        } else {
            v_store_n(cosine + i, c * v_set(magnitude), rest);
            v_store_n(sine + i, s * v_set(magnitude), rest);
        }
    }
}

AGK_INLINE vf v_load_up_to(const float *p, int64_t n)
{
    return n < VF ? v_load_n(p, n) : v_load(p);
}
AGK_INLINE void v_store_up_to(float *p, vf x, int64_t n)
{
    if (n < VF)
        v_store_n(p, x, n);
    else
        v_store(p, x);
}

static inline void v_rope_rotate(bool neox, int64_t half, float *y, const float *x, const float *cosine,
                                 const float *sine)
{
    if (neox) {
        for (int64_t i = 0; i < half; i += VF) {
            const int64_t n = half - i;
            const vf a = v_load_up_to(x + i, n), b = v_load_up_to(x + half + i, n);
            const vf c = v_load_up_to(cosine + i, n), s = v_load_up_to(sine + i, n);
            v_store_up_to(y + i, v_fnma(b, s, a * c), n);
            v_store_up_to(y + half + i, v_fma(a, s, b * c), n);
        }
        return;
    }
    for (int64_t i = 0; i < 2 * half; i += VF) { /* a pair never straddles two vectors */
        const int64_t n = 2 * half - i;
        const vf v = v_load_up_to(x + i, n), c = v_load_up_to(cosine + i, n), s = v_load_up_to(sine + i, n);
        v_store_up_to(y + i, v_fma(v_swap_pairs(v), s, v * c), n);
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_ROPE_KERNELS(isa) \
    void agk_rope_table_##isa(int64_t n, double position, const double *freq, float magnitude, float *cosine, \
                              float *sine) \
    { \
        v_rope_table(n, position, freq, magnitude, cosine, sine); \
    } \
    void agk_rope_rotate_##isa(bool neox, int64_t half, float *y, const float *x, const float *cosine, \
                               const float *sine) \
    { \
        v_rope_rotate(neox, half, y, x, cosine, sine); \
    }

#endif
