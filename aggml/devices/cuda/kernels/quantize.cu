// Writing blocks of the quantized type TYPE: cpy, set_rows, and sums of quantized tensors and floats.
//
// A thread makes a block. Its floats are in local memory, which is slow, but the searches for scales take longer.
// options: --fmad=false
// for each type: written
#include "ids.cuh"
#include "quant.cuh"
#include "quantize.cuh"

// cpy: a thread for each block of the result.
KERNEL(cpy, 64, Node<1>)
{
    const i64 block = Block<TYPE>::n, all = count(n.dst) / block, size = n.dst.nb[0];
    for (i64 b = global_thread(); b < all; b += global_threads()) {
        float x[Block<TYPE>::n];
        Index i = element_index(n.src[0], b * block);
#pragma unroll 1
        for (int k = 0; k < block; ++k) { // in logical order: after the end of a row comes the next one
            x[k] = load(n.src[0].type, n.src[0].data + at(n.src[0], i));
            if (++i.i0 < n.src[0].ne[0]) continue;
            i = element_index(n.src[0], b * block + k + 1);
        }
        Index to = element_index(n.dst, b * block);
        const i64 i0 = to.i0 / block;
        to.i0 = 0;
        put_block<TYPE>(x, n.dst.data + at(n.dst, to) + i0 * size);
    }
}

// A block for each row of b.
KERNEL(set_rows, 64, Node<2>)
{
    if (n.fault[0] != 0) return;
    const Tensor &b = n.src[0];
    const i64 rows = row_count(b), block = Block<TYPE>::n, size = b.type == F32 ? 4 : 2;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(b, row);
        char *y = place_of(n.dst, n.src[1], b.ne[1], i);
        if (y == 0) continue;
        const char *x = b.data + at(b, i);
        for (i64 g = threadIdx.x; g < b.ne[0] / block; g += blockDim.x) {
            float v[Block<TYPE>::n];
#pragma unroll 1
            for (int k = 0; k < block; ++k) v[k] = load(b.type, x + size * (g * block + k));
            put_block<TYPE>(v, y + g * Block<TYPE>::bytes);
        }
    }
}

// add and add1 of quantized a and floats: dequantized, added, and quantized again unless the result is f32.
KERNEL(add, 64, Node<2>)
{
    const i64 block = Block<TYPE>::n, all = count(n.src[0]) / block;
    const bool one = n.op == OP_add1;
    for (i64 b = global_thread(); b < all; b += global_threads()) {
        float x[Block<TYPE>::n];
        Index i = element_index(n.src[0], b * block);
        const i64 first = i.i0;
        i.i0 = 0;
        const char *row = n.src[0].data + at(n.src[0], i);
#pragma unroll 1
        for (int g = 0; g < block / 32; ++g) {
            Group o;
            unpack_row<TYPE>(row, first / 32 + g, o);
#pragma unroll
            for (int e = 0; e < 32; ++e) x[32 * g + e] = code_at(o, e) * o.d[e / 16] + o.m[e / 16];
        }
        const char *other = n.src[1].data + (one ? 0 : at(n.src[1], i));
#pragma unroll 1
        for (int k = 0; k < block; ++k) {
            x[k] += load(n.src[1].type, one ? other : other + (first + k) * n.src[1].nb[0]);
        }
        char *y = n.dst.data + at(n.dst, i);
        if (n.dst.type == F32) {
#pragma unroll 1
            for (int k = 0; k < block; ++k) *(float *)(y + (first + k) * n.dst.nb[0]) = x[k];
        } else {
            put_block<TYPE>(x, y + first / block * n.dst.nb[0]);
        }
    }
}
