// Unpacks every quantized type to one form: 32 consecutive elements as int8 codes q, and x = d * q + m for each half.
//
// Layouts are those of native/formats/blocks.h and blocks_iq.h; each type of types.def has its UNPACK(symbol) in one of
// the files below. Not here: quantizing floats to blocks (quantize.cuh).
#pragma once
#include "quant_low_bits.cuh"
#include "quant_iq.cuh"
#include "quant_k.cuh"
#include "quant_legacy.cuh"

// Group s (of 32 elements) of the block at p. WHOLE: bytes around the block may be read, so aligned words can be
// loaded.
template <int T, bool WHOLE = false> DEV void unpack(const char *p, int s, Group &o)
{
    o.m[0] = o.m[1] = 0.0f;
#define UNPACK_0(NAME, symbol) // a plain type
#define UNPACK_16(NAME, symbol) \
    if (T == NAME) unpack_##symbol<WHOLE>(p, s, o);
#define UNPACK_32(NAME, symbol) UNPACK_16(NAME, symbol)
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, size, alignment, group, dot, reads, writes, fits, ns, scale, \
                 minimum) \
    UNPACK_##scale(NAME, symbol)
#include "types.def"
}

// Group number g of a row.
template <int T, bool WHOLE = false> DEV void unpack_row(const char *row, i64 g, Group &o)
{
    const int per_block = Block<T>::n / 32;
    unpack<T, WHOLE>(row + g / per_block * Block<T>::bytes, (int)(g % per_block), o);
}

// Group g of a row in shared memory. Small blocks are read as whole words, which are shifted to their alignment.
template <int T> DEV void unpack_staged(const char *row, int g, Group &o)
{
    if (Block<T>::n != 32) {
        unpack_row<T, true>(row, g, o);
        return;
    }
    enum { WORDS = (Block<T>::bytes + 3) / 4 };
    const char *p = row + g * Block<T>::bytes;
    const u32 *from = (const u32 *)(p - ((u64)p & 3));
    const u32 shift = 8 * (u32)((u64)p & 3);
    u32 raw[WORDS], word = from[0];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) { // the word after the last is not needed: sizes are as odd as addresses
        const u32 next = k + 1 < WORDS ? from[k + 1] : 0;
        raw[k] = __funnelshift_r(word, next, shift);
        word = next;
    }
    unpack<T>((const char *)raw, 0, o);
}

DEV float code_at(const Group &o, int e) // e is known at compile time
{
    return (float)(i8)(o.q[e / 4] >> 8 * (e % 4));
}
