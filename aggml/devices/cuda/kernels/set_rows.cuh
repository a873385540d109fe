// set_rows for rows of f32, f16 and bf16, shared by rows.cu and rope.cu. Not here: quantized rows (quantize.cu).
#pragma once
#include "ids.cuh"

// Writes row `row` of src[0] to the row that src[1] names, by all threads of a block; this one is number `thread` of
// `threads`. If several rows go to the same place, the last one wins.
DEV void set_row(const Node<2> &n, i64 row, int thread, int threads)
{
    const Tensor &b = n.src[0];
    const Index i = row_index(b, row);
    char *y = place_of(n.dst, n.src[1], b.ne[1], i);
    if (y == 0) return;
    const char *x = b.data + at(b, i);
    for (i64 e = thread; e < b.ne[0]; e += threads) {
        if (n.dst.type == F32 && b.type == F32)
            ((u32 *)y)[e] = ((const u32 *)x)[e];
        else if (n.dst.type == b.type)
            ((u16 *)y)[e] = ((const u16 *)x)[e];
        else
            store(n.dst.type, y + (n.dst.type == F32 ? 4 : 2) * e, load(b.type, x + (b.type == F32 ? 4 : 2) * e));
    }
}
