// add, sub, mul and div with b repeated over a, add1, acc, scale, on f32, f16 and bf16; weighted sums of experts. Not
// here: sums with a quantized a (quantize.cu).
#include "common.cuh"

DEV float combine(i64 op, float a, float b)
{
    switch (op) {
    case OP_add:
    case OP_add1: return a + b;
    case OP_sub: return a - b;
    case OP_mul: return a * b;
    default: return a / b;
    }
}

// The element of a row of b, which may be shorter, that meets element e of a.
DEV i64 place(i64 e, i64 n)
{
    return n == 1 ? 0 : modulo(e, n);
}

// Rows as in the `walk` of unary.cu; ALL_F32: all tensors are f32, else each is read by its type.
template <bool ALL_F32> DEV void walk(const Node<2> &n)
{
    const i64 i0 = (i64)blockIdx.x * (4 * blockDim.x) + threadIdx.x, width = n.dst.ne[0];
    const Tensor &a = n.src[0], &b = n.src[1];
    const i64 rows = row_count(n.dst);
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (i64)gridDim.y * blockDim.y) {
        const Index i = row_index(n.dst, row);
        const char *x = a.data + at(a, i), *z = b.data + at_repeated(b, i);
        char *y = n.dst.data + at(n.dst, i);
        float v[4], w[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            if (e >= width) continue;
            const char *from = x + e * a.nb[0], *other = z + place(e, b.ne[0]) * b.nb[0];
            v[k] = ALL_F32 ? f32_at(from) : load(a.type, from);
            w[k] = ALL_F32 ? f32_at(other) : load(b.type, other);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            if (e >= width) continue;
            const float r = combine(n.op, v[k], w[k]);
            if (ALL_F32)
                *(float *)(y + e * n.dst.nb[0]) = r;
            else
                store(n.dst.type, y + e * n.dst.nb[0], r);
        }
    }
}

KERNEL(binary_f32, 256, Node<2>) { walk<true>(n); }
KERNEL(binary_any, 256, Node<2>) { walk<false>(n); }

KERNEL(scale_f32, 256, Node<1>)
{
    const i64 i0 = (i64)blockIdx.x * (4 * blockDim.x) + threadIdx.x;
    const float scale = param(n.p, 0), bias = param(n.p, 1);
    const i64 rows = row_count(n.dst);
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (i64)gridDim.y * blockDim.y) {
        const Index i = row_index(n.dst, row);
        const char *x = n.src[0].data + at(n.src[0], i);
        char *y = n.dst.data + at(n.dst, i);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            if (e < n.dst.ne[0]) *(float *)(y + e * n.dst.nb[0]) = f32_at(x + e * n.src[0].nb[0]) * scale + bias;
        }
    }
}

// acc: dst and src[0] are the part of a to which b is added.
KERNEL(acc_f32, 256, Node<2>)
{
    Node<2> sum = n;
    sum.op = OP_add;
    walk<true>(sum);
}

// Results of experts times their weights, summed in the order of the experts, plus up to two more summands. Rounded as
// if each op were a node of its own. src: results [columns, used, tokens], weights [1, used, tokens], the two summands
// (data 0: none). A block computes 256 columns.
KERNEL(weigh, 256, Node<4>)
{
    const Tensor &x = n.src[0], &weights = n.src[1];
    const i64 e = (i64)blockIdx.x * blockDim.x + threadIdx.x, used = x.ne[1];
    if (e >= n.dst.ne[0]) return;
    for (i64 token = blockIdx.y; token < n.dst.ne[1]; token += gridDim.y) {
        const char *from = x.data + e * 4 + token * x.nb[2], *weight = weights.data + token * weights.nb[2];
        float sum = __fmul_rn(f32_at(from), f32_at(weight));
#pragma unroll 4
        for (i64 i = 1; i < used; ++i)
            sum = __fadd_rn(sum, __fmul_rn(f32_at(from + i * x.nb[1]), f32_at(weight + i * weights.nb[1])));
#pragma unroll
        for (int k = 2; k < 4; ++k) {
            const Tensor &more = n.src[k];
            if (more.data != 0) sum = __fadd_rn(sum, f32_at(more.data + e * 4 + token * more.nb[1]));
        }
        *(float *)(n.dst.data + e * 4 + token * n.dst.nb[1]) = sum;
    }
}
