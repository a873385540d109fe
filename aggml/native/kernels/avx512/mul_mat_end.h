/* The epilogue of sums (agk_mm_end): bias, function, second operand, store; two columns of 32 rows at a time.
 *
 * agk_end_parts: of the sums of a block on tiles, where each line of a tile is 16 rows of one column, so that nothing
 * is transposed. Not here: sums in lanes (mul_mat_panels_end.c), products (kernels/amx/mul_mat_tiles.c), other stages
 * (lower/chain.c). */
#ifndef AGK_AVX512_MUL_MAT_END_H
#define AGK_AVX512_MUL_MAT_END_H

#include "kernels/mul_mat_panels.h"
#include "math.h"

#include "kernels/vec/unary.h"

enum { PARTS = 16 }; /* of a pair of units on tiles; two columns each */

/* gelu_erf for a result that is rounded to bf16: x Phi(x) as in v_near_tail, with a relative error of the tail of
 * 1.5e-4, a thirteenth of that rounding. It takes 16 instructions, the exact one 28. Beyond 6.5, and for values that
 * are not finite, it is exact. */
AGK_INLINE void gelu_erf_4_short(vf x[4])
{
    __mmask16 far[4];
    vf y[4];
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        const vf u = v_abs(x[i]);
        far[i] = _mm512_cmp_ps_mask(u, v_set(6.5f), _CMP_NLE_UQ);
        vf q = v_set(2.05644867e-05f);
        q = v_fma(q, u, v_set(-0.000571572862f));
        q = v_fma(q, u, v_set(0.00696197757f));
        q = v_fma(q, u, v_set(-0.0505877547f));
        q = v_fma(q, u, v_set(-0.46186173f));
        q = v_fma(q, u, v_set(-1.1500957f));
        q = v_fma(q, u, v_set(-1.0f));
        const vf r = _mm512_reduce_ps(q, 1);                        /* q - floor(q) */
        vf p = v_fma(v_set(0.0780245215f), r, v_set(0.226067156f)); /* 2^r to 7.5e-5 */
        p = v_fma(p, r, v_set(0.695833564f));
        p = v_fma(p, r, v_set(0.999925196f));
        y[i] = _mm512_fnmadd_ps(u, _mm512_scalef_ps(p, q), _mm512_max_ps(x[i], v_zero()));
    }
    if ((far[0] | far[1] | far[2] | far[3]) != 0) {
        AGK_UNROLL for (int i = 0; i < 4; ++i) y[i] = _mm512_mask_mov_ps(y[i], far[i], v_gelu_erf(x[i]));
    }
    AGK_UNROLL for (int i = 0; i < 4; ++i) x[i] = y[i];
}

/* act(x) of four vectors; `rounded`: the results will be rounded to bf16 or to bytes. */
AGK_INLINE void act_4(int act, bool rounded, vf x[4])
{
    if (act == AGK_OP_gelu_erf && rounded) {
        gelu_erf_4_short(x);
    } else if (act == AGK_OP_gelu_erf) {
        v_gelu_erf_4(x);
    } else if (act >= 0) {
        AGK_UNROLL for (int i = 0; i < 4; ++i) x[i] = v_unary_1(act, x[i]);
    }
}

/* A pair of columns: which of its 32 rows there are, and whether there is a second column. */
typedef struct end_pair {
    __mmask16 low, high;
    int64_t col;
    bool two;
    vf bias[2];
} end_pair;

AGK_INLINE end_pair end_pair_of(const agk_mm_end *e, int64_t rows, int64_t first)
{
    end_pair x = {.low = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1),
                  .high = rows >= 32   ? 0xffff
                          : rows <= 16 ? 0
                                       : (__mmask16)((1u << (rows - 16)) - 1),
                  .bias = {v_zero(), v_zero()}};
    if (e->bias != NULL) {
        x.bias[0] = _mm512_maskz_loadu_ps(x.low, e->bias + first);
        x.bias[1] = _mm512_maskz_loadu_ps(x.high, e->bias + first + 16);
    }
    return x;
}

