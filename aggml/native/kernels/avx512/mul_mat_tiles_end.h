/* The epilogue of the sums of a block on tiles (agk_mm_end): bias, function, addend, store; two columns of 32 rows
 * at a time. Each line of a tile is 16 rows of one column, so nothing is transposed. Not here: products
 * (kernels/amx/mul_mat_tiles.c), other stages (lower/chain.c). */
#ifndef AGK_AVX512_TILES_END_H
#define AGK_AVX512_TILES_END_H

#include "kernels/mul_mat_panels.h"
#include "math.h"

#include "kernels/vec/unary.h"

enum { PARTS = 16 }; /* parts of a pair of units; two columns each */

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

AGK_INLINE void end_parts(int act, const agk_mm_panel *p, const float *sums, int64_t unit, int part, int to)
{
    const agk_mm_end *e = p->end;
    const __mmask16 low = p->rows >= 16 ? 0xffff : (__mmask16)((1u << p->rows) - 1);
    const __mmask16 high = p->rows >= 32 ? 0xffff : p->rows <= 16 ? 0 : (__mmask16)((1u << (p->rows - 16)) - 1);
    vf bias[2] = {v_zero(), v_zero()};
    if (e->bias != NULL) {
        bias[0] = _mm512_maskz_loadu_ps(low, e->bias);
        bias[1] = _mm512_maskz_loadu_ps(high, e->bias + 16);
    }
    const int64_t first = 16 * unit, left = (p->cols - first + 1) / 2;
    if (to > left) to = (int)left;
    for (; part < to; ++part) {
        const int64_t col = first + 2 * part;
        const bool two = col + 1 < p->cols;
        const float *x = sums + part / 8 * 512 + part % 8 * 32;
        vf t[4] = {v_load(x), v_load(x + 256), v_load(x + 16), v_load(x + 272)};
        if (e->bias != NULL) {
            AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = t[i] + bias[i & 1];
        }
        if (act == AGK_OP_gelu_erf && e->units != NULL && e->other == NULL) {
            gelu_erf_4_short(t);
        } else if (act == AGK_OP_gelu_erf) {
            v_gelu_erf_4(t);
        } else if (act >= 0) {
            AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = v_unary_1(act, t[i]);
        }
        const __mmask16 low2 = two ? low : 0, high2 = two ? high : 0;
        if (e->other != NULL) {
            const char *y = e->other + (size_t)col * e->ld_other, *z = y + e->ld_other;
            t[0] = t[0] + _mm512_maskz_loadu_ps(low, y);
            t[1] = t[1] + _mm512_maskz_loadu_ps(high, y + 64);
            t[2] = t[2] + _mm512_maskz_loadu_ps(low2, z);
            t[3] = t[3] + _mm512_maskz_loadu_ps(high2, z + 64);
        }
        if (e->units != NULL) {
            __m512i *line = (__m512i *)(void *)(e->units + (size_t)(col / 16) * e->ld_unit) + col % 16;
            _mm512_store_si512(
                line, (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_mov_ps(high, t[1]), _mm512_maskz_mov_ps(low, t[0])));
            if (two)
                _mm512_store_si512(line + 1, (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_mov_ps(high, t[3]),
                                                                          _mm512_maskz_mov_ps(low, t[2])));
            continue;
        }
        char *c = (char *)e->c + (size_t)col * e->ldc;
        if (e->narrow) {
            const __mmask32 both = (__mmask32)high << 16 | low;
            _mm512_mask_storeu_epi16(c, both, (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]));
            _mm512_mask_storeu_epi16(c + e->ldc, two ? both : 0, (__m512i)_mm512_cvtne2ps_pbh(t[3], t[2]));
            continue;
        }
        _mm512_mask_storeu_ps(c, low, t[0]);
        _mm512_mask_storeu_ps(c + 64, high, t[1]);
        _mm512_mask_storeu_ps(c + e->ldc, low2, t[2]);
        _mm512_mask_storeu_ps(c + e->ldc + 64, high2, t[3]);
    }
}

/* Parts `from` to `to` - 1 of the pair of units from `unit` on. */
static __attribute__((noinline)) void agk_end_parts(const agk_mm_panel *p, const float *sums, int64_t unit, int from,
                                                    int to)
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
