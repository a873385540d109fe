// Rows of a matrix of the quantized type TYPE as bf16 without gaps, for products by cuBLASLt (blas.py).
// for each type: quantized
#include "quant.cuh"

// A thread for each 32 elements. Blocks of a source row have no gaps.
KERNEL(unpack_rows, 128, Node<1>)
{
    const i64 groups = n.dst.ne[0] / 32, all = groups * n.dst.ne[1];
    for (i64 g = global_thread(); g < all; g += global_threads()) {
        Group o;
        unpack_row<TYPE>(n.src[0].data + g / groups * n.src[0].nb[1], g % groups, o);
        uint4 *to = (uint4 *)(n.dst.data + g * 64);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned word[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                unsigned pair[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int e = 8 * k + 2 * j + i;
                    pair[i] = float_to_bf16(__fadd_rn(__fmul_rn(code_at(o, e), o.d[e / 16]), o.m[e / 16]));
                }
                word[j] = pair[0] | pair[1] << 16;
            }
            to[k] = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}
