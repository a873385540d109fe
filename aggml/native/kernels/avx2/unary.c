/* Unary functions of f32, f16 and bf16, AVX2. Against plain C: within 4 ulp of f32; gelu, gelu_quick and gelu_erf,
 * whose exponent is rounded, within 1e-6 of max(1, |x|). */
#include "math.h"

#include "halves.h"
#include "kernels/vec/unary.h"
#include "kernels/vec/unary_halves.h"

V_UNARY_KERNELS(avx2)

/* gelu of f16: x / (1 + 2^t) with t = x (c0 + c1 x^2). The polynomial of degree 5 and t itself, which is rounded, are
 * precise to 2^-22; the coefficients were chosen so that all 65,536 results have the bits of the function of f32,
 * rounded to f16 (tests/ops/test_unary.py). 16 instructions for 8 numbers, and the chains of four vectors run side by
 * side: 10.3 cycles on a Zen 4, where a conversion to f32, the function and a conversion back take 18.6. Looking the
 * results up in a table takes 9.5 cycles if 40 KB of it stay in L2, and 12 beside a stream from memory. */
AGK_INLINE void gelu_near(int count, vf *x)
{
    typedef uint32_t vu __attribute__((vector_size(sizeof(vf))));
    vf t[4], places[4], p[4];
    AGK_UNROLL for (int k = 0; k < count; ++k) t[k] = x[k] * x[k];
    AGK_UNROLL for (int k = 0; k < count; ++k) t[k] = v_fma(t[k], v_set(-0.102943175f), v_set(-2.30220866f)) * x[k];
    AGK_UNROLL for (int k = 0; k < count; ++k) places[k] = t[k] + v_set(V_INTEGERS);
    AGK_UNROLL for (int k = 0; k < count; ++k) t[k] = t[k] - (places[k] - v_set(V_INTEGERS));
    AGK_UNROLL for (int k = 0; k < count; ++k) p[k] = v_fma(t[k], v_set(0.00133897469f), v_set(0.00966966525f));
    AGK_UNROLL for (int k = 0; k < count; ++k) p[k] = v_fma(p[k], t[k], v_set(0.0555051081f));
    AGK_UNROLL for (int k = 0; k < count; ++k) p[k] = v_fma(p[k], t[k], v_set(0.240222201f));
    AGK_UNROLL for (int k = 0; k < count; ++k) p[k] = v_fma(p[k], t[k], v_set(0.693146944f));
    AGK_UNROLL for (int k = 0; k < count; ++k) p[k] = v_fma(p[k], t[k], v_set(1.0f));
    AGK_UNROLL for (int k = 0; k < count; ++k) p[k] = (vf)((vu)p[k] + ((vu)places[k] << 23));
    AGK_UNROLL for (int k = 0; k < count; ++k) x[k] = x[k] / (v_set(1.0f) + p[k]);
}

static void gelu_f16(int64_t n, uint16_t *y, const uint16_t *x)
{
    enum { W = 4, MOST = 0x48f0 }; /* vectors at once; the f16 9.875, up to which the power is a normal number */
    const __m256i size = _mm256_set1_epi16(0x7fff), most = _mm256_set1_epi16(MOST);
    int64_t i = 0;
    for (; i + W * VF <= n; i += W * VF) {
        __m256i halves[2];
        vf each[W];
        memcpy(halves, x + i, sizeof halves);
        const __m256i far = _mm256_or_si256(_mm256_cmpgt_epi16(_mm256_and_si256(halves[0], size), most),
                                            _mm256_cmpgt_epi16(_mm256_and_si256(halves[1], size), most));
        AGK_UNROLL for (int k = 0; k < W; ++k) each[k] = v_load_f16(x + i + k * VF);
        if (_mm256_testz_si256(far, far))
            gelu_near(W, each);
        else
            for (int k = 0; k < W; ++k) each[k] = v_unary_1(AGK_OP_gelu, each[k]);
        AGK_UNROLL for (int k = 0; k < W; k += 2) v_store_halves_2(false, y + i + k * VF, each[k], each[k + 1]);
    }
    for (; i < n; i += VF) {
        const int64_t rest = n - i < VF ? n - i : VF;
        v_store_halves_n(false, y + i, v_unary_1(AGK_OP_gelu, v_load_halves_n(false, x + i, rest)), rest);
    }
}

void agk_unary_f16_avx2(int op, int64_t n, void *y, const void *x)
{
    if (op == AGK_OP_gelu)
        gelu_f16(n, y, x);
    else
        v_unary_halves(false, op, n, y, x);
}

void agk_unary_bf16_avx2(int op, int64_t n, void *y, const void *x)
{
    v_unary_halves(true, op, n, y, x);
}
