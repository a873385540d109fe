/* Rows of quantized blocks to f32, NEON: all types but q4_0 and q8_0 (types.c), tq1_0, q8_1 and q8_K (scalar alone). */
#include "bytes.h"
#include "math.h"

/* VF of 16 signed bytes, from `first` on. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    const int8x16_t s = vreinterpretq_s8_u8(q);
    const int16x8_t x = first < 8 ? vmovl_s8(vget_low_s8(s)) : vmovl_s8(vget_high_s8(s));
    return vcvtq_f32_s32(first % 8 == 0 ? vmovl_s16(vget_low_s16(x)) : vmovl_s16(vget_high_s16(x)));
}

#define V_NAME(kernel) agk_##kernel##_neon
#include "kernels/vec/dequant_32.h"
#include "dequant_iq.h"
#include "kernels/vec/dequant_k.h"

V_ROWS_32
V_ROWS_K
V_ROWS_IQ
