/* Rows of quantized blocks as bytes with scales (mul_mat_bytes.h), NEON. They come from the functions that unpack
 * blocks to floats, before these multiply by the scale (vec/mul_mat_rows.h). */
#include "kernels/mul_mat_bytes.h"
#include "bytes.h"
#include "math.h"

#define V_OUT
typedef agk_bytes_slot v_dst;

/* 4 of 16 signed bytes, as scales are. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    const int8x16_t s = vreinterpretq_s8_u8(q);
    const int16x8_t x = first < 8 ? vmovl_s8(vget_low_s8(s)) : vmovl_s8(vget_high_s8(s));
    return vcvtq_f32_s32(first % 8 == 0 ? vmovl_s16(vget_low_s16(x)) : vmovl_s16(vget_high_s16(x)));
}

AGK_INLINE void v_out_with(v_dst *dst, __m128i q, float d, float m)
{
    agk_bytes_row *y = (agk_bytes_row *)(void *)dst;
    vst1q_u8(y->q, veorq_u8(q, vdupq_n_u8(128)));
    y->d = d;
    y->minimum = m;
}

AGK_INLINE void v_out(v_dst *dst, __m128i q, float d)
{
    v_out_with(dst, q, d, 0.0f);
}

#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_bytes.h"
#include "dequant_iq.h"
#include "kernels/vec/dequant_k.h"

/* Digits of base 3, the first of x in each byte as a fraction of 256; -1, 0 or 1. */
AGK_INLINE __m128i v_digits(__m128i x, uint8_t power)
{
    const uint8x16_t rest = vmulq_u8(x, vdupq_n_u8(power)), three = vdupq_n_u8(3); /* 3 rest < 768 */
    const uint8x8_t low = vshrn_n_u16(vmull_u8(vget_low_u8(rest), vget_low_u8(three)), 8);
    return vsubq_u8(vcombine_u8(low, vshrn_n_u16(vmull_high_u8(rest, three), 8)), vdupq_n_u8(1));
}

/* 32 bytes of five digits, the first of all first; then 16; then 4 of four. */
AGK_INLINE void v_tq1_0_to_f32(const agk_block_tq1_0 *x, v_dst *dst)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    const float d = v_half(x->d);
    for (int n = 0; n < 5; ++n) {
        v_out(dst + 32 * n, v_digits(v_bytes(x->qs), powers[n]), d);
        v_out(dst + 32 * n + 16, v_digits(v_bytes(x->qs + 16), powers[n]), d);
        v_out(dst + 160 + 16 * n, v_digits(v_bytes(x->qs + 32), powers[n]), d);
    }
    uint8_t last[16];
    for (int i = 0; i < 16; ++i) last[i] = (uint8_t)(x->qh[i % 4] * powers[i / 4]);
    v_out(dst + 240, v_digits(vld1q_u8(last), 1), d);
}

#include "kernels/vec/mul_mat_rows.h"

void agk_mm_bytes_rows_neon(int type, bool words, const void *src, void *out, int64_t n)
{
    (void)words;
#define AGK_ROW(TYPE, name) \
    case AGK_##TYPE: name##_to_f32_bytes(src, out, n); break;
    switch (type) {
        AGK_OF_ALL(AGK_ROW)
    default: break;
    }
}
