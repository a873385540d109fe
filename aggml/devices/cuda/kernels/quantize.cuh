// From 32 or 256 floats to a block: every type that cpy, set_rows and add write.
//
// Step by step what native/formats/quant*.c does, sums from the first element to the last, and compiled without fused
// multiply-add, so that the bytes are the same. Not here: quantizers that take an importance matrix, which no op runs.
#pragma once
#include "common.cuh"

DEV int clampi(int x, int least, int most)
{
    return x < least ? least : x > most ? most : x;
}

// Halves to even; see agk_nearest.
DEV int nearest(float x)
{
    return (int)(__float_as_uint(x + 12582912.0f) & 0x7fffffu) - 0x400000;
}

DEV int code_below(float x, int top)
{
    if (!(x > 0.0f)) return 0;
    return x < (float)top ? (int)x : top;
}

DEV int round_i8(float x)
{
    if (!(x > -128.5f && x < 127.5f)) return 0;
    const int whole = (int)x;
    const float rest = x - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

DEV float extreme(int n, const float *x)
{
    float best = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    }
    return best;
}

DEV void put_half(char *p, float x)
{
    *(u16 *)p = float_to_half(x);
}

DEV float inverse_of(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

// --- blocks of 32: one loop over halves for those with nibbles

DEV void put_q4_5(i64 type, const float *x, char *y)
{
    const bool affine = type == Q4_1 || type == Q5_1, five = type == Q5_0 || type == Q5_1;
    const int top = five ? 31 : 15;
    float d, least = 0.0f, shift;
    if (affine) {
        float most = x[0];
        least = x[0];
#pragma unroll 1
        for (int i = 1; i < 32; ++i) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        d = (most - least) / (float)top;
        shift = 0.5f;
    } else {
        d = extreme(32, x) / (five ? -16.0f : -8.0f);
        shift = five ? 16.5f : 8.5f;
    }
    const float inverse = inverse_of(d);
    put_half(y, d);
    if (affine) put_half(y + 2, least);
    y += affine ? 4 : 2;
    u32 high = 0;
    char *qs = five ? y + 4 : y;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        const int a = code_below((x[i] - least) * inverse + shift, top);
        const int b = code_below((x[i + 16] - least) * inverse + shift, top);
        qs[i] = (char)((a & 15) | (b & 15) << 4);
        high |= (u32)(a >> 4) << i | (u32)(b >> 4) << (i + 16);
    }
    if (five) {
        *(u16 *)y = (u16)high;
        *(u16 *)(y + 2) = (u16)(high >> 16);
    }
}

DEV void put_q8(i64 type, const float *x, char *y)
{
    float largest = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    const float d = largest / 127.0f, inverse = inverse_of(d);
    int sum = 0;
    char *qs = y + (type == Q8_1 ? 4 : 2);
    put_half(y, d);
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
        const int code = round_i8(x[i] * inverse);
        qs[i] = (char)code;
        sum += code;
    }
    if (type == Q8_1) put_half(y + 2, (float)sum * d);
}

CONSTANT i8 iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
CONSTANT i8 fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The level nearest to x, the higher of two as near.
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

// The scale with the least error of those `trials` around that of the extreme; codes are those of the first.
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

// --- blocks of 256

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

DEV void put_q8_k(const float *x, char *y)
{
    const float most = extreme(256, x);
#pragma unroll 1
    for (int i = 0; i < 73; ++i) ((u32 *)y)[i] = 0;
    if (most == 0.0f) return;
    const float inverse = -127.0f / most;
    i16 *sums = (i16 *)(y + 260);
#pragma unroll 1
    for (int i = 0; i < 256; ++i) {
        const int code = clampi(nearest(inverse * x[i]), -128, 127);
        y[4 + i] = (char)code;
        sums[i / 16] = (i16)(sums[i / 16] + code);
    }
    *(float *)y = 1.0f / inverse;
}

DEV float squares(const float *x, int n)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
}

