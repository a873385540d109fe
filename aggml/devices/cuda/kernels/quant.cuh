// Every quantized type in one form: 32 consecutive elements as int8 codes and, for each half, x = d * q + m.
//
// Layouts are those of native/formats/blocks.h and blocks_iq.h; the codes are made 4 at a time in words. Not here: the way from
// floats to blocks (quantize.cuh).
#pragma once
#include "common.cuh"

struct Group {
    int q[8]; // element 4 k + j in byte j of word k
    float d[2], m[2];
};

// Elements and bytes of a block. halves: the two halves have scales of their own. mins: m is not 0.
template <int T> struct Block;
#define BLOCK_0(T, elements, size, minimum) // a plain type
#define BLOCK_16(T, elements, size, minimum) \
    template <> struct Block<T> { \
        static const int n = elements, bytes = size; \
        static const bool halves = true, mins = minimum != 0; \
    };
#define BLOCK_32(T, elements, size, minimum) \
    template <> struct Block<T> { \
        static const int n = elements, bytes = size; \
        static const bool halves = false, mins = minimum != 0; \
    };
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, size, alignment, group, dot, reads, writes, fits, ns, scale, minimum) \
    BLOCK_##scale(NAME, block, size, minimum)
#include "types.def"

// The codebooks: levels of 2 or 3 bits, element 0 lowest.
#define P(code) code,
CONSTANT u16 iq2_xxs_points[256] = {
#define AGK_IQ2_XXS
#include "quant_iq_grid.def"
#undef AGK_IQ2_XXS
};
CONSTANT u16 iq2_xs_points[512] = {
#define AGK_IQ2_XS
#include "quant_iq_grid.def"
#undef AGK_IQ2_XS
};
CONSTANT u16 iq2_s_points[1024] = {
#define AGK_IQ2_S
#include "quant_iq_grid.def"
#undef AGK_IQ2_S
};
CONSTANT u16 iq1_points[2048] = {
#define AGK_IQ1
#include "quant_iq_grid.def"
#undef AGK_IQ1
};
CONSTANT u16 iq3_xxs_points[256] = {
#define AGK_IQ3_XXS
#include "quant_iq_grid.def"
#undef AGK_IQ3_XXS
};
CONSTANT u16 iq3_s_points[512] = {
#define AGK_IQ3_S
#include "quant_iq_grid.def"
#undef AGK_IQ3_S
};
#undef P

// --- words out of blocks, by what their addresses are multiples of

DEV u32 byte_at(const char *p)
{
    return *(const u8 *)p;
}

DEV u32 half_at(const char *p)
{
    return *(const u16 *)p;
}

DEV u32 word1(const char *p)
{
    return byte_at(p) | byte_at(p + 1) << 8 | byte_at(p + 2) << 16 | byte_at(p + 3) << 24;
}

DEV u32 word2(const char *p)
{
    return half_at(p) | half_at(p + 2) << 16;
}

DEV u32 word4(const char *p)
{
    return *(const u32 *)p;
}

// Eight words from an even address. WHOLE: out of nine that are aligned, whatever lies around them, which in shared
// memory is half the work.
template <bool WHOLE> DEV void words8(const char *p, u32 out[8])
{
    if (!WHOLE) {
#pragma unroll
        for (int k = 0; k < 8; ++k) out[k] = word2(p + 4 * k);
        return;
    }
    const u32 *from = (const u32 *)(p - ((u64)p & 2));
    const u32 shift = 8 * (u32)((u64)p & 2);
    u32 word = from[0];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const u32 next = from[k + 1];
        out[k] = __funnelshift_r(word, next, shift);
        word = next;
    }
}

DEV float f16_at(const char *p)
{
    return half_to_float(*(const u16 *)p);
}

// --- four codes in a word

DEV int minus4(u32 codes, u32 each) // both below 128
{
    return (int)(((codes | 0x80808080u) - each) ^ 0x80808080u);
}

