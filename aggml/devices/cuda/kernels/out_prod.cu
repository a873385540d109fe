// out_prod: dst[i, j] = sum over k of a[i, k] * b[j, k]; a is f32, f16 or quantized, b f32.
#include "any.cuh"

enum { WIDE = 32, COLUMNS = 32, DEPTH = 32 };

// grid: 32 values of i, 32 of j, matrices. block: lanes have the 32 values of i, each of 8 warps has 4 values of j.
KERNEL(out_prod, 256, Node<2>)
{
    __shared__ float tile[DEPTH][WIDE + 1];
    const Tensor &a = n.src[0], &b = n.src[1], &y = n.dst;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 i = (i64)blockIdx.x * WIDE + lane, depth = a.ne[1];
    for (i64 plane = blockIdx.z; plane < y.ne[2] * y.ne[3]; plane += gridDim.z) {
        i64 i3, i2;
        divide(plane, y.ne[2], &i3, &i2);
        const char *x = a.data + i2 / (y.ne[2] / a.ne[2]) * a.nb[2] + i3 / (y.ne[3] / a.ne[3]) * a.nb[3];
        const char *z = b.data + i2 * b.nb[2] + i3 * b.nb[3];
        for (i64 j0 = (i64)blockIdx.y * COLUMNS; j0 < y.ne[1]; j0 += (i64)gridDim.y * COLUMNS) {
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (i64 k0 = 0; k0 < depth; k0 += DEPTH) {
                __syncthreads();
                if (is_quantized(a.type)) {
                    if (threadIdx.x < DEPTH && k0 + threadIdx.x < depth) {
                        float row[32];
                        unpack_any(a.type, x + (k0 + threadIdx.x) * a.nb[1], blockIdx.x, row);
#pragma unroll
                        for (int e = 0; e < 32; ++e) tile[threadIdx.x][e] = row[e];
                    }
                } else {
                    for (int k = warp; k < DEPTH; k += 8) {
                        const bool there = k0 + k < depth && i < y.ne[0];
                        tile[k][lane] = there ? load(a.type, x + i * a.nb[0] + (k0 + k) * a.nb[1]) : 0.0f;
                    }
                }
                __syncthreads();
                const int here = depth - k0 < DEPTH ? (int)(depth - k0) : DEPTH;
                for (int k = 0; k < here; ++k) {
#pragma unroll
                    for (int m = 0; m < 4; ++m) {
                        const i64 j = j0 + 4 * warp + m;
                        if (j < y.ne[1]) sum[m] += tile[k][lane] * f32_at(z + j * b.nb[0] + (k0 + k) * b.nb[1]);
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const i64 j = j0 + 4 * warp + m;
                if (i < y.ne[0] && j < y.ne[1]) *(float *)(y.data + at(y, i, j, i2, i3)) = sum[m];
            }
        }
    }
}