// agk_fit_affine for weights |x| (q2_K), or root mean square + |x| (q4_K, q5_K). Returns the scale.
DEV float fit_affine(int n, int top, const float *x, float first, float step_size, int steps, bool absolute,
                          float *minimum)
{
    const float base = absolute ? 0.0f : sqrtf(squares(x, n) / (float)n);
    float least = x[0], most = x[0], sum_w = base + fabsf(x[0]), sum_x = sum_w * x[0];
#pragma unroll 1
    for (int i = 1; i < n; ++i) {
        const float w = base + fabsf(x[i]);
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        sum_w += w;
        sum_x += w * x[i];
    }
    if (least > 0.0f) least = 0.0f;
    if (!(most > least)) {
        *minimum = -least;
        return 0.0f;
    }
    float inverse = (float)top / (most - least), d = 1.0f / inverse, error = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        const float difference = d * (float)clampi(nearest(inverse * (x[i] - least)), 0, top) + least - x[i];
        error += (base + fabsf(x[i])) * (absolute ? fabsf(difference) : difference * difference);
    }
#pragma unroll 1
    for (int step = 0; step <= steps; ++step) {
        float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
        inverse = (first + step_size * (float)step + (float)top) / (most - least);
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            const float l = (float)clampi(nearest(inverse * (x[i] - least)), 0, top), w = base + fabsf(x[i]);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x[i];
        }
        const float determinant = sum_w * sum_l2 - sum_l * sum_l;
        if (!(determinant > 0.0f)) continue;
        float trial_d = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        float trial_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if (trial_min > 0.0f) {
            trial_min = 0.0f;
            trial_d = sum_xl / sum_l2;
        }
        float trial_error = 0.0f;
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            const float l = (float)clampi(nearest(inverse * (x[i] - least)), 0, top);
            const float difference = trial_d * l + trial_min - x[i];
            trial_error += (base + fabsf(x[i])) * (absolute ? fabsf(difference) : difference * difference);
        }
        if (trial_error < error) {
            error = trial_error;
            d = trial_d;
            least = trial_min;
        }
    }
    *minimum = -least;
    return d;
}

// Codes for the scale and minimum as they are stored. A scale of 0 leaves those of the search: all such are 0 but where
// the stored scale vanishes, which fit_affine's own codes would fill; blocks of so small numbers are 0 here.
DEV int affine_code(float x, float d, float minimum, int top)
{
    return d == 0.0f ? 0 : clampi(nearest((x + minimum) / d), 0, top);
}

DEV void put_q2_k(const float *x, char *y)
{
    float scales[16], minimums[16], largest = 0.0f, deepest = 0.0f;
#pragma unroll 1
    for (int g = 0; g < 16; ++g) {
        scales[g] = fit_affine(16, 3, x + 16 * g, -0.5f, 0.1f, 15, true, &minimums[g]);
        largest = scales[g] > largest ? scales[g] : largest;
        deepest = minimums[g] > deepest ? minimums[g] : deepest;
    }
    const float up = largest > 0.0f ? 15.0f / largest : 0.0f, down = deepest > 0.0f ? 15.0f / deepest : 0.0f;
    put_half(y + 80, largest > 0.0f ? largest / 15.0f : 0.0f);
    put_half(y + 82, deepest > 0.0f ? deepest / 15.0f : 0.0f);
    const float d = half_to_float(*(u16 *)(y + 80)), m = half_to_float(*(u16 *)(y + 82));
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        y[i] = (char)((nearest(up * scales[i]) & 15) | (nearest(down * minimums[i]) & 15) << 4);
    }
#pragma unroll 1
    for (int i = 0; i < 64; ++i) {
        u32 byte = 0;
#pragma unroll 1
        for (int k = 0; k < 4; ++k) {
            const int e = i / 32 * 128 + i % 32 + 32 * k;
            const u32 scale = (u8)y[e / 16];
            byte |= (u32)affine_code(x[e], d * (float)(scale & 15), m * (float)(scale >> 4), 3) << 2 * k;
        }
        y[16 + i] = (char)byte;
    }
}

