/* Rows of quantized blocks to f32, AVX-512: all types but q4_0 and q8_0 (types.c), tq1_0, q8_1 and q8_K (scalar alone). */
#include "math.h"

/* 16 signed bytes. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* 0 */
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

#define V_NAME(kernel) agk_##kernel##_avx512
#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

V_ROWS_32
V_ROWS_K
V_ROWS_IQ
