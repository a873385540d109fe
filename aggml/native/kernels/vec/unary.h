/* The unary functions on vectors. Included after an ISA's math.h. */
#ifndef AGK_VEC_UNARY_H
#define AGK_VEC_UNARY_H

#include "table/kernel_types.h"
#include "math.h"
#include "rope.h"

/* From the nearest integer, which is too large by one if it is above x. */
AGK_INLINE vf v_floor(vf x)
{
    const vf nearest = v_round(x);
    return v_select(v_lt(x, nearest), nearest - v_set(1.0f), nearest);
}

AGK_INLINE vf v_ceil(vf x)
{
    const vf minus = v_set(-0.0f); /* so that numbers between -1 and 0 become -0 */
    return v_xor(v_floor(v_xor(x, minus)), minus);
}

AGK_INLINE vf v_trunc(vf x)
{
    return v_xor(v_floor(v_abs(x)), v_sign(x));
}

/* Rounds halves away from zero. */
AGK_INLINE vf v_round_away(vf x)
{
    const vf size = v_abs(x), whole = v_floor(size);
    return v_xor(v_select(v_le(v_set(0.5f), size - whole), whole + v_set(1.0f), whole), v_sign(x));
}

/* (x + 3) / 6 within 0 and 1; NaN gives 0. */
AGK_INLINE vf v_hardsigmoid(vf x)
{
    return v_min(v_max((x + v_set(3.0f)) / v_set(6.0f), v_zero()), v_set(1.0f));
}

/* log, 1 ulp: x = 2^e m, m from sqrt(1/2) to sqrt(2), log(m) by the series of atanh. Below 0 it is NaN, of 0 -inf. */
AGK_INLINE vf v_log(vf x)
{
    typedef int32_t vi __attribute__((vector_size(sizeof(vf))));
    typedef uint32_t vu __attribute__((vector_size(sizeof(vf))));
    const vf tiny = v_set(0x1p-126f), inf = v_set(__builtin_inff());
    const vm small = v_lt(x, tiny);
    const vu bits = (vu)v_select(small, x * v_set(0x1p23f), x); /* below 0 the differences wrap */
    const vi exponent = (vi)(bits - 0x3f3504f3u) >> 23;
    const vf m = (vf)(bits - ((vu)exponent << 23));
    const vf e = __builtin_convertvector(exponent, vf) - v_select(small, v_set(23.0f), v_zero());
    const vf f = m - v_set(1.0f), s = f / (f + v_set(2.0f)), w = s * s, half = v_set(0.5f) * f * f;
    vf p = v_fma(v_set(2.0f / 11.0f), w, v_set(2.0f / 9.0f));
    p = v_fma(p, w, v_set(2.0f / 7.0f));
    p = v_fma(p, w, v_set(2.0f / 5.0f));
    p = v_fma(p, w, v_set(2.0f / 3.0f)) * w;
    const vf low = v_fma(e, v_set(1.42860677e-6f), s * (half + p)); /* 15 bits of ln2 in the other part: exact */
    vf y = v_fma(e, v_set(0.693145752f), f - (half - low));
    y = v_select(v_lt(x, inf), y, x); /* infinity and NaN as they are */
    y = v_select(v_lt(x, v_zero()), v_set(__builtin_nanf("")), y);
    return v_select(v_eq(x, v_zero()), v_zero() - inf, y);
}

/* sin and cos, 2 ulp: phases in double (rope.h). Arguments beyond 10^7, where a phase loses bits, go to libm. */
AGK_INLINE void v_sincos_loop(bool cosine, int64_t n, float *y, const float *x)
{
    for (int64_t i = 0; i < n; i += VF) {
        const int64_t rest = n - i < VF ? n - i : VF;
        double turns[VF] = {0.0};
        vf s, c;
        int far = 0;
        for (int64_t k = 0; k < rest; ++k) {
            turns[k] = (double)x[i + k] * 0.15915494309189533577;
            far |= !(__builtin_fabsf(x[i + k]) < 1e7f);
        }
        if (far) {
            for (int64_t k = 0; k < rest; ++k) y[i + k] = cosine ? cosf(x[i + k]) : sinf(x[i + k]);
            continue;
        }
        v_sincos_turns(turns, &s, &c);
        if (rest == VF)
            v_store(y + i, cosine ? c : s);
        else
            v_store_n(y + i, cosine ? c : s, rest);
    }
}