DEV void put_q45_k(bool five, const float *x, char *y)
{
    const int top = five ? 31 : 15;
    float scales[8], minimums[8], largest = 0.0f, deepest = 0.0f;
#pragma unroll 1
    for (int g = 0; g < 8; ++g) {
        scales[g] = fit_affine(32, top, x + 32 * g, five ? -0.5f : -1.0f, 0.1f, five ? 15 : 20, false, &minimums[g]);
        largest = scales[g] > largest ? scales[g] : largest;
        deepest = minimums[g] > deepest ? minimums[g] : deepest;
    }
    const float up = largest > 0.0f ? 63.0f / largest : 0.0f, down = deepest > 0.0f ? 63.0f / deepest : 0.0f;
    put_half(y, largest / 63.0f);
    put_half(y + 2, deepest / 63.0f);
    const float d = half_to_float(*(u16 *)y), m = half_to_float(*(u16 *)(y + 2));
    char *qs = y + (five ? 48 : 16), *high = y + 16;
    if (five) {
#pragma unroll 1
        for (int i = 0; i < 32; ++i) high[i] = 0;
    }
#pragma unroll 1
    for (int g = 0; g < 4; ++g) {
        const int s0 = min((int)(u8)nearest(up * scales[g]), 63), s1 = min((int)(u8)nearest(up * scales[g + 4]), 63);
        const int m0 = min((int)(u8)nearest(down * minimums[g]), 63);
        const int m1 = min((int)(u8)nearest(down * minimums[g + 4]), 63);
        y[4 + g] = (char)(s0 | s1 >> 4 << 6);
        y[8 + g] = (char)(m0 | m1 >> 4 << 6);
        y[12 + g] = (char)((s1 & 15) | (m1 & 15) << 4);
        scales[g] = d * (float)s0;
        scales[g + 4] = d * (float)s1;
        minimums[g] = m * (float)m0;
        minimums[g + 4] = m * (float)m1;
    }
#pragma unroll 1
    for (int g = 0; g < 8; g += 2) {
#pragma unroll 1
        for (int i = 0; i < 32; ++i) {
            const int a = affine_code(x[32 * g + i], scales[g], minimums[g], top);
            const int b = affine_code(x[32 * g + 32 + i], scales[g + 1], minimums[g + 1], top);
            qs[16 * g + i] = (char)((a & 15) | (b & 15) << 4);
            if (five) high[i] = (char)((u8)high[i] | (a >> 4) << g | (b >> 4) << (g + 1));
        }
    }
}

// agk_fit_levels for weights x^2.
DEV float fit_levels(int n, int top, const float *x)
{
    const float most = extreme(n, x);
    if (fabsf(most) < 1e-15f) return 0.0f;
    float d = 0.0f, gain = 0.0f;
#pragma unroll 1
    for (int k = 0; k < 19; ++k) { // 0 first, then -9 .. 9 without it
        const int step = k == 0 ? 0 : k < 10 ? k - 10 : k - 9;
        const float inverse = step == 0 ? -(float)top / most : -((float)top + 0.1f * (float)step) / most;
        float product = 0.0f, square = 0.0f;
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            const float w = x[i] * x[i], l = (float)clampi(nearest(inverse * x[i]), -top, top - 1);
            product += w * x[i] * l;
            square += w * l * l;
        }
        if (k == 0) {
            d = square != 0.0f ? product / square : 0.0f;
            gain = d * product;
        } else if (square > 0.0f && product * product > gain * square) {
            d = product / square;
            gain = d * product;
        }
    }
    return d;
}

// agk_fit_levels_one_by_one of 16 elements and levels -4 .. 3.
DEV float fit_q3(const float *x)
{
    const float most = extreme(16, x);
    if (fabsf(most) < 1e-15f) return 0.0f;
    signed char level[16];
    float product = 0.0f, square = 0.0f;
    const float inverse = -4.0f / most;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        const float w = x[i] * x[i];
        level[i] = (signed char)clampi(nearest(inverse * x[i]), -4, 3);
        const float l = (float)level[i];
        product += w * x[i] * l;
        square += w * l * l;
    }
    bool moved = true;
#pragma unroll 1
    for (int round = 0; round < 5 && moved; ++round) {
        moved = false;
#pragma unroll 1
        for (int i = 0; i < 16; ++i) {
            const float w = x[i] * x[i], old = (float)level[i];
            float p = product - w * x[i] * old, s = square - w * old * old;
            if (!(p > 0.0f)) continue;
            const int l = clampi(nearest(x[i] * s / p), -4, 3);
            if (l == level[i]) continue;
            p += w * x[i] * (float)l;
            s += w * (float)l * (float)l;
            if (s > 0.0f && p * p * square > product * product * s) {
                level[i] = (signed char)l;
                product = p;
                square = s;
                moved = true;
            }
        }
    }
    return square > 0.0f ? product / square : 0.0f;
}

DEV int level_code(float x, float d, int top)
{
    return d == 0.0f ? top : clampi(nearest(x / d), -top, top - 1) + top;
}

