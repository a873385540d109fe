/* What formats/types.c and formats/quant*.c share: single 16-bit floats, and the row functions of the table.
 *
 * Not here: row conversions that have variants, as most of those to f32 (kernel_types.h). */
#ifndef AGK_SCALAR_QUANT_H
#define AGK_SCALAR_QUANT_H

#include "blocks.h"
#include "blocks_iq.h"
#include "table/kernel_types.h"

/* A NaN keeps its payload and becomes quiet; all else is exact. */
float agk_f16_to_float(uint16_t h);
/* To nearest, ties to even; every NaN becomes sign | 0x7e00. */
uint16_t agk_f16_from_float(float value);

/* convert.c. Toward zero; what does not fit saturates, NaN is 0. */
agk_from_float_fn agk_f32_to_i32;

/* Rounds down to a code 0..top; what is not a number becomes 0. */
static inline uint8_t agk_code(float x, int top)
{
    if (!(x > 0.0f)) return 0;
    return x < (float)top ? (uint8_t)x : (uint8_t)top;
}

/* The same of n (32 at most, a multiple of 4) numbers x * inverse + shift: minimum and maximum are instructions. */
static inline void agk_codes(int n, const float *x, float inverse, float shift, int top, uint8_t *codes)
{
    int32_t whole[32];
    const float most = (float)top;
    for (int i = 0; i < n; ++i) {
        float v = x[i] * inverse + shift;
        v = v > 0.0f ? v : 0.0f;
        v = v < most ? v : most;
        whole[i] = (int32_t)v;
    }
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)whole[i];
}

/* Halves away from zero; what does not fit (from infinities, NaN or a subnormal scale) becomes 0. */
static inline int8_t agk_round_i8(float x)
{
    if (!(x > -128.5f && x < 127.5f)) return 0;
    const int whole = (int)x;
    const float rest = x - (float)whole;
    return (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

static inline float agk_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Half of 2^(e - 127). */
static inline float agk_half_of_e8m0(uint8_t e)
{
    return agk_float_of(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* Half of an e4m3 without sign: the high bit is ignored, 0x7f stands for 0. */
static inline float agk_half_of_e4m3(uint8_t code)
{
    const uint32_t exponent = code >> 3 & 15, fraction = code & 7;
    if (code == 0x7f) return 0.0f;
    if (exponent == 0) return (float)fraction * 0x1p-10f;
    return agk_float_of((exponent + 119) << 23 | fraction << 20);
}

/* quant.c, quant_legacy.c */
agk_from_float_fn agk_f32_to_q4_0, agk_f32_to_q4_1, agk_f32_to_q5_0, agk_f32_to_q5_1, agk_f32_to_q8_1;
agk_quantize_fn agk_quantize_q4_0, agk_quantize_q4_1, agk_quantize_q5_0, agk_quantize_q5_1;
agk_to_float_fn agk_q8_1_to_f32;

/* quant_k.c */
agk_from_float_fn agk_f32_to_q2_k, agk_f32_to_q3_k, agk_f32_to_q4_k, agk_f32_to_q5_k, agk_f32_to_q6_k, agk_f32_to_q8_k;
agk_quantize_fn agk_quantize_q2_k, agk_quantize_q3_k, agk_quantize_q4_k, agk_quantize_q5_k, agk_quantize_q6_k;
agk_to_float_fn agk_q8_k_to_f32;

/* quant_ternary.c */
agk_from_float_fn agk_f32_to_tq1_0, agk_f32_to_tq2_0, agk_f32_to_q1_0, agk_f32_to_q2_0;
agk_to_float_fn agk_tq1_0_to_f32;

/* quant_fp4.c */
agk_from_float_fn agk_f32_to_mxfp4, agk_f32_to_nvfp4;

/* quant_iq4.c */
agk_from_float_fn agk_f32_to_iq4_nl, agk_f32_to_iq4_xs;
agk_quantize_fn agk_quantize_iq4_nl, agk_quantize_iq4_xs;

/* quant_iq2.c, quant_iq3.c, quant_iq1.c; iq2_xxs, iq2_xs and iq1_s need an importance matrix */
agk_quantize_fn agk_quantize_iq2_xxs, agk_quantize_iq2_xs, agk_quantize_iq2_s;
agk_quantize_fn agk_quantize_iq3_xxs, agk_quantize_iq3_s;
agk_quantize_fn agk_quantize_iq1_s, agk_quantize_iq1_m;

#endif