DEV u32 spread1(u32 bits) // 4 bits to the lowest bits of 4 bytes
{
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

DEV u32 spread2(u32 byte) // 4 pairs of bits to 4 bytes
{
    return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
}

DEV u32 nibbles_of_pairs(u32 byte) // 4 pairs of bits to 4 nibbles
{
    byte = (byte | byte << 4) & 0x0f0fu;
    return (byte | byte << 2) & 0x3333u;
}

DEV u32 nibbles_of_threes(u32 bits) // 4 triples of bits to 4 nibbles
{
    return (bits & 7) | (bits & 0x38) << 1 | (bits & 0x1c0) << 2 | (bits & 0xe00) << 3;
}

// Bytes whose sign is set are negated; none of them may be 0.
DEV int with_signs(u32 bytes, u32 signs)
{
    const u32 ones = spread1(signs);
    return (int)((bytes ^ ones * 255u) + ones);
}

DEV u32 even_signs(u32 seven)
{
    return seven | (u32)(__popc(seven) & 1) << 7;
}

// The table of 16 bytes at the low and at the high nibbles of a word.
DEV void lookup16(u32 codes, u32 t0, u32 t1, u32 t2, u32 t3, int *low, int *high)
{
    const u32 even = __byte_perm(__byte_perm(t0, t1, codes & 0x7777u), __byte_perm(t2, t3, codes & 0x7777u),
                                 0x3210u | (codes & 0x8888u) >> 1);
    codes >>= 16;
    const u32 odd = __byte_perm(__byte_perm(t0, t1, codes & 0x7777u), __byte_perm(t2, t3, codes & 0x7777u),
                                0x3210u | (codes & 0x8888u) >> 1);
    *low = (int)__byte_perm(even, odd, 0x6420u);
    *high = (int)__byte_perm(even, odd, 0x7531u);
}

DEV void lookup_iq4(u32 codes, int *low, int *high)
{
    lookup16(codes, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u, low, high);
}

DEV void lookup_fp4(u32 codes, int *low, int *high) // twice the value of an e2m1
{
    lookup16(codes, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu, low, high);
}

DEV float half_of_e8m0(u32 e)
{
    return __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

DEV float half_of_e4m3(u32 code)
{
    const u32 exponent = code >> 3 & 15, fraction = code & 7;
    if (code == 0x7f) return 0.0f;
    if (exponent == 0) return (float)fraction * 0.0009765625f;
    return __uint_as_float((exponent + 119) << 23 | fraction << 20);
}

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

// Digit of base 3 of four bytes, brought up by a power of 3.
DEV int digits(u32 bytes, u32 power)
{
    u32 even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu, odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    even = even * 3 >> 8 & 0x00030003u;
    odd = odd * 3 >> 8 & 0x00030003u;
    return minus4(even | odd << 8, 0x01010101u);
}

// Eight values of a codebook of 2-bit levels: the bytes of `table` at the levels.
DEV void point8(u32 point, u32 table, int *q0, int *q1)
{
    *q0 = (int)__byte_perm(table, 0, nibbles_of_pairs(point & 255));
    *q1 = (int)__byte_perm(table, 0, nibbles_of_pairs(point >> 8));
}

static const u32 IQ2_LEVELS = 0x002b1908u;                              // 8, 25, 43
static const u32 IQ1_UP = 0x000901f9u, IQ1_DOWN = 0x0007fff7u;          // 8 * (-1, 0, 1) + 1, - 1
static const u32 IQ3_XXS_LOW = 0x1c140c04u, IQ3_XXS_HIGH = 0x3e342c24u; // 4, 12, .. 52, 62
static const u32 IQ3_S_LOW = 0x07050301u, IQ3_S_HIGH = 0x0f0d0b09u;     // 1, 3, .. 15

// Group s (of 32 elements) of the block at p. WHOLE: the words that the block touches may be read whole.
template <int T, bool WHOLE = false> DEV void unpack(const char *p, int s, Group &o)
{
    float d = 0.0f;
    o.m[0] = o.m[1] = 0.0f;
    if (T == Q4_0 || T == Q4_1 || T == IQ4_NL || T == MXFP4 || T == Q5_0 || T == Q5_1) {
        const int qs = T == Q4_1 ? 4 : T == Q5_0 ? 6 : T == Q5_1 ? 8 : T == MXFP4 ? 1 : 2;
        const u32 fifth = T == Q5_0 ? word2(p + 2) : T == Q5_1 ? word4(p + 4) : 0;
        d = T == MXFP4 ? half_of_e8m0(byte_at(p)) : f16_at(p);
        if (T == Q4_1 || T == Q5_1) o.m[0] = o.m[1] = f16_at(p + 2);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const char *at = p + qs + 4 * k;
            const u32 v = T == MXFP4 ? word1(at) : T == Q4_1 || T == Q5_1 ? word4(at) : word2(at);
            if (T == IQ4_NL) {
                lookup_iq4(v, &o.q[k], &o.q[k + 4]);
            } else if (T == MXFP4) {
                lookup_fp4(v, &o.q[k], &o.q[k + 4]);
            } else {
                u32 low = v & 0x0f0f0f0fu, high = v >> 4 & 0x0f0f0f0fu;
                if (T == Q5_0 || T == Q5_1) {
                    low |= spread1(fifth >> 4 * k) << 4;
                    high |= spread1(fifth >> (16 + 4 * k)) << 4;
                }
                o.q[k] = T == Q4_0 ? minus4(low, 0x08080808u) : T == Q5_0 ? minus4(low, 0x10101010u) : (int)low;
                o.q[k + 4] = T == Q4_0 ? minus4(high, 0x08080808u) : T == Q5_0 ? minus4(high, 0x10101010u) : (int)high;
            }
        }
    } else if (T == Q8_0 || T == Q8_1 || T == Q8_K) {
        d = T == Q8_K ? *(const float *)p : f16_at(p);
        const char *at = p + (T == Q8_0 ? 2 : T == Q8_1 ? 4 : 4 + 32 * s);
#pragma unroll
        for (int k = 0; k < 8; ++k) o.q[k] = (int)(T == Q8_0 ? word2(at + 4 * k) : word4(at + 4 * k));
    } else if (T == Q2_K || T == Q3_K) {
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
    } else if (T == Q4_K || T == Q5_K) {
        float scale, minimum;
        scale_and_min(p + 4, s, &scale, &minimum);
        d = f16_at(p) * scale;
        o.m[0] = o.m[1] = -f16_at(p + 2) * minimum;
        const char *at = p + (T == Q4_K ? 16 : 48) + s / 2 * 32;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            u32 v = word4(at + 4 * k) >> (s % 2 * 4) & 0x0f0f0f0fu;
            if (T == Q5_K) v |= (word4(p + 16 + 4 * k) >> s & 0x01010101u) << 4;
            o.q[k] = (int)v;
        }
    } else if (T == Q6_K) {
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
    } else if (T == IQ4_XS) {
        const u32 low = byte_at(p + 4 + s / 2) >> (s % 2 * 4) & 15, high = half_at(p + 2) >> (2 * s) & 3;
        d = f16_at(p) * (float)((int)(low | high << 4) - 32);
#pragma unroll
        for (int k = 0; k < 4; ++k) lookup_iq4(word4(p + 8 + 16 * s + 4 * k), &o.q[k], &o.q[k + 4]);
    } else if (T == NVFP4) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const char *at = p + 4 + 8 * (2 * s + h);
            o.d[h] = half_of_e4m3(byte_at(p + 2 * s + h));
            lookup_fp4(word4(at), &o.q[4 * h], &o.q[4 * h + 2]);
            lookup_fp4(word4(at + 4), &o.q[4 * h + 1], &o.q[4 * h + 3]);
        }
    } else if (T == Q1_0) {
        const u32 bits = word2(p + 2 + 4 * s);
        d = f16_at(p);
#pragma unroll
        for (int k = 0; k < 8; ++k) o.q[k] = minus4(spread1(bits >> 4 * k) << 1, 0x01010101u);
    } else if (T == Q2_0) {
        d = f16_at(p);
#pragma unroll
        for (int k = 0; k < 8; ++k) o.q[k] = minus4(spread2(byte_at(p + 2 + 8 * s + k)), 0x01010101u);
    } else if (T == TQ2_0) {
        d = f16_at(p + 64);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            o.q[k] = minus4(word2(p + s / 4 * 32 + 4 * k) >> (s % 4 * 2) & 0x03030303u, 0x01010101u);
        }
    } else if (T == TQ1_0) {
        d = f16_at(p + 52);
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
    } else if (T == IQ2_XXS) {
        const u32 points = word2(p + 2 + 8 * s), more = word2(p + 6 + 8 * s);
        d = f16_at(p) * (0.5f + (float)(more >> 28)) * 0.25f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            int q0, q1;
            point8(iq2_xxs_points[points >> 8 * k & 255], IQ2_LEVELS, &q0, &q1);
            const u32 signs = even_signs(more >> 7 * k & 127);
            o.q[2 * k] = with_signs((u32)q0, signs);
            o.q[2 * k + 1] = with_signs((u32)q1, signs >> 4);
        }
    } else if (T == IQ2_XS || T == IQ2_S) {
        const float whole = f16_at(p);
        const u32 scales = byte_at(p + (T == IQ2_XS ? 66 : 74) + s);
        o.d[0] = whole * (0.5f + (float)(scales & 15)) * 0.25f;
        o.d[1] = whole * (0.5f + (float)(scales >> 4)) * 0.25f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            u32 point, signs;
            if (T == IQ2_XS) {
                const u32 v = half_at(p + 2 + 2 * (4 * s + k));
                point = iq2_xs_points[v & 511];
                signs = even_signs(v >> 9);
            } else {
                const u32 high = byte_at(p + 66 + s) >> 2 * k & 3;
                point = iq2_s_points[byte_at(p + 2 + 4 * s + k) | high << 8];
                signs = byte_at(p + 34 + 4 * s + k);
            }
            int q0, q1;
            point8(point, IQ2_LEVELS, &q0, &q1);
            o.q[2 * k] = with_signs((u32)q0, signs);
            o.q[2 * k + 1] = with_signs((u32)q1, signs >> 4);
        }
    } else if (T == IQ3_XXS) {
        const u32 more = word2(p + 66 + 4 * s);
        d = f16_at(p) * (0.5f + (float)(more >> 28)) * 0.5f;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const u32 levels = nibbles_of_threes(iq3_xxs_points[byte_at(p + 2 + 8 * s + k)]);
            const u32 signs = even_signs(more >> 7 * (k / 2) & 127) >> 4 * (k & 1);
            o.q[k] = with_signs(__byte_perm(IQ3_XXS_LOW, IQ3_XXS_HIGH, levels), signs);
        }
    } else if (T == IQ3_S) {
        d = f16_at(p) * (float)(1 + 2 * (byte_at(p + 106 + s / 2) >> (s % 2 * 4) & 15));
        const u32 high = byte_at(p + 66 + s);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const u32 levels = nibbles_of_threes(iq3_s_points[byte_at(p + 2 + 8 * s + k) | (high >> k & 1) << 8]);
            const u32 signs = byte_at(p + 74 + 4 * s + k / 2) >> 4 * (k & 1);
            o.q[k] = with_signs(__byte_perm(IQ3_S_LOW, IQ3_S_HIGH, levels), signs);
        }
    } else if (T == IQ1_S) {
        const u32 h = half_at(p + 34 + 2 * s);
        d = f16_at(p) * (float)(2 * (h >> 12 & 7) + 1) * 0.125f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 point = iq1_points[byte_at(p + 2 + 4 * s + k) | (h >> 3 * k & 7) << 8];
            point8(point, h >> 15 ? IQ1_DOWN : IQ1_UP, &o.q[2 * k], &o.q[2 * k + 1]);
        }
    } else { // IQ1_M
        const u32 w0 = half_at(p + 48), w1 = half_at(p + 50), w2 = half_at(p + 52), w3 = half_at(p + 54);
        const u32 bits = w0 >> 12 | (w1 >> 8 & 0xf0) | (w2 >> 4 & 0xf00) | (w3 & 0xf000);
        const float whole = half_to_float((u16)bits) * 0.125f;
        const u32 scales = half_at(p + 48 + 2 * (s / 2)) >> (s % 2 * 6);
        o.d[0] = whole * (float)(2 * (scales & 7) + 1);
        o.d[1] = whole * (float)(2 * (scales >> 3 & 7) + 1);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 h = byte_at(p + 32 + 2 * s + k / 2) >> 4 * (k & 1);
            const u32 point = iq1_points[byte_at(p + 4 * s + k) | (h & 7) << 8];
            point8(point, h & 8 ? IQ1_DOWN : IQ1_UP, &o.q[2 * k], &o.q[2 * k + 1]);
        }
    }
    if (!Block<T>::halves) o.d[0] = o.d[1] = d;
}

// Group number g of a row.
template <int T, bool WHOLE = false> DEV void unpack_row(const char *row, i64 g, Group &o)
{
    const int per_block = Block<T>::n / 32;
    unpack<T, WHOLE>(row + g / per_block * Block<T>::bytes, (int)(g % per_block), o);
}

DEV float code_at(const Group &o, int e) // e known when compiled
{
    return (float)(i8)(o.q[e / 4] >> 8 * (e % 4));
}