DEV void put_q3_k(const float *x, char *y)
{
    float scales[16];
#pragma unroll 1
    for (int g = 0; g < 16; ++g) scales[g] = fit_q3(x + 16 * g);
    const float most = extreme(16, scales);
#pragma unroll 1
    for (int i = 96; i < 110; ++i) y[i] = 0;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) y[i] = 0;
    float d = 0.0f;
    int codes[16];
#pragma unroll 1
    for (int g = 0; g < 16; ++g) codes[g] = 0;
    if (most != 0.0f) {
        const float inverse = -32.0f / most;
#pragma unroll 1
        for (int g = 0; g < 16; ++g) {
            codes[g] = clampi(nearest(inverse * scales[g]), -32, 31) + 32;
            y[96 + g % 8] = (char)((u8)y[96 + g % 8] | (codes[g] & 15) << (g / 8 * 4));
            y[104 + g % 4] = (char)((u8)y[104 + g % 4] | codes[g] >> 4 << (g / 4 * 2));
        }
        put_half(y + 108, 1.0f / inverse);
        d = half_to_float(*(u16 *)(y + 108));
    }
#pragma unroll 1
    for (int i = 0; i < 64; ++i) {
        u32 byte = 0;
#pragma unroll 1
        for (int k = 0; k < 4; ++k) {
            const int e = i / 32 * 128 + i % 32 + 32 * k;
            const int code = level_code(x[e], d * (float)(codes[e / 16] - 32), 4);
            byte |= (u32)(code & 3) << 2 * k;
            y[e % 32] = (char)((u8)y[e % 32] | code >> 2 << (e / 32));
        }
        y[32 + i] = (char)byte;
    }
}

DEV void put_q6_k(const float *x, char *y)
{
    float scales[16];
#pragma unroll 1
    for (int g = 0; g < 16; ++g) scales[g] = fit_levels(16, 32, x + 16 * g);
    const float most = extreme(16, scales);
    if (fabsf(most) < 1e-15f) {
#pragma unroll 1
        for (int i = 0; i < 210; ++i) y[i] = 0;
        return;
    }
    const float inverse = -128.0f / most;
    put_half(y + 208, 1.0f / inverse);
    const float d = half_to_float(*(u16 *)(y + 208));
#pragma unroll 1
    for (int g = 0; g < 16; ++g) {
        const int scale = clampi(nearest(inverse * scales[g]), -128, 127);
        y[192 + g] = (char)scale;
        scales[g] = d * (float)scale;
    }
#pragma unroll 1
    for (int i = 0; i < 64; ++i) { // elements i % 32 + 32 k of half i / 32
        const float *z = x + i / 32 * 128 + i % 32;
        const float *scale = scales + i / 32 * 8 + i % 32 / 16;
        int code[4];
#pragma unroll 1
        for (int k = 0; k < 4; ++k) code[k] = level_code(z[32 * k], scale[2 * k], 32);
        char *low = y + i / 32 * 64 + i % 32;
        low[0] = (char)((code[0] & 15) | (code[2] & 15) << 4);
        low[32] = (char)((code[1] & 15) | (code[3] & 15) << 4);
        y[128 + i] = (char)(code[0] >> 4 | code[1] >> 4 << 2 | code[2] >> 4 << 4 | code[3] >> 4 << 6);
    }
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

// A block of a quantized type.
template <int T> DEV void put_block(const float *x, char *y)
{
    if (T == Q4_0 || T == Q4_1 || T == Q5_0 || T == Q5_1) put_q4_5(T, x, y);
    if (T == Q8_0 || T == Q8_1) put_q8(T, x, y);
    if (T == IQ4_NL) put_iq4_nl(x, y);
    if (T == MXFP4) put_mxfp4(x, y);
    if (T == NVFP4) put_nvfp4(x, y);
    if (T == Q1_0) put_q1_0(x, y);
    if (T == Q2_0) put_q2_0(x, y);
    if (T == TQ1_0) put_tq1_0(x, y);
    if (T == TQ2_0) put_tq2_0(x, y);
    if (T == Q2_K) put_q2_k(x, y);
    if (T == Q3_K) put_q3_k(x, y);
    if (T == Q4_K || T == Q5_K) put_q45_k(T == Q5_K, x, y);
    if (T == Q6_K) put_q6_k(x, y);
    if (T == Q8_K) put_q8_k(x, y);
    if (T == IQ4_XS) put_iq4_xs(x, y);
}
