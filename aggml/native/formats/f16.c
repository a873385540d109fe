/* The exact conversions between f32 and the 16-bit floats, in plain C.
 *
 * Not here: quantized blocks (quant*.c), which type has which conversion (types.c), vectors (kernels/<isa>/). */
#include "table/kernel_types.h"
#include "quant.h"

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float agk_f16_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24, exact in f32 */
        return float_of(sign | bits_of((float)fraction * 0x1p-24f));
    }
    if (exponent == 0x1f) { /* a NaN keeps its payload and becomes quiet */
        return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0));
    }
    return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint16_t agk_f16_from_float(float value)
{
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u; /* to nearest, ties to even */
    return (uint16_t)(sign | ((magnitude + 0xfffu + odd - (112u << 23)) >> 13));
}

void agk_f16_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; ++i) dst[i] = agk_f16_to_float(x[i]);
}

void agk_f32_to_f16_scalar(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; ++i) y[i] = agk_f16_from_float(src[i]);
}

void agk_bf16_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; ++i) dst[i] = float_of((uint32_t)x[i] << 16);
}

void agk_f32_to_bf16_scalar(const float *src, void *dst, int64_t n)
{
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = bits_of(src[i]);
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        y[i] = (uint16_t)(nan ? (bits >> 16) | 0x40u : rounded);
    }
}
