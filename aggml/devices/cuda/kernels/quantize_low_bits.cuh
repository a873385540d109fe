// Types whose codes are levels of a table, ternary, or of 1 or 2 bits.
#pragma once
#include "quantize_search.cuh"

CONSTANT i8 iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
CONSTANT i8 fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The level nearest to x; of two that are equally near, the higher one.
DEV int nearest_iq4(float x)
{
    int low = 0, high = 15;
    if (!(x > -127.0f)) return 0;
    if (x >= 113.0f) return 15;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (x < (float)iq4_levels[middle])
            high = middle;
        else
            low = middle;
    }
    return x - (float)iq4_levels[low] < (float)iq4_levels[high] - x ? low : high;
}

DEV void sums_iq4(const float *x, const float *weight, float inverse, float *product, float *square)
{
    *product = *square = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
        const float q = (float)iq4_levels[nearest_iq4(inverse * x[i])], w = weight != 0 ? weight[i] : x[i] * x[i];
        *product += w * q * x[i];
        *square += w * q * q;
    }
}

// The scale with the least error: trials go up to `trials` steps around the scale of the extreme. Codes are computed
// with *first_inverse, the inverse of the first scale.
DEV float fit_iq4(const float *x, int trials, float *first_inverse)
{
    const float most = extreme(32, x), first = -127.0f;
    *first_inverse = 0.0f;
    if (fabsf(most) < 1e-15f) return 0.0f;
    float product, square;
    *first_inverse = 1.0f / (trials > 0 ? -most / first : most / first);
    sums_iq4(x, 0, *first_inverse, &product, &square);
    float d = product / square, gain = d * product;
#pragma unroll 1
    for (int step = -trials; step <= trials && trials > 0; ++step) {
        sums_iq4(x, 0, ((float)step + first) / most, &product, &square);
        if (square > 0.0f && product * product > gain * square) {
            d = product / square;
            gain = d * product;
        }
    }
    return d;
}

DEV void put_iq4_codes(const float *x, float inverse, char *qs)
{
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        qs[i] = (char)(nearest_iq4(inverse * x[i]) | nearest_iq4(inverse * x[i + 16]) << 4);
    }
}

DEV void put_iq4_nl(const float *x, char *y)
{
    float inverse;
    put_half(y, fit_iq4(x, 0, &inverse));
    put_iq4_codes(x, inverse, y + 2);
}

DEV int nearest_fp4(float x, float d)
{
    int best = 0;
    float least = fabsf((float)fp4_levels[0] * d - x);
#pragma unroll 1
    for (int i = 1; i < 16; ++i) {
        const float error = fabsf((float)fp4_levels[i] * d - x);
        if (error < least) {
            least = error;
            best = i;
        }
    }
    return best;
}

DEV void put_fp4_codes(int n, const float *x, float d, char *qs)
{
#pragma unroll 1
    for (int i = 0; i < n / 2; ++i) qs[i] = (char)(nearest_fp4(x[i], d) | nearest_fp4(x[i + n / 2], d) << 4);
}

DEV void put_mxfp4(const float *x, char *y)
{
    const float largest = fabsf(extreme(32, x));
    const u32 e = largest > 0.0f && largest < INF ? (u32)((int)floorf(log2f(largest)) - 2 + 127) & 255 : 0;
    *y = (char)e;
    put_fp4_codes(32, x, __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23), y + 1);
}

DEV u32 e4m3_of(float x)
{
    if (!(x > 0.0f)) return 0;
    if (x >= 448.0f) return 0x7e;
    if (x < 0.015625f) {
        const int fraction = (int)(x * 512.0f + 0.5f);
        return (u32)(fraction < 7 ? fraction : 7);
    }
    const u32 code = (__float_as_uint(x) - (120u << 23) + (1u << 19)) >> 20;
    return code < 0x7e ? code : 0x7e;
}

DEV void put_nvfp4(const float *x, char *y)
{
#pragma unroll 1
    for (int g = 0; g < 4; ++g) {
        const u32 code = e4m3_of(fabsf(extreme(16, x + 16 * g)) / 6.0f), exponent = code >> 3 & 15, fraction = code & 7;
        y[g] = (char)code;
        const float half = exponent == 0 ? (float)fraction * 0.0009765625f
                                         : __uint_as_float((exponent + 119) << 23 | fraction << 20);
        put_fp4_codes(16, x + 16 * g, half, y + 4 + 8 * g);
    }
}

DEV int ternary(float x, float inverse)
{
    return clampi(round_i8(x * inverse), -1, 1) + 1;
}

DEV void put_q1_0(const float *x, char *y)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 128; i += 8) {
        u32 bits = 0;
#pragma unroll 1
        for (int k = 0; k < 8; ++k) {
            sum += fabsf(x[i + k]);
            bits |= (u32)(x[i + k] >= 0.0f) << k;
        }
        y[2 + i / 8] = (char)bits;
    }
    put_half(y, sum / 128.0f);
}

DEV void put_q2_0(const float *x, char *y)
{
    const float d = fabsf(extreme(64, x)), inverse = inverse_of(d);
    put_half(y, d);
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        u32 byte = 0;
#pragma unroll 1
        for (int k = 0; k < 4; ++k) byte |= (u32)ternary(x[4 * i + k], inverse) << 2 * k;
        y[2 + i] = (char)byte;
    }
}

DEV void put_tq2_0(const float *x, char *y)
{
    const float d = fabsf(extreme(256, x)), inverse = inverse_of(d);
    put_half(y + 64, d);
#pragma unroll 1
    for (int i = 0; i < 64; ++i) {
        u32 byte = 0;
#pragma unroll 1
        for (int k = 0; k < 4; ++k) byte |= (u32)ternary(x[i / 32 * 128 + i % 32 + 32 * k], inverse) << 2 * k;
        y[i] = (char)byte;
    }
}

DEV void put_digits(int n_bytes, int n_digits, const float *x, float inverse, char *out)
{
#pragma unroll 1
    for (int i = 0; i < n_bytes; ++i) {
        int value = 0;
#pragma unroll 1
        for (int k = 0; k < 5; ++k) value = 3 * value + (k < n_digits ? ternary(x[i + k * n_bytes], inverse) : 0);
        out[i] = (char)((value * 256 + 242) / 243);
    }
}

DEV void put_tq1_0(const float *x, char *y)
{
    const float d = fabsf(extreme(256, x)), inverse = inverse_of(d);
    put_half(y + 52, d);
    put_digits(32, 5, x, inverse, y);
    put_digits(16, 5, x + 160, inverse, y + 32);
    put_digits(4, 4, x + 240, inverse, y + 48);
}

DEV void put_iq4_xs(const float *x, char *y)
{
    float scales[8], unused;
#pragma unroll 1
    for (int g = 0; g < 8; ++g) scales[g] = fit_iq4(x + 32 * g, 7, &unused);
    const float d = -extreme(8, scales) / 32.0f, inverse = inverse_of(d);
    u32 high = 0, low = 0;
    put_half(y, d);
#pragma unroll 1
    for (int g = 0; g < 8; ++g) {
        const int scale = clampi(nearest(inverse * scales[g]), -32, 31);
        put_iq4_codes(x + 32 * g, inverse_of(d * (float)scale), y + 8 + 16 * g);
        low |= (u32)((scale + 32) & 15) << 4 * g;
        high |= (u32)((scale + 32) >> 4) << 2 * g;
    }
    *(u16 *)(y + 2) = (u16)high;
    *(u32 *)(y + 4) = low;
}
