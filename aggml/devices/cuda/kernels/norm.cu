// norm, rms_norm, l2_norm of rows and group_norm of planes of f32: a block for each row or group.
// computes: norm rms_norm l2_norm by norm_rows of 1 operand, for each row
#include "columns.cuh"

// Fused after the norm: aux[0] and aux[1] are 0, or rows of factors and of summands. Rounded as if they were ops of
// their own.
DEV float after(const Node<1> &n, i64 e, float x)
{
    if (n.aux[0] != 0) x = __fmul_rn(x, ((const float *)n.aux[0])[e]);
    return n.aux[1] != 0 ? __fadd_rn(x, ((const float *)n.aux[1])[e]) : x;
}

// Quantizes elements e .. e + 3 of a row to int8, bit for bit as quantize_columns; 8 lanes have the 32 elements of an
// Act. All lanes of a warp must call this; `there`: whether this lane has elements.
DEV void quantize4(Act *acts, i64 e, const float x[4], bool there)
{
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) largest = fmaxf(largest, there ? fabsf(x[k]) : 0.0f);
#pragma unroll
    for (int o = 4; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    const float d = largest / 127.0f;
    int sum = 0;
    u32 codes = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int q = there && largest > 0.0f ? __float2int_rn(x[k] / d) : 0;
        sum += q;
        codes |= (u32)(q & 255) << 8 * k;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (!there) return;
    Act &to = acts[e / 32];
    const int mine = (int)(e % 32) / 4;
    to.q[mine] = (int)codes;
    if (mine == 0) to.d = d;
    if (mine % 4 == 0) to.s[mine / 4] = d * (float)sum;
}

// A thread's share of a row's sum of (x - mean)^2 with SQUARES, else of x. `four`: loads four elements at a time.
template <bool SQUARES> DEV float share(const float *x, i64 width, float mean, bool four)
{
    float sum = 0.0f;
    if (!four) {
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) sum += SQUARES ? (x[e] - mean) * (x[e] - mean) : x[e];
        return sum;
    }
#pragma unroll 4 // all loads of a row of 4096 are in flight together
    for (i64 e = 4 * threadIdx.x; e < width; e += 4 * blockDim.x) {
        const float4 v = *(const float4 *)(x + e);
        if (SQUARES) {
            sum += (v.x - mean) * (v.x - mean) + (v.y - mean) * (v.y - mean);
            sum += (v.z - mean) * (v.z - mean) + (v.w - mean) * (v.w - mean);
        } else {
            sum += (v.x + v.y) + (v.z + v.w);
        }
    }
    return sum;
}

// Sums are f32, in the order that the block gives them. The variance takes two passes, which avoids cancellation.
// aux[2]: 0, or where the rows are also written as int8 (Act), for the products that follow. They are then aligned, and
// their width is a multiple of 32.
KERNEL(norm_rows, 256, Node<1>)
{
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    const float eps = param(n.p, 0);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const float *x = (const float *)(n.src[0].data + at(n.src[0], i));
        float *y = (float *)(n.dst.data + at(n.dst, i));
        const bool four = (((u64)x | (u64)y | (u64)(4 * width)) & 15) == 0;
        float mean = 0.0f;
        if (n.op == OP_norm) mean = block_sum(share<false>(x, width, 0.0f, four)) / (float)width;
        const float square = block_sum(share<true>(x, width, mean, four));
        const float scale = n.op == OP_l2_norm ? 1.0f / fmaxf(sqrtf(square), eps)
                                               : 1.0f / sqrtf(square / (float)width + eps);
        if (!four) {
            for (i64 e = threadIdx.x; e < width; e += blockDim.x) y[e] = after(n, e, (x[e] - mean) * scale);
            continue;
        }
#pragma unroll 2
        for (i64 first = 0; first < width; first += 4 * blockDim.x) {
            const i64 e = first + 4 * threadIdx.x;
            const bool there = e < width;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (there) v = *(const float4 *)(x + e);
            float z[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) z[k] = there ? after(n, e + k, (z[k] - mean) * scale) : 0.0f;
            if (there) *(float4 *)(y + e) = make_float4(z[0], z[1], z[2], z[3]);
            if (n.aux[2] != 0) quantize4((Act *)n.aux[2] + row * (width / 32), e, z, there);
        }
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
