/* Rows of f16 and bf16 as vectors of floats. Included after an ISA's math.h and halves.h, which round results back. */
#ifndef AGK_VEC_HALVES_H
#define AGK_VEC_HALVES_H

AGK_INLINE vf v_load_halves(bool bf16, const uint16_t *p)
{
    return bf16 ? v_load_bf16(p) : v_load_f16(p);
}

AGK_INLINE vf v_load_halves_n(bool bf16, const uint16_t *p, int64_t n)
{
    return bf16 ? v_load_bf16_n(p, n) : v_load_f16_n(p, n);
}

#endif
