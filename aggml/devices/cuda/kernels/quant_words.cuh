// The form to which every quantized type is unpacked (Group), and reading words from blocks.
//
// Codes are computed 4 at a time, as the bytes of a word. Not here: the types themselves (quant_*.cuh), choosing one of
// them (quant.cuh).
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
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, size, alignment, group, dot, reads, writes, fits, ns, scale, \
                 minimum) \
    BLOCK_##scale(NAME, block, size, minimum)
#include "types.def"

// Begins a type's function that unpacks group s (of 32 elements) of the block at p. o.m is 0 beforehand. WHOLE: see
// unpack in quant.cuh.
#define UNPACK(symbol) template <bool WHOLE> DEV void unpack_##symbol(const char *p, int s, Group &o)

// Both halves have one scale.
DEV void scale_all(Group &o, float d)
{
    o.d[0] = o.d[1] = d;
}

// --- words from blocks; the number in a name is the alignment of the address in bytes

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

// Eight words from an even address. WHOLE: from nine aligned words, some of whose bytes are outside; in shared memory
// this is half the work.
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

DEV u32 spread1(u32 bits) // 4 bits become the lowest bits of 4 bytes
{
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

DEV u32 spread2(u32 byte) // 4 pairs of bits become 4 bytes
{
    return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
}

DEV u32 nibbles_of_pairs(u32 byte) // 4 pairs of bits become 4 nibbles
{
    byte = (byte | byte << 4) & 0x0f0fu;
    return (byte | byte << 2) & 0x3333u;
}

DEV u32 nibbles_of_threes(u32 bits) // 4 triples of bits become 4 nibbles
{
    return (bits & 7) | (bits & 0x38) << 1 | (bits & 0x1c0) << 2 | (bits & 0xe00) << 3;
}
// Looks up the low and the high nibbles of a word in a table of 16 bytes, t0 to t3.
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
