// Blocks of 256 elements in groups with scales of 4 to 8 bits: q2_K to q6_K, iq4_xs.
#pragma once
#include "quant_words.cuh"

DEV void scale_and_min(const char *scales, int s, float *scale, float *minimum)
{
    if (s < 4) {
        *scale = (float)(byte_at(scales + s) & 63);
        *minimum = (float)(byte_at(scales + s + 4) & 63);
    } else {
        *scale = (float)((byte_at(scales + s + 4) & 15) | byte_at(scales + s - 4) >> 6 << 4);
        *minimum = (float)(byte_at(scales + s + 4) >> 4 | byte_at(scales + s) >> 6 << 4);
    }
}

DEV int scale_q3(const char *scales, int g)
{
    const u32 low = g < 8 ? byte_at(scales + g) & 15 : byte_at(scales + g - 8) >> 4;
    return (int)(low | (byte_at(scales + 8 + g % 4) >> (g / 4 * 2) & 3) << 4) - 32;
}

template <int T, bool WHOLE> DEV void unpack_q2_q3(const char *p, int s, Group &o)
{
    const char *at = p + (T == Q2_K ? 16 : 32) + s / 4 * 32;
    const int shift = s % 4 * 2;
    u32 low[8], high[8];
    if (T == Q3_K) {
        words8<WHOLE>(at, low);
        words8<WHOLE>(p, high);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const u32 two = (T == Q2_K ? word4(at + 4 * k) : low[k]) >> shift & 0x03030303u;
        o.q[k] = T == Q2_K ? (int)two : minus4(two | (high[k] >> s & 0x01010101u) << 2, 0x04040404u);
    }
    const float whole = f16_at(p + (T == Q2_K ? 80 : 108)), minimum = T == Q2_K ? f16_at(p + 82) : 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (T == Q2_K) {
            const u32 scale = byte_at(p + 2 * s + h);
            o.d[h] = whole * (float)(scale & 15);
            o.m[h] = -minimum * (float)(scale >> 4);
        } else {
            o.d[h] = whole * (float)scale_q3(p + 96, 2 * s + h);
        }
    }
}

template <int T> DEV void unpack_q4_q5(const char *p, int s, Group &o)
{
    float scale, minimum;
    scale_and_min(p + 4, s, &scale, &minimum);
    const float d = f16_at(p) * scale;
    o.m[0] = o.m[1] = -f16_at(p + 2) * minimum;
    const char *at = p + (T == Q4_K ? 16 : 48) + s / 2 * 32;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        u32 v = word4(at + 4 * k) >> (s % 2 * 4) & 0x0f0f0f0fu;
        if (T == Q5_K) v |= (word4(p + 16 + 4 * k) >> s & 0x01010101u) << 4;
        o.q[k] = (int)v;
    }
    scale_all(o, d);
}

UNPACK(q2_k) { unpack_q2_q3<Q2_K, WHOLE>(p, s, o); }
UNPACK(q3_k) { unpack_q2_q3<Q3_K, WHOLE>(p, s, o); }
UNPACK(q4_k) { unpack_q4_q5<Q4_K>(p, s, o); }
UNPACK(q5_k) { unpack_q4_q5<Q5_K>(p, s, o); }

UNPACK(q6_k)
{
    u32 low[8], high[8];
    words8<WHOLE>(p + s / 4 * 64 + s % 2 * 32, low);
    words8<WHOLE>(p + 128 + s / 4 * 32, high);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const u32 v = low[k] >> (s % 4 / 2 * 4) & 0x0f0f0f0fu;
        o.q[k] = minus4(v | (high[k] >> (s % 4 * 2) & 0x03030303u) << 4, 0x20202020u);
    }
    const float whole = f16_at(p + 208);
    o.d[0] = whole * (float)(i8)byte_at(p + 192 + 2 * s);
    o.d[1] = whole * (float)(i8)byte_at(p + 193 + 2 * s);
}

UNPACK(iq4_xs)
{
    const u32 low = byte_at(p + 4 + s / 2) >> (s % 2 * 4) & 15, high = half_at(p + 2) >> (2 * s) & 3;
    const float d = f16_at(p) * (float)((int)(low | high << 4) - 32);
#pragma unroll
    for (int k = 0; k < 4; ++k) lookup_iq4(word4(p + 8 + 16 * s + 4 * k), &o.q[k], &o.q[k + 4]);
    scale_all(o, d);
}