/* Bias, function and second operand of rows `first` on of a pair of columns: t has the sums of rows 0 to 15 and 16 to
 * 31 of the first column, then those of the second. */
AGK_INLINE void end_values(int act, const agk_mm_end *e, const end_pair *x, int64_t first, vf t[4])
{
    if (e->bias != NULL) {
        AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = t[i] + x->bias[i & 1];
    }
    if (!e->gates) act_4(act, e->units != NULL && e->other == NULL, t);
    if (e->other == NULL) return;
    const char *y = e->other + (size_t)x->col * e->ld_other + 4 * first, *z = y + e->ld_other;
    vf o[4] = {_mm512_maskz_loadu_ps(x->low, y), _mm512_maskz_loadu_ps(x->high, y + 64),
               _mm512_maskz_loadu_ps(x->two ? x->low : 0, z), _mm512_maskz_loadu_ps(x->two ? x->high : 0, z + 64)};
    if (e->gates) act_4(act, false, o);
    AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = e->gated ? t[i] * o[i] : t[i] + o[i];
}

/* Stores them to c. */
AGK_INLINE void end_store(const agk_mm_end *e, const end_pair *x, int64_t first, const vf t[4])
{
    const __mmask16 low2 = x->two ? x->low : 0, high2 = x->two ? x->high : 0;
    char *c = (char *)e->c + (size_t)x->col * e->ldc + (e->narrow ? 2 : 4) * first;
    if (e->narrow) {
        const __mmask32 both = (__mmask32)x->high << 16 | x->low;
        _mm512_mask_storeu_epi16(c, both, (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]));
        _mm512_mask_storeu_epi16(c + e->ldc, x->two ? both : 0, (__m512i)_mm512_cvtne2ps_pbh(t[3], t[2]));
        return;
    }
    _mm512_mask_storeu_ps(c, x->low, t[0]);
    _mm512_mask_storeu_ps(c + 64, x->high, t[1]);
    _mm512_mask_storeu_ps(c + e->ldc, low2, t[2]);
    _mm512_mask_storeu_ps(c + e->ldc + 64, high2, t[3]);
}

AGK_INLINE void end_parts(int act, const agk_mm_panel *p, const float *sums, int64_t unit, int part, int to)
{
    const agk_mm_end *e = p->end;
    end_pair pair = end_pair_of(e, p->rows, 0);
    const int64_t first = 16 * unit, left = (p->cols - first + 1) / 2;
    if (to > left) to = (int)left;
    for (; part < to; ++part) {
        pair.col = first + 2 * part;
        pair.two = pair.col + 1 < p->cols;
        const float *x = sums + part / 8 * 512 + part % 8 * 32;
        vf t[4] = {v_load(x), v_load(x + 256), v_load(x + 16), v_load(x + 272)};
        end_values(act, e, &pair, 0, t);
        if (e->units == NULL) {
            end_store(e, &pair, 0, t);
            continue;
        }
        __m512i *line = (__m512i *)(void *)(e->units + (size_t)(pair.col / 16) * e->ld_unit) + pair.col % 16;
        AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = _mm512_maskz_mov_ps(i & 1 ? pair.high : pair.low, t[i]);
        _mm512_store_si512(line, (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]));
        if (pair.two) _mm512_store_si512(line + 1, (__m512i)_mm512_cvtne2ps_pbh(t[3], t[2]));
    }
}

/* Parts `from` to `to` - 1 of the pair of units from `unit` on. */
static __attribute__((noinline, unused)) void agk_end_parts(const agk_mm_panel *p, const float *sums, int64_t unit,
                                                            int from, int to)
{
    switch (p->end->act) {
    case AGK_OP_gelu_erf: end_parts(AGK_OP_gelu_erf, p, sums, unit, from, to); return;
    case AGK_OP_gelu: end_parts(AGK_OP_gelu, p, sums, unit, from, to); return;
    case AGK_OP_silu: end_parts(AGK_OP_silu, p, sums, unit, from, to); return;
    case AGK_OP_relu: end_parts(AGK_OP_relu, p, sums, unit, from, to); return;
    default: end_parts(-1, p, sums, unit, from, to); return;
    }
}

#endif
