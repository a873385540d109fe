// Quantizes 32 to 256 floats to a block, for every type that cpy, set_rows and add write.
//
// The functions take the same steps as native/formats/quant*.c, add from the first element to the last, and are
// compiled without fused multiply-add, so that the bytes are the same. Each type of types.def that ops write has its
// put_<symbol> in one of the files below. Not here: quantizers that take an importance matrix, which no op runs.
#pragma once
#include "quantize_low_bits.cuh"
#include "quantize_k.cuh"
#include "quantize_legacy.cuh"

// Writes a block of a quantized type.
template <int T> DEV void put_block(const float *x, char *y)
{
#define PUT_0(NAME, symbol) // a plain type
#define PUT_16(NAME, symbol) \
    if (T == NAME) put_##symbol(x, y);
#define PUT_32(NAME, symbol) PUT_16(NAME, symbol)
#define PUT_NO(NAME, symbol, scale)   // ops never write it
#define PUT_COPY(NAME, symbol, scale) // f32
#define PUT_ONE(NAME, symbol, scale) PUT_##scale(NAME, symbol)
#define PUT_VARIANTS(NAME, symbol, scale) PUT_##scale(NAME, symbol)
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, size, alignment, group, dot, reads, writes, fits, ns, scale, \
                 minimum) \
    PUT_##writes(NAME, symbol, scale)
#include "types.def"
}