AGK_INLINE vf v_unary_1(int op, vf x)
{
    const vf zero = v_zero(), one = v_set(1.0f);
    switch (op) {
    case AGK_OP_abs: return v_abs(x);
    case AGK_OP_sgn: return v_select(v_lt(zero, x), one, v_select(v_lt(x, zero), v_set(-1.0f), zero));
    case AGK_OP_neg: return v_xor(x, v_set(-0.0f));
    case AGK_OP_step: return v_select(v_lt(zero, x), one, zero);
    case AGK_OP_tanh: return v_tanh(x);
    case AGK_OP_elu: return v_select(v_lt(zero, x), x, v_expm1(x));
    case AGK_OP_relu: return v_select(v_lt(zero, x), x, zero);
    case AGK_OP_sigmoid: return v_sigmoid(x);
    case AGK_OP_gelu: return v_gelu(x);
    case AGK_OP_gelu_quick: return v_gelu_quick(x);
    case AGK_OP_gelu_erf: return v_gelu_erf(x);
    case AGK_OP_silu: return v_silu(x);
    case AGK_OP_exp: return v_exp(x);
    case AGK_OP_expm1: return v_select(v_lt(v_set(88.0f), x), v_exp(x), v_expm1(x));
    case AGK_OP_softplus: return v_softplus(x);
    case AGK_OP_hardswish: return x * v_hardsigmoid(x);
    case AGK_OP_hardsigmoid: return v_hardsigmoid(x);
    case AGK_OP_floor: return v_floor(x);
    case AGK_OP_ceil: return v_ceil(x);
    case AGK_OP_round: return v_round_away(x);
    case AGK_OP_trunc: return v_trunc(x);
    case AGK_OP_log: return v_log(x);
    case AGK_OP_sqr: return x * x;
    default: return v_sqrt(x);
    }
}

/* Whether numbers near 0 have a shorter formula of the same bits, and up to which size; 0: no. With AVX2 silu takes 7.5
 * instead of 9.9 cycles for 8 numbers on a Zen 5, gelu 9.4 instead of 11.6. AVX-512 needs no exceptions; NEON was not
 * measured. */
AGK_INLINE float v_near(int op)
{
    if (VF != 8) return 0.0f;
    return op == AGK_OP_silu ? 87.0f : op == AGK_OP_gelu ? 9.9f : op == AGK_OP_gelu_quick ? 51.0f : 0.0f;
}

/* For sizes up to v_near(op), and NaN. */
AGK_INLINE vf v_unary_near(int op, vf x)
{
    vf to = v_zero() - x;
    if (op == AGK_OP_gelu) to = v_gelu_exponent(x);
    if (op == AGK_OP_gelu_quick) to = x * v_set(-1.702f);
    return x / (v_set(1.0f) + v_exp_near(to));
}

/* Two vectors: there is one branch for both. */
AGK_INLINE void v_unary_2(int op, vf x[2])
{
    const float most = v_near(op);
    if (most > 0.0f && !v_any(v_either(v_lt(v_set(most), v_abs(x[0])), v_lt(v_set(most), v_abs(x[1]))))) {
        x[0] = v_unary_near(op, x[0]);
        x[1] = v_unary_near(op, x[1]);
        return;
    }
    x[0] = v_unary_1(op, x[0]);
    x[1] = v_unary_1(op, x[1]);
}

