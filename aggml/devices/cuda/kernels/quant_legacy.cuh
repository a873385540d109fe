// Blocks of 32 elements with one scale: codes of 4 and 5 bits, two to a byte, and of 8 bits.
#pragma once
#include "quant_words.cuh"

DEV float half_of_e8m0(u32 e)
{
    return __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

// q4_0 to q5_1, and the types that look up their codes in a table: iq4_nl, mxfp4.
template <int T> DEV void unpack_nibbles(const char *p, Group &o)
{
    const int qs = T == Q4_1 ? 4 : T == Q5_0 ? 6 : T == Q5_1 ? 8 : T == MXFP4 ? 1 : 2;
    const u32 fifth = T == Q5_0 ? word2(p + 2) : T == Q5_1 ? word4(p + 4) : 0;
    const float d = T == MXFP4 ? half_of_e8m0(byte_at(p)) : f16_at(p);
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
    scale_all(o, d);
}

template <int T> DEV void unpack_bytes(const char *p, int s, Group &o)
{
    scale_all(o, T == Q8_K ? *(const float *)p : f16_at(p));
    const char *at = p + (T == Q8_0 ? 2 : T == Q8_1 ? 4 : 4 + 32 * s);
#pragma unroll
    for (int k = 0; k < 8; ++k) o.q[k] = (int)(T == Q8_0 ? word2(at + 4 * k) : word4(at + 4 * k));
}

UNPACK(q4_0) { unpack_nibbles<Q4_0>(p, o); }
UNPACK(q4_1) { unpack_nibbles<Q4_1>(p, o); }
UNPACK(q5_0) { unpack_nibbles<Q5_0>(p, o); }
UNPACK(q5_1) { unpack_nibbles<Q5_1>(p, o); }
UNPACK(iq4_nl) { unpack_nibbles<IQ4_NL>(p, o); }
UNPACK(mxfp4) { unpack_nibbles<MXFP4>(p, o); }
UNPACK(q8_0) { unpack_bytes<Q8_0>(p, s, o); }
UNPACK(q8_1) { unpack_bytes<Q8_1>(p, s, o); }
UNPACK(q8_k) { unpack_bytes<Q8_K>(p, s, o); }
