/* Rows of quantized blocks to f32, AVX2: all types but q4_0 and q8_0 (types.c), tq1_0, q8_1 and q8_K (scalar alone). */
#include "math.h"

/* VF of 16 signed bytes, from the first or the ninth. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first == 0 ? q : _mm_unpackhi_epi64(q, q)));
}

#define V_NAME(kernel) agk_##kernel##_avx2
#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

V_ROWS_32
V_ROWS_K
V_ROWS_IQ
