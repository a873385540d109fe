/* exp and functions built on it, on a vector, in f32. Included after an ISA's math.h, which defines vf and its
 * operations.
 *
 * Errors are the largest of 650,000 arguments against double precision, the same on AVX-512 and AVX2. */
#ifndef AGK_VEC_MATH_H
#define AGK_VEC_MATH_H

/* x = n ln2 + r, |r| <= ln2 / 2; gives (exp(r) - 1 - r) / r^2, minimax of degree 4, and r. */
AGK_INLINE vf v_exp_rest(vf x, vf n, vf *r)
{
    const vf high = v_fnma(n, v_set(0.693145752f), x); /* 15 bits of ln2: the product is exact */
    *r = v_fnma(n, v_set(1.42860677e-6f), high);
    vf p = v_set(0.00138368458f);
    p = v_fma(p, *r, v_set(0.00837481581f));
    p = v_fma(p, *r, v_set(0.04166822508f));
    p = v_fma(p, *r, v_set(0.16666419804f));
    return v_fma(p, *r, v_set(0.49999991059f));
}

AGK_INLINE vf v_exp_reduce(vf x, vf *n, vf *r)
{
    *n = v_round(x * v_set(1.44269504f));
    return v_exp_rest(x, *n, r);
}

/* x / ln2 plus V_INTEGERS: a float so large that it is rounded to an integer, whose lowest bits are its own. */
#define V_INTEGERS 12582912.0f
AGK_INLINE vf v_exp_places(vf x)
{
    return v_fma(x, v_set(1.44269504f), v_set(V_INTEGERS));
}

/* e^x, 1.0 ulp; 0 below -104, inf above 88.73, NaN stays, exp(0) = 1. */
AGK_INLINE vf v_exp(vf x)
{
    vf n, r;
    const vm none = v_lt(x, v_set(-104.0f)); /* masked logits: an underflow in v_ldexp would cost 150 cycles each */
    x = v_min(v_set(89.0f), v_select(none, v_zero(), x)); /* keeps n within the range of v_ldexp; NaN passes */
    vf p = v_exp_reduce(x, &n, &r);
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_select(none, v_zero(), v_ldexp(p, n));
}

/* e^x for x <= 88.7228, 1.0 ulp: 0 below -87, NaN stays; anything for larger x. */
AGK_INLINE vf v_exp_to_88(vf x)
{
    vf r, n = v_exp_places(x) - v_set(V_INTEGERS);
    if (V_LDEXP_OVERFLOWS) n = v_round(x * v_set(1.44269504f));
    vf p = v_exp_rest(x, n, &r);
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_ldexp_from(v_set(-87.0f), x, p, n);
}

/* The same bits for |x| <= 87; anything elsewhere. 12 instructions of AVX2. */
AGK_INLINE vf v_exp_near(vf x)
{
    typedef uint32_t vu __attribute__((vector_size(sizeof(vf))));
    const vf places = v_exp_places(x);
    vf r, p = v_exp_rest(x, places - v_set(V_INTEGERS), &r);
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return (vf)((vu)p + ((vu)places << 23));
}

/* e^x for use where 1 is added to it, 1.0 ulp: 0 below -87, inf above 88.7228, NaN stays. It needs one power of 2
 * instead of two: 19 instructions of AVX2, v_exp has 27. */
AGK_INLINE vf v_exp_beside_1(vf x)
{
    if (V_LDEXP_OVERFLOWS) return v_exp_to_88(v_min(v_set(89.0f), x)); /* NaN passes */
    const vf most = v_set(88.7228f); /* there n is 128 and p below 1, so their product is finite */
    const vm beyond = v_lt(most, x);
    return v_select(beyond, v_set(__builtin_inff()), v_exp_to_88(v_min(most, x)));
}

/* e^x - 1 for x <= 88, 1.3 ulp, also near 0. */
AGK_INLINE vf v_expm1(vf x)
{
    vf n, r;
    x = v_max(v_set(-104.0f), v_min(v_set(88.0f), x));
    const vf p = v_exp_reduce(x, &n, &r);
    const vf q = v_fma(p * r, r, r), scale = v_ldexp(v_set(1.0f), n);
    return v_fma(scale, q, scale - v_set(1.0f));
}

