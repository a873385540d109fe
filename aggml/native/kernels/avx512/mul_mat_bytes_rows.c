/* Rows of quantized blocks as bytes with scales (mul_mat_bytes.h), AVX-512. They come from the functions that unpack
 * blocks to floats, before these multiply by the scale (vec/mul_mat_rows.h). */
#include "kernels/mul_mat_bytes.h"
#include "math.h"

#define V_OUT
/* 16 signed bytes. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* always 0 */
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

#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_bytes.h"
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

#include "kernels/vec/mul_mat_rows.h"

void agk_mm_bytes_rows_avx512(int type, bool words, const void *src, void *out, int64_t n)
{
    (void)words;
#define AGK_ROW(TYPE, name) \
    case AGK_##TYPE: name##_to_f32_bytes(src, out, n); break;
    switch (type) {
        AGK_OF_ALL(AGK_ROW)
    default: break;
    }
}
