// norm, rms_norm, l2_norm of rows and group_norm of planes of f32: a block for each row or group.
// computes: norm rms_norm l2_norm by norm_rows of 1 operand, for each row
#include "common.cuh"

// What follows the norm: aux[0] and aux[1] are 0, or rows of factors and of summands. Rounded as by ops of their own.
DEV float after(const Node<1> &n, i64 e, float x)
{
    if (n.aux[0] != 0) x = __fmul_rn(x, ((const float *)n.aux[0])[e]);
    return n.aux[1] != 0 ? __fadd_rn(x, ((const float *)n.aux[1])[e]) : x;
}

// Sums are of f32, in the order that the block gives them; two passes for the variance, so that nothing cancels.
KERNEL(norm_rows, 256, Node<1>)
{
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    const float eps = param(n.p, 0);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const float *x = (const float *)(n.src[0].data + at(n.src[0], i));
        float *y = (float *)(n.dst.data + at(n.dst, i));
        float mean = 0.0f, square = 0.0f;
        if (n.op == OP_norm) {
            for (i64 e = threadIdx.x; e < width; e += blockDim.x) mean += x[e];
            mean = block_sum(mean) / (float)width;
        }
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) square += (x[e] - mean) * (x[e] - mean);
        square = block_sum(square);
        const float scale = n.op == OP_l2_norm ? 1.0f / fmaxf(sqrtf(square), eps)
                                               : 1.0f / sqrtf(square / (float)width + eps);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) y[e] = after(n, e, (x[e] - mean) * scale);
    }
}

// aux: channels of a group, groups of a batch
KERNEL(norm_groups, 256, Node<1>)
{
    const Tensor &x = n.src[0], &y = n.dst;
    const i64 size = n.aux[0], groups = n.aux[1];
    for (i64 unit = blockIdx.x; unit < groups * x.ne[3]; unit += gridDim.x) {
        const i64 i3 = unit / groups, first = unit % groups * size;
        const i64 last = first + size < x.ne[2] ? first + size : x.ne[2];
        const i64 plane = x.ne[0] * x.ne[1], all = plane * (last - first);
        float sum = 0.0f, square = 0.0f;
        for (i64 e = threadIdx.x; e < all; e += blockDim.x) {
            sum += f32_at(x.data + at(x, e % x.ne[0], e / x.ne[0] % x.ne[1], first + e / plane, i3));
        }
        const float mean = block_sum(sum) / (float)all;
        for (i64 e = threadIdx.x; e < all; e += blockDim.x) {
            const float v = f32_at(x.data + at(x, e % x.ne[0], e / x.ne[0] % x.ne[1], first + e / plane, i3)) - mean;
            square += v * v;
        }
        const float scale = 1.0f / sqrtf(block_sum(square) / (float)all + param(n.p, 1));
        for (i64 e = threadIdx.x; e < all; e += blockDim.x) {
            const i64 i0 = e % x.ne[0], i1 = e / x.ne[0] % x.ne[1], i2 = first + e / plane;
            *(float *)(y.data + at(y, i0, i1, i2, i3)) = (f32_at(x.data + at(x, i0, i1, i2, i3)) - mean) * scale;
        }
    }
}
