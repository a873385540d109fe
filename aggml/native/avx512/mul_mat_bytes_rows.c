/* Rows of quantized blocks as bytes with scales (mul_mat_bytes.h), AVX-512: what unpacks blocks to floats, before the product
 * with the scale. */
#include "../mul_mat_bytes.h"
#include "math.h"

#define V_OUT
/* 16 signed bytes. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* 0 */
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

AGK_INLINE void v_out_with(float *dst, __m128i q, float d, float m)
{
    agk_bytes_row *y = (agk_bytes_row *)(void *)dst;
    _mm_storeu_si128((__m128i *)(void *)y->q, _mm_xor_si128(q, _mm_set1_epi8(-128)));
    y->d = d;
    y->minimum = m;
}

AGK_INLINE void v_out(float *dst, __m128i q, float d)
{
    v_out_with(dst, q, d, 0.0f);
}

#include "../vec/dequant_32.h"
#include "../vec/dequant_bytes.h"
#include "../vec/dequant_iq.h"
#include "../vec/dequant_k.h"

#undef V_ROWS
#define V_ROWS(kernel, block, size) \
    static void kernel##_bytes(const void *src, float *dst, int64_t n) \
    { \
        const block *x = src; \
        for (; n >= (size); n -= (size), dst += (size), ++x) v_##kernel(x, dst); \
    }
V_ROWS_32
V_ROWS_K
V_ROWS_IQ
V_ROWS(q8_0_to_f32, agk_block_q8_0, 32)
V_ROWS(q4_0_to_f32, agk_block_q4_0, 32)
V_ROWS(tq1_0_to_f32, agk_block_tq1_0, 256)

void agk_mm_bytes_row_avx512(int type, const void *src, void *out, int64_t n)
{
#define AGK_ROW(TYPE, name) \
    case AGK_##TYPE: name##_to_f32_bytes(src, out, n); break;
    switch (type) {
        AGK_ROW(Q8_0, q8_0)
        AGK_ROW(Q4_0, q4_0)
        AGK_ROW(Q4_1, q4_1)
        AGK_ROW(Q5_0, q5_0)
        AGK_ROW(Q5_1, q5_1)
        AGK_ROW(IQ4_NL, iq4_nl)
        AGK_ROW(MXFP4, mxfp4)
        AGK_ROW(NVFP4, nvfp4)
        AGK_ROW(Q1_0, q1_0)
        AGK_ROW(Q2_0, q2_0)
        AGK_ROW(Q2_K, q2_k)
        AGK_ROW(Q3_K, q3_k)
        AGK_ROW(Q4_K, q4_k)
        AGK_ROW(Q5_K, q5_k)
        AGK_ROW(Q6_K, q6_k)
        AGK_ROW(IQ4_XS, iq4_xs)
        AGK_ROW(TQ2_0, tq2_0)
        AGK_ROW(TQ1_0, tq1_0)
        AGK_ROW(IQ2_XXS, iq2_xxs)
        AGK_ROW(IQ2_XS, iq2_xs)
        AGK_ROW(IQ2_S, iq2_s)
        AGK_ROW(IQ3_XXS, iq3_xxs)
        AGK_ROW(IQ3_S, iq3_s)
        AGK_ROW(IQ1_S, iq1_s)
        AGK_ROW(IQ1_M, iq1_m)
    default: break;
    }
}
