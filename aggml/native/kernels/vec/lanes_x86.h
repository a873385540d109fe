/* Operations for which AVX2 and AVX-512 have an instruction of the same name. avx2/math.h and avx512/math.h include
 * this; they define V(name), the intrinsic of their width, and the types vf and vd.
 *
 * Not here: operations that take a mask, or that need another instruction at each width. */
#ifndef AGK_VEC_LANES_X86_H
#define AGK_VEC_LANES_X86_H

AGK_INLINE vf v_set(float x)
{
    return V(set1_ps)(x);
}
AGK_INLINE vf v_zero(void)
{
    return V(setzero_ps)();
}

AGK_INLINE vf v_load(const float *p)
{
    return V(loadu_ps)(p);
}
AGK_INLINE void v_store(float *p, vf x)
{
    V(storeu_ps)(p, x);
}

/* a * b + c and c - a * b, rounded once. */
AGK_INLINE vf v_fma(vf a, vf b, vf c)
{
    return V(fmadd_ps)(a, b, c);
}
AGK_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return V(fnmadd_ps)(a, b, c);
}

/* If either is NaN the result is b. */
AGK_INLINE vf v_min(vf a, vf b)
{
    return V(min_ps)(a, b);
}
AGK_INLINE vf v_max(vf a, vf b)
{
    return V(max_ps)(a, b);
}
AGK_INLINE vf v_sqrt(vf x)
{
    return V(sqrt_ps)(x);
}

AGK_INLINE vf v_abs(vf x)
{
    return V(andnot_ps)(V(set1_ps)(-0.0f), x);
}
AGK_INLINE vf v_sign(vf x)
{
    return V(and_ps)(V(set1_ps)(-0.0f), x);
} /* the sign bit alone */
AGK_INLINE vf v_xor(vf a, vf b)
{
    return V(xor_ps)(a, b);
}

/* Pairs of neighbouring lanes exchanged. */
AGK_INLINE vf v_swap_pairs(vf x)
{
    return V(permute_ps)(x, 0xb1);
}

AGK_INLINE vd vd_set(double x)
{
    return V(set1_pd)(x);
}
AGK_INLINE vd vd_load(const double *p)
{
    return V(loadu_pd)(p);
}

#undef V

#endif
