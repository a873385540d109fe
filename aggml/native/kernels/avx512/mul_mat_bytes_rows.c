/* Rows of quantized blocks as bytes with scales (mul_mat_bytes.h), AVX-512. They come from the functions that unpack
 * blocks to floats, before these multiply by the scale (vec/mul_mat_rows.h). Not here: codes times scales
 * (mul_mat_bytes_scaled_rows.c). */
#include "kernels/mul_mat_bytes.h"
#include "math.h"

#define V_OUT
typedef agk_bytes_slot v_dst;

/* 16 signed bytes. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* always 0 */
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

AGK_INLINE void v_out_with(v_dst *dst, __m128i q, float d, float m)
{
    agk_bytes_row *y = (agk_bytes_row *)(void *)dst;
    _mm_storeu_si128((__m128i *)(void *)y->q, _mm_xor_si128(q, _mm_set1_epi8(-128)));
    y->d = d;
    y->minimum = m;
}

AGK_INLINE void v_out(v_dst *dst, __m128i q, float d)
{
    v_out_with(dst, q, d, 0.0f);
}

#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_bytes.h"
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

#include "kernels/vec/mul_mat_rows.h"

/* The minimums of q4_K and q5_K as integers, six bits each. */
AGK_INLINE void put_minimums_k4(const uint8_t *packed, float step, agk_bytes_row *y)
{
    uint32_t w[3];
    memcpy(w, packed, sizeof w);
    const __m128i bytes =
        _mm_setr_epi32((int)(w[1] & 0x3f3f3f3f), (int)((w[2] >> 4 & 0x0f0f0f0f) | (w[1] >> 2 & 0x30303030)), 0, 0);
    const __m128i pairs = _mm_cvtepu8_epi16(bytes);
    const int32_t each[4] = {_mm_cvtsi128_si32(pairs), _mm_extract_epi32(pairs, 1), _mm_extract_epi32(pairs, 2),
                             _mm_extract_epi32(pairs, 3)};
    y->step = step;
    AGK_UNROLL for (int i = 0; i < 4; ++i) memcpy(y[4 * i].times, &each[i], sizeof each[i]);
}

static void put_minimums(int type, const void *src, agk_bytes_row *y, int64_t n)
{
    const agk_block_q4_k *q4 = src;
    const agk_block_q5_k *q5 = src;
    for (int64_t i = 0; i < n / 256; ++i, y += 16) {
        if (type == AGK_Q4_K)
            put_minimums_k4(q4[i].scales, v_half(q4[i].m), y);
        else
            put_minimums_k4(q5[i].scales, v_half(q5[i].m), y);
    }
}

void agk_mm_bytes_rows_avx512(int type, bool words, const void *src, void *out, int64_t n)
{
    (void)words;
#define AGK_ROW(TYPE, name) \
    case AGK_##TYPE: name##_to_f32_bytes(src, out, n); break;
    switch (type) {
        AGK_OF_ALL(AGK_ROW)
    default: break;
    }
    if (type == AGK_Q4_K || type == AGK_Q5_K) put_minimums(type, src, out, n);
}
