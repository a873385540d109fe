// Blocks of 256 elements in groups with scales of their own: q2_K to q6_K, q8_K.
#pragma once
#include "quantize_search.cuh"

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

DEV void put_q2_k(const float *x, char *y)
{
    AffineFit fits[16];
    float largest = 0.0f, deepest = 0.0f;
#pragma unroll 1
    for (int g = 0; g < 16; ++g) {
        fits[g] = fit_affine(16, 3, x + 16 * g, -0.5f, 0.1f, 15, true);
        largest = fits[g].scale > largest ? fits[g].scale : largest;
        deepest = fits[g].minimum > deepest ? fits[g].minimum : deepest;
    }
    const float up = largest > 0.0f ? 15.0f / largest : 0.0f, down = deepest > 0.0f ? 15.0f / deepest : 0.0f;
    put_half(y + 80, largest > 0.0f ? largest / 15.0f : 0.0f);
    put_half(y + 82, deepest > 0.0f ? deepest / 15.0f : 0.0f);
    const float d = half_to_float(*(u16 *)(y + 80)), m = half_to_float(*(u16 *)(y + 82));
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        y[i] = (char)((nearest(up * fits[i].scale) & 15) | (nearest(down * fits[i].minimum) & 15) << 4);
    }
#pragma unroll 1
    for (int i = 0; i < 64; ++i) {
        u32 byte = 0;
#pragma unroll 1
        for (int k = 0; k < 4; ++k) {
            const int e = i / 32 * 128 + i % 32 + 32 * k;
            const u32 scale = (u8)y[e / 16];
            const float step = d * (float)(scale & 15), minimum = m * (float)(scale >> 4);
            byte |= (u32)affine_code(x[e], step, minimum, fits[e / 16], 3) << 2 * k;
        }
        y[16 + i] = (char)byte;
    }
}

DEV void put_q45_k(bool five, const float *x, char *y)
{
    const int top = five ? 31 : 15;
    AffineFit fits[8];
    float scales[8], minimums[8], largest = 0.0f, deepest = 0.0f;
#pragma unroll 1
    for (int g = 0; g < 8; ++g) {
        fits[g] = fit_affine(32, top, x + 32 * g, five ? -0.5f : -1.0f, 0.1f, five ? 15 : 20, false);
        scales[g] = fits[g].scale;
        minimums[g] = fits[g].minimum;
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
            const int a = affine_code(x[32 * g + i], scales[g], minimums[g], fits[g], top);
            const int b = affine_code(x[32 * g + 32 + i], scales[g + 1], minimums[g + 1], fits[g + 1], top);
            qs[16 * g + i] = (char)((a & 15) | (b & 15) << 4);
            if (five) high[i] = (char)((u8)high[i] | (a >> 4) << g | (b >> 4) << (g + 1));
        }
    }
}

DEV void put_q4_k(const float *x, char *y) { put_q45_k(false, x, y); }
DEV void put_q5_k(const float *x, char *y) { put_q45_k(true, x, y); }

// agk_fit_levels_one_by_one for 16 elements and levels -4 .. 3, which are stored as codes 0 .. 7.
DEV float fit_q3(const float *x, u8 *codes)
{
    const float most = extreme(16, x);
#pragma unroll 1
    for (int i = 0; i < 16; ++i) codes[i] = 0;
    if (fabsf(most) < 1e-15f) return 0.0f;
    float product = 0.0f, square = 0.0f;
    const float inverse = -4.0f / most;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        const float w = x[i] * x[i];
        codes[i] = (u8)(clampi(nearest(inverse * x[i]), -4, 3) + 4);
        const float l = (float)(codes[i] - 4);
        product += w * x[i] * l;
        square += w * l * l;
    }
    bool moved = true;
#pragma unroll 1
    for (int round = 0; round < 5 && moved; ++round) {
        moved = false;
#pragma unroll 1
        for (int i = 0; i < 16; ++i) {
            const float w = x[i] * x[i], old = (float)(codes[i] - 4);
            float p = product - w * x[i] * old, s = square - w * old * old;
            if (!(p > 0.0f)) continue;
            const int l = clampi(nearest(x[i] * s / p), -4, 3);
            if (l == codes[i] - 4) continue;
            p += w * x[i] * (float)l;
            s += w * (float)l * (float)l;
            if (s > 0.0f && p * p * square > product * product * s) {
                codes[i] = (u8)(l + 4);
                product = p;
                square = s;
                moved = true;
            }
        }
    }
    return square > 0.0f ? product / square : 0.0f;
}

DEV void put_q3_k(const float *x, char *y)
{
    float scales[16];
    u8 searched[256];
#pragma unroll 1
    for (int g = 0; g < 16; ++g) scales[g] = fit_q3(x + 16 * g, searched + 16 * g);
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
            const float scale = d * (float)(codes[e / 16] - 32);
            const int code = scale == 0.0f ? searched[e] : clampi(nearest(x[e] / scale), -4, 3) + 4;
            byte |= (u32)(code & 3) << 2 * k;
            y[e % 32] = (char)((u8)y[e % 32] | code >> 2 << (e / 32));
        }
        y[32 + i] = (char)byte;
    }
}

DEV void put_q6_k(const float *x, char *y)
{
    float scales[16], best[16];
#pragma unroll 1
    for (int g = 0; g < 16; ++g) scales[g] = fit_levels(16, 32, x + 16 * g, &best[g]);
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
    for (int i = 0; i < 64; ++i) { // elements i % 32 + 32 k, k = 0 .. 3, of half i / 32 of the block
        const float *z = x + i / 32 * 128 + i % 32;
        const int group = i / 32 * 8 + i % 32 / 16;
        int code[4];
#pragma unroll 1
        for (int k = 0; k < 4; ++k) code[k] = level_code(z[32 * k], scales[group + 2 * k], best[group + 2 * k], 32);
        char *low = y + i / 32 * 64 + i % 32;
        low[0] = (char)((code[0] & 15) | (code[2] & 15) << 4);
        low[32] = (char)((code[1] & 15) | (code[3] & 15) << 4);
        y[128 + i] = (char)(code[0] >> 4 | code[1] >> 4 << 2 | code[2] >> 4 << 4 | code[3] >> 4 << 6);
    }
}
