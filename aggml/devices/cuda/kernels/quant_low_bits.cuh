// Types of few bits, and those whose scales are floats of 8 bits: ternary, 1 and 2 bits, nvfp4.
#pragma once
#include "quant_words.cuh"

DEV float half_of_e4m3(u32 code)
{
    const u32 exponent = code >> 3 & 15, fraction = code & 7;
    if (code == 0x7f) return 0.0f;
    if (exponent == 0) return (float)fraction * 0.0009765625f;
    return __uint_as_float((exponent + 119) << 23 | fraction << 20);
}

// One base-3 digit of each of four bytes, minus 1. Multiplying by `power`, a power of 3, selects the digit.
DEV int digits(u32 bytes, u32 power)
{
    u32 even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu, odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    even = even * 3 >> 8 & 0x00030003u;
    odd = odd * 3 >> 8 & 0x00030003u;
    return minus4(even | odd << 8, 0x01010101u);
}

UNPACK(nvfp4)
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const char *at = p + 4 + 8 * (2 * s + h);
        o.d[h] = half_of_e4m3(byte_at(p + 2 * s + h));
        lookup_fp4(word4(at), &o.q[4 * h], &o.q[4 * h + 2]);
        lookup_fp4(word4(at + 4), &o.q[4 * h + 1], &o.q[4 * h + 3]);
    }
}

UNPACK(q1_0)
{
    const u32 bits = word2(p + 2 + 4 * s);
    scale_all(o, f16_at(p));
#pragma unroll
    for (int k = 0; k < 8; ++k) o.q[k] = minus4(spread1(bits >> 4 * k) << 1, 0x01010101u);
}

UNPACK(q2_0)
{
    scale_all(o, f16_at(p));
#pragma unroll
    for (int k = 0; k < 8; ++k) o.q[k] = minus4(spread2(byte_at(p + 2 + 8 * s + k)), 0x01010101u);
}

UNPACK(tq2_0)
{
    scale_all(o, f16_at(p + 64));
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        o.q[k] = minus4(word2(p + s / 4 * 32 + 4 * k) >> (s % 4 * 2) & 0x03030303u, 0x01010101u);
    }
}

UNPACK(tq1_0)
{
    scale_all(o, f16_at(p + 52));
    const u32 power[5] = {1, 3, 9, 27, 81};
    if (s < 5) {
        const u32 up = s == 0 ? 1 : s == 1 ? 3 : s == 2 ? 9 : s == 3 ? 27 : 81;
#pragma unroll
        for (int k = 0; k < 8; ++k) o.q[k] = digits(word2(p + 4 * k), up);
    } else if (s < 7) {
        const u32 up = s == 5 ? 1 : 9;
#pragma unroll
        for (int k = 0; k < 8; ++k) o.q[k] = digits(word2(p + 32 + 4 * (k % 4)), k < 4 ? up : 3 * up);
    } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            o.q[k] = k < 4 ? digits(word2(p + 32 + 4 * k), 81) : digits(word2(p + 48), power[k % 4]);
        }
    }
}
