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

/* -- rows of q2_K and q3_K as codes times scales --------------------------------------------------------------- */

/* Codes of q2_K are at most 3, scales at most 15. Codes of q3_K are -4 to 3, scales -32 to 31: the products are -124 to
 * 128, so their negatives fit a byte, and d changes its sign. 32 k then have one scale instead of two: on a Zen 4 the
 * product of q3_K takes 9 cycles where it took 10, that of q2_K 11 instead of 12. */

/* 16 codes times a scale: bytes, with the offset 128 of rows. */
AGK_INLINE __m128i times(__m128i codes, int scale)
{
    const __m256i words = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(codes), _mm256_set1_epi16((short)scale));
    return _mm_xor_si128(_mm256_cvtepi16_epi8(words), _mm_set1_epi8(-128));
}

AGK_INLINE void put_row(agk_bytes_row *y, __m128i q, float d, float minimum)
{
    _mm_storeu_si128((__m128i *)(void *)y->q, q);
    y->d = d;
    y->minimum = minimum;
}

AGK_INLINE void row_of_q2_k(const agk_block_q2_k *x, agk_bytes_row *y)
{
    float minimum[16];
    const float d = v_half(x->d);
    v_put(minimum, v_bits(v_bytes(x->scales), 4, 15), -v_half(x->m));
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        const __m128i q = v_bits(v_bytes(x->qs + g / 8 * 32 + g % 2 * 16), g % 8 / 2 * 2, 3);
        put_row(y + g, times(q, x->scales[g] & 15), d, minimum[g]);
    }
}

AGK_INLINE void row_of_q3_k(const agk_block_q3_k *x, agk_bytes_row *y)
{
    int8_t scale[16];
    const float d = -v_half(x->d);
    _mm_storeu_si128((__m128i *)(void *)scale, _mm_sub_epi8(_mm_set1_epi8(32), v_scales_q3_k(x)));
    AGK_UNROLL for (int g = 0; g < 16; ++g)
    {
        put_row(y + g, times(v_codes_q3_k(x, g), scale[g]), d, 0.0f);
    }
}

void agk_mm_bytes_scaled_rows_avx512(int type, bool words, const void *src, void *out, int64_t n)
{
    (void)words;
    agk_bytes_row *y = out;
    const agk_block_q2_k *q2 = src;
    const agk_block_q3_k *q3 = src;
    for (int64_t i = 0; i < n / 256; ++i, y += 16) {
        if (type == AGK_Q2_K)
            row_of_q2_k(q2 + i, y);
        else
            row_of_q3_k(q3 + i, y);
    }
}