AGK_INLINE vf v_sigmoid(vf x)
{
    return v_set(1.0f) / (v_set(1.0f) + v_exp_beside_1(v_zero() - x));
}

AGK_INLINE vf v_silu(vf x)
{
    return x / (v_set(1.0f) + v_exp_beside_1(v_zero() - x));
}

/* log(1 + e^x) = max(x, 0) + log1p(u), u = e^-|x|, which is 2 atanh(u / (2 + u)): a series, 3e-8 after 7 terms. */
AGK_INLINE vf v_softplus(vf x)
{
    const vf u = v_exp(v_zero() - v_abs(x));
    const vf z = u / (u + v_set(2.0f)), w = z * z;
    vf p = v_set(2.0f / 15.0f);
    p = v_fma(p, w, v_set(2.0f / 13.0f));
    p = v_fma(p, w, v_set(2.0f / 11.0f));
    p = v_fma(p, w, v_set(2.0f / 9.0f));
    p = v_fma(p, w, v_set(2.0f / 7.0f));
    p = v_fma(p, w, v_set(2.0f / 5.0f));
    p = v_fma(p, w, v_set(2.0f / 3.0f));
    p = v_fma(p, w, v_set(2.0f));
    return v_fma(p, z, v_max(x, v_zero())); /* NaN comes from u */
}

/* e / (e + 2) with e = expm1(2 |x|): 2.4 ulp, exact sign, tanh(0) = 0. Above 10 it is 1 in f32. */
AGK_INLINE vf v_tanh(vf x)
{
    const vf e = v_expm1(v_set(2.0f) * v_min(v_set(10.0f), v_abs(x)));
    return v_xor(e / (e + v_set(2.0f)), v_sign(x));
}

/* The exponent of gelu, -2u with u = sqrt(2/pi) (x + 0.044715 x^3). */
AGK_INLINE vf v_gelu_exponent(vf x)
{
    return x * v_fma(x * x, v_set(-2.0f * 0.79788456f * 0.044715f), v_set(-2.0f * 0.79788456f));
}

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)); 0 and x from |x| = 10 on, as in ggml's table. From 10 on the power is
 * below 2^-125, so the formula gives x; down to -10 its argument is below 88. */
AGK_INLINE vf v_gelu(vf x)
{
    const vf y = x / (v_set(1.0f) + v_exp_to_88(v_gelu_exponent(x)));
    return v_select(v_le(x, v_set(-10.0f)), v_zero(), y);
}

/* x sigmoid(1.702 x). Values beyond the range of f16 count as infinite, since ggml's table is one of f16. */
AGK_INLINE vf v_gelu_quick(vf x)
{
    const vf inf = v_set(__builtin_inff());
    x = v_select(v_le(v_set(65520.0f), v_abs(x)), v_xor(inf, v_sign(x)), x);
    return x / (v_set(1.0f) + v_exp_beside_1(x * v_set(-1.702f)));
}

/* 2^r for |r| <= 1/2. */
AGK_INLINE vf v_exp2_near_0(vf r)
{
    vf p = v_set(0.000153458118f);
    p = v_fma(p, r, v_set(0.00133999312f));
    p = v_fma(p, r, v_set(0.00961848884f));
    p = v_fma(p, r, v_set(0.0555032866f));
    p = v_fma(p, r, v_set(0.240226464f));
    p = v_fma(p, r, v_set(0.693147181f));
    return v_fma(p, r, v_set(1.0f));
}

/* 2^x for x of some -200 to 0, 1 ulp. */
AGK_INLINE vf v_exp2(vf x)
{
    const vf n = v_round(x), r = x - n; /* exact */
    return v_ldexp(v_exp2_near_0(r), n);
}

/* 2^x for x <= 0, 1 ulp; 0 below -125, NaN stays. 12 instructions of AVX-512, v_exp has 18. */
AGK_INLINE vf v_exp2_down(vf x)
{
    const vf n = v_round(x), r = x - n;
    return v_ldexp_from(v_set(-125.0f), x, v_exp2_near_0(r), n);
}