/* Functions with parameters, numbered as in lower/unary.c: p has the node's parameters, each as a vector of one
 * value. NaN becomes the maximum for clamp, 0 for leaky_relu. */
AGK_INLINE vf v_unary_params_1(int op, vf x, const vf *p)
{
    const vf zero = v_zero();
    switch (op) {
    case AGK_OP_clamp: return v_select(v_lt(x, p[1]), v_select(v_lt(p[0], x), x, p[0]), v_max(p[0], p[1]));
    case AGK_OP_leaky_relu: return v_select(v_lt(zero, x), x, v_select(v_lt(x, zero), x * p[0], zero));
    default: {
        const vf bent = (v_expm1(v_min(p[4], x)) - x) * p[1] + p[3] * x;
        return v_select(v_lt(zero, x), p[2] * x * x + p[3] * x, bent);
    }
    }
}

AGK_INLINE void v_unary_params_loop(int op, int64_t n, float *y, const float *x, const float *params)
{
    vf p[5];
    for (int i = 0; i < 5; ++i) p[i] = v_set(params[i]);
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + VF <= n; i += VF) v_store(y + i, v_unary_params_1(op, v_load(x + i), p));
    if (i < n) v_store_n(y + i, v_unary_params_1(op, v_load_n(x + i, n - i), p), n - i);
}

static inline void v_unary_params(int op, int64_t n, float *y, const float *x, const float *params)
{
    switch (op) {
    case AGK_OP_clamp: v_unary_params_loop(AGK_OP_clamp, n, y, x, params); return;
    case AGK_OP_leaky_relu: v_unary_params_loop(AGK_OP_leaky_relu, n, y, x, params); return;
    default: v_unary_params_loop(AGK_OP_xielu, n, y, x, params); return;
    }
}

AGK_INLINE void v_unary_loop(int op, int64_t n, float *y, const float *x)
{
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + 2 * VF <= n; i += 2 * VF) {
        vf two[2] = {v_load(x + i), v_load(x + i + VF)};
        v_unary_2(op, two);
        v_store(y + i, two[0]);
        v_store(y + i + VF, two[1]);
    }
    if (i + VF <= n) {
        v_store(y + i, v_unary_1(op, v_load(x + i)));
        i += VF;
    }
    if (i < n) v_store_n(y + i, v_unary_1(op, v_load_n(x + i, n - i)), n - i);
}

static inline void v_unary(int op, int64_t n, float *y, const float *x)
{
    switch (op) {
    case AGK_OP_sin: v_sincos_loop(false, n, y, x); return;
    case AGK_OP_cos: v_sincos_loop(true, n, y, x); return;
#define V_CASE(name) \
    case AGK_OP_##name: v_unary_loop(AGK_OP_##name, n, y, x); return;
        V_CASE(abs)
        V_CASE(sgn)
        V_CASE(neg)
        V_CASE(step)
        V_CASE(tanh)
        V_CASE(elu)
        V_CASE(relu)
        V_CASE(sigmoid)
        V_CASE(gelu)
        V_CASE(gelu_quick)
        V_CASE(gelu_erf)
        V_CASE(silu)
        V_CASE(exp)
        V_CASE(expm1)
        V_CASE(softplus)
        V_CASE(hardswish)
        V_CASE(hardsigmoid)
        V_CASE(floor)
        V_CASE(ceil)
        V_CASE(round)
        V_CASE(trunc)
        V_CASE(log)
        V_CASE(sqr)
        V_CASE(sqrt)
#undef V_CASE
    default: return;
    }
}

/* The kernels of this file, named for an instruction set. */
#define V_UNARY_KERNELS(isa) \
    void agk_unary_f32_##isa(int op, int64_t n, float *y, const float *x) \
    { \
        v_unary(op, n, y, x); \
    } \
    void agk_unary_params_f32_##isa(int op, int64_t n, float *y, const float *x, const float *p) \
    { \
        v_unary_params(op, n, y, x, p); \
    }

#endif
