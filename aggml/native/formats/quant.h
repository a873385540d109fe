/* Shared by the files of formats/: single 16-bit floats, and the row functions of the table.
 *
 * Not here: row conversions that have variants, which are most of those to f32 (table/kernel_types.h). */
#ifndef AGK_SCALAR_QUANT_H
#define AGK_SCALAR_QUANT_H

#include "blocks.h"
#include "blocks_iq.h"
#include "table/kernel_types.h"

/* A NaN keeps its payload and becomes quiet; every other conversion is exact. */
float agk_f16_to_float(uint16_t h);
/* To nearest, ties to even; every NaN becomes sign | 0x7e00. */
uint16_t agk_f16_from_float(float value);

/* convert.c. Toward zero; numbers that do not fit saturate, NaN is 0. */
agk_from_float_fn agk_f32_to_i32;

/* Rounds n (32 at most, a multiple of 4) numbers x * inverse + shift down to codes 0..top; NaN becomes 0. Written so
 * that minimum and maximum are single instructions. */
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

/* Halves away from zero. Numbers that do not fit (from infinities, NaN or a subnormal scale) become 0. */
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

/* Scale g of the 16 in a block of q3_K, six bits: four in the low nibbles of the first 8 bytes (then in the high
 * nibbles), two in the last 4 bytes. */
static inline int agk_scale_q3_k(const uint8_t *scales, int g)
{
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    return (low | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
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

/* The functions of the types that are the same on all processors: agk_<symbol>_to_f32, agk_f32_to_<symbol>,
 * agk_quantize_<symbol>, as types.def says. */
#define READS_ONE(symbol) agk_to_float_fn agk_##symbol##_to_f32;
#define READS_VARIANTS(symbol)
#define READS_COPY(symbol)
#define READS_NO(symbol)
#define WRITES_ONE(symbol) agk_from_float_fn agk_f32_to_##symbol;
#define WRITES_VARIANTS(symbol)
#define WRITES_COPY(symbol)
#define WRITES_NO(symbol)
#define FITS_FIT(symbol) agk_quantize_fn agk_quantize_##symbol;
#define FITS_IMATRIX(symbol) agk_quantize_fn agk_quantize_##symbol;
#define FITS_NO(symbol)
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, bytes, alignment, group, dot, reads, writes, fits, ...) \
    READS_##reads(symbol) WRITES_##writes(symbol) FITS_##fits(symbol)
#include "table/types.def"
#undef READS_ONE
#undef READS_VARIANTS
#undef READS_COPY
#undef READS_NO
#undef WRITES_ONE
#undef WRITES_VARIANTS
#undef WRITES_COPY
#undef WRITES_NO
#undef FITS_FIT
#undef FITS_IMATRIX
#undef FITS_NO

#endif