/* 0.5 erfc(u / sqrt2) = exp(-u^2 / 2) t P(t), t = 1 / (1 + 0.3 u / sqrt2); P is minimax, 2e-8 relative.
 *
 * 0 beyond 12.2, where u times it is 2e-33. The next product could not split smaller numbers into bf16 terms
 * (agk_terms_can_split), and subnormal ones, beyond 12.9, are slow on Intel's processors. 7 % of the inputs of GELU in
 * Whisper tiny's last layer lie there: with AVX2 the last two layers took 580 ms instead of 60. */
AGK_INLINE vf v_far_tail(vf u)
{
    const vf z = v_min(v_set(14.0f), u * v_set(0.70710678f));
    const vm none = v_lt(v_set(74.5f), z * z); /* NaN is in t below */
    const vf t = v_set(1.0f) / v_fma(z, v_set(0.3f), v_set(1.0f));
    vf p = v_set(-0.12955406f);
    p = v_fma(p, t, v_set(0.48572686f));
    p = v_fma(p, t, v_set(-0.5126465f));
    p = v_fma(p, t, v_set(0.54818374f));
    p = v_fma(p, t, v_set(-0.09500709f));
    p = v_fma(p, t, v_set(0.2150971f));
    p = v_fma(p, t, v_set(0.14828925f));
    p = v_fma(p, t, v_set(0.17072332f));
    p = v_fma(p, t, v_set(0.16918744f));
    const vf power = v_exp_near(v_select(none, v_zero(), v_zero() - z * z));
    return v_select(none, v_zero(), power * (v_set(0.5f) * t * p));
}

/* x Phi(x), with Phi(-u) = 2^(u Q(u) - 1) for u up to 6.5. Q is minimax; the error is 2e-8 at 0 and 5e-6 of 1e-10 at
 * the end. It needs no division and one exponential. Beyond 6.5, which is rare, the other form is used. */
AGK_INLINE vf v_near_tail(vf u)
{
    vf q = v_set(2.08753392e-09f);
    q = v_fma(q, u, v_set(-8.17767116e-08f));
    q = v_fma(q, u, v_set(1.41178839e-06f));
    q = v_fma(q, u, v_set(-1.40174161e-05f));
    q = v_fma(q, u, v_set(8.58519852e-05f));
    q = v_fma(q, u, v_set(-0.000294898695f));
    q = v_fma(q, u, v_set(8.72437249e-06f));
    q = v_fma(q, u, v_set(0.00695468904f));
    q = v_fma(q, u, v_set(-0.0524544865f));
    q = v_fma(q, u, v_set(-0.459215105f));
    q = v_fma(q, u, v_set(-1.15110493f));
    return v_exp2(v_fma(q, u, v_set(-1.0f)));
}

AGK_INLINE vf v_gelu_erf_of(vf x, vf tail)
{
    return x * v_select(v_lt(x, v_zero()), tail, v_set(1.0f) - tail);
}

AGK_INLINE vf v_gelu_erf(vf x)
{
    const vf u = v_abs(x);
    vf tail = v_near_tail(u);
    const vm far = v_lt(v_set(6.5f), u);
    if (v_any(far)) tail = v_select(far, v_far_tail(u), tail);
    return v_gelu_erf_of(x, tail);
}

/* The same for four vectors: their chains of 30 dependent instructions run in parallel, without a branch between
 * them. */
AGK_INLINE void v_gelu_erf_4(vf x[4])
{
    const vf most = v_set(6.5f);
    const vm a = v_either(v_lt(most, v_abs(x[0])), v_lt(most, v_abs(x[1])));
    const vm b = v_either(v_lt(most, v_abs(x[2])), v_lt(most, v_abs(x[3])));
    if (v_any(v_either(a, b))) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) x[i] = v_gelu_erf(x[i]);
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = v_gelu_erf_of(x[i], v_near_tail(v_abs(x[i])));
}

#endif
