/* The table of element types, and the exact conversions between f32 and the 16-bit floats.
 *
 * Not here: quantized blocks (quant*.c), vectorised conversions (kernels/avx2/types.c, kernels/avx512/types.c). */
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

static void f32_to_float(const void *src, float *dst, int64_t n)
{
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void f32_from_float(const float *src, void *dst, int64_t n)
{
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *src);
}

static const agk_type_traits traits[AGK_TYPE_COUNT] = {
    [AGK_F32] = {"f32", 1, 4, f32_to_float, f32_from_float, NULL, AGK_F32, false},
    [AGK_F16] = {"f16", 1, 2, agk_f16_to_f32_scalar, agk_f32_to_f16_scalar, NULL, AGK_F16, false},
    [AGK_Q4_0] = {"q4_0", 32, 18, agk_q4_0_to_f32_scalar, agk_f32_to_q4_0, agk_quantize_q4_0, AGK_Q8_0, false},
    [AGK_Q4_1] = {"q4_1", 32, 20, agk_q4_1_to_f32_scalar, agk_f32_to_q4_1, agk_quantize_q4_1, AGK_Q8_1, false},
    [AGK_Q5_0] = {"q5_0", 32, 22, agk_q5_0_to_f32_scalar, agk_f32_to_q5_0, agk_quantize_q5_0, AGK_Q8_0, false},
    [AGK_Q5_1] = {"q5_1", 32, 24, agk_q5_1_to_f32_scalar, agk_f32_to_q5_1, agk_quantize_q5_1, AGK_Q8_1, false},
    [AGK_Q8_0] = {"q8_0", 32, 34, agk_q8_0_to_f32_scalar, agk_f32_to_q8_0_scalar, NULL, AGK_Q8_0, false},
    [AGK_Q8_1] = {"q8_1", 32, 36, agk_q8_1_to_f32, agk_f32_to_q8_1, NULL, AGK_NONE, false},
    [AGK_Q2_K] = {"q2_K", 256, 84, agk_q2_k_to_f32_scalar, agk_f32_to_q2_k, agk_quantize_q2_k, AGK_Q8_K, false},
    [AGK_Q3_K] = {"q3_K", 256, 110, agk_q3_k_to_f32_scalar, agk_f32_to_q3_k, agk_quantize_q3_k, AGK_Q8_K, false},
    [AGK_Q4_K] = {"q4_K", 256, 144, agk_q4_k_to_f32_scalar, agk_f32_to_q4_k, agk_quantize_q4_k, AGK_Q8_K, false},
    [AGK_Q5_K] = {"q5_K", 256, 176, agk_q5_k_to_f32_scalar, agk_f32_to_q5_k, agk_quantize_q5_k, AGK_Q8_K, false},
    [AGK_Q6_K] = {"q6_K", 256, 210, agk_q6_k_to_f32_scalar, agk_f32_to_q6_k, agk_quantize_q6_k, AGK_Q8_K, false},
    [AGK_Q8_K] = {"q8_K", 256, 292, agk_q8_k_to_f32, agk_f32_to_q8_k, NULL, AGK_NONE, false},
    [AGK_IQ2_XXS] = {"iq2_xxs", 256, 66, agk_iq2_xxs_to_f32_scalar, NULL, agk_quantize_iq2_xxs, AGK_Q8_K, true},
    [AGK_IQ2_XS] = {"iq2_xs", 256, 74, agk_iq2_xs_to_f32_scalar, NULL, agk_quantize_iq2_xs, AGK_Q8_K, true},
    [AGK_IQ3_XXS] = {"iq3_xxs", 256, 98, agk_iq3_xxs_to_f32_scalar, NULL, agk_quantize_iq3_xxs, AGK_Q8_K, false},
    [AGK_IQ1_S] = {"iq1_s", 256, 50, agk_iq1_s_to_f32_scalar, NULL, agk_quantize_iq1_s, AGK_Q8_K, true},
    [AGK_IQ4_NL] = {"iq4_nl", 32, 18, agk_iq4_nl_to_f32_scalar, agk_f32_to_iq4_nl, agk_quantize_iq4_nl, AGK_Q8_0,
                    false},
    [AGK_IQ3_S] = {"iq3_s", 256, 110, agk_iq3_s_to_f32_scalar, NULL, agk_quantize_iq3_s, AGK_Q8_K, false},
    [AGK_IQ2_S] = {"iq2_s", 256, 82, agk_iq2_s_to_f32_scalar, NULL, agk_quantize_iq2_s, AGK_Q8_K, false},
    [AGK_IQ4_XS] = {"iq4_xs", 256, 136, agk_iq4_xs_to_f32_scalar, agk_f32_to_iq4_xs, agk_quantize_iq4_xs, AGK_Q8_K,
                    false},
    [AGK_I8] = {"i8", 1, 1, NULL, NULL, NULL, AGK_NONE, false},
    [AGK_I16] = {"i16", 1, 2, NULL, NULL, NULL, AGK_NONE, false},
    [AGK_I32] = {"i32", 1, 4, NULL, NULL, NULL, AGK_NONE, false},
    [AGK_I64] = {"i64", 1, 8, NULL, NULL, NULL, AGK_NONE, false},
    [AGK_F64] = {"f64", 1, 8, NULL, NULL, NULL, AGK_NONE, false},
    [AGK_IQ1_M] = {"iq1_m", 256, 56, agk_iq1_m_to_f32_scalar, NULL, agk_quantize_iq1_m, AGK_Q8_K, false},
    [AGK_BF16] = {"bf16", 1, 2, agk_bf16_to_f32_scalar, agk_f32_to_bf16_scalar, NULL, AGK_BF16, false},
    [AGK_TQ1_0] = {"tq1_0", 256, 54, agk_tq1_0_to_f32, agk_f32_to_tq1_0, NULL, AGK_Q8_K, false},
    [AGK_TQ2_0] = {"tq2_0", 256, 66, agk_tq2_0_to_f32_scalar, agk_f32_to_tq2_0, NULL, AGK_Q8_K, false},
    [AGK_MXFP4] = {"mxfp4", 32, 17, agk_mxfp4_to_f32_scalar, agk_f32_to_mxfp4, NULL, AGK_Q8_0, false},
    [AGK_NVFP4] = {"nvfp4", 64, 36, agk_nvfp4_to_f32_scalar, agk_f32_to_nvfp4, NULL, AGK_Q8_0, false},
    [AGK_Q1_0] = {"q1_0", 128, 18, agk_q1_0_to_f32_scalar, agk_f32_to_q1_0, NULL, AGK_Q8_0, false},
    [AGK_Q2_0] = {"q2_0", 64, 18, agk_q2_0_to_f32_scalar, agk_f32_to_q2_0, NULL, AGK_Q8_0, false},
};

static const agk_type_traits unknown = {NULL, 1, 0, NULL, NULL, NULL, AGK_NONE, false};

const agk_type_traits *agk_traits(int type)
{
    return type >= 0 && type < AGK_TYPE_COUNT && traits[type].name != NULL ? &traits[type] : &unknown;
}

double agk_write_ns(int type)
{
    const agk_type_traits *t = agk_traits(type);
    if (t->blck_size == 1) return 0.3;
    if (t->blck_size == 256 && t->quantize != NULL) return 100.0;
    return type == AGK_MXFP4 || type == AGK_NVFP4 || type == AGK_IQ4_NL ? 15.0 : 2.0;
}
