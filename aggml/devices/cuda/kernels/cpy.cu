// cpy, cont, dup, and the copies of concat and repeat: elements in logical order to another layout, type or shape.
#include "any.cuh"

struct Word16 {
    u64 low, high;
};

// Copies rows of words of one size. A smaller source repeats.
template <class W> DEV void walk(const Node<1> &n)
{
    const i64 i0 = (i64)blockIdx.x * (4 * blockDim.x) + threadIdx.x, width = n.dst.ne[0];
    const i64 rows = row_count(n.dst);
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (i64)gridDim.y * blockDim.y) {
        const Index i = row_index(n.dst, row);
        const char *x = n.src[0].data + at_repeated(n.src[0], i);
        char *y = n.dst.data + at(n.dst, i);
        W v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            if (e < width) v[k] = *(const W *)(x + modulo(e, n.src[0].ne[0]) * n.src[0].nb[0]);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            if (e < width) *(W *)(y + e * n.dst.nb[0]) = v[k];
        }
    }
}

KERNEL(copy_1, 256, Node<1>) { walk<u8>(n); }
KERNEL(copy_2, 256, Node<1>) { walk<u16>(n); }
KERNEL(copy_4, 256, Node<1>) { walk<u32>(n); }
KERNEL(copy_8, 256, Node<1>) { walk<u64>(n); }
KERNEL(copy_16, 256, Node<1>) { walk<Word16>(n); }

// Tiles of 32 x 32 for a source whose dimension 1 is contiguous: read along dimension 1, written along dimension 0.
template <class W> DEV void turn(const Node<1> &n)
{
    __shared__ W tile[32][33];
    const Tensor &x = n.src[0], &y = n.dst;
    const int tx = threadIdx.x, ty = threadIdx.y;
    const i64 across = (y.ne[0] + 31) / 32, planes = y.ne[2] * y.ne[3];
    i64 tile1, tile0;
    divide(blockIdx.x, across, &tile1, &tile0);
    for (i64 plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        i64 i3, i2;
        divide(plane, y.ne[2], &i3, &i2);
        const char *from = x.data + i2 * x.nb[2] + i3 * x.nb[3];
        char *to = y.data + i2 * y.nb[2] + i3 * y.nb[3];
        for (int k = ty; k < 32; k += 8) {
            const i64 i0 = tile0 * 32 + k, i1 = tile1 * 32 + tx;
            if (i0 < y.ne[0] && i1 < y.ne[1]) tile[k][tx] = *(const W *)(from + i0 * x.nb[0] + i1 * x.nb[1]);
        }
        __syncthreads();
        for (int k = ty; k < 32; k += 8) {
            const i64 i0 = tile0 * 32 + tx, i1 = tile1 * 32 + k;
            if (i0 < y.ne[0] && i1 < y.ne[1]) *(W *)(to + i0 * y.nb[0] + i1 * y.nb[1]) = tile[tx][k];
        }
        __syncthreads();
    }
}

KERNEL(transpose_2, 256, Node<1>) { turn<u16>(n); }
KERNEL(transpose_4, 256, Node<1>) { turn<u32>(n); }

// Copies blocks of aux[0] bytes in logical order. Extents count blocks; shapes may differ. aux[1]: bytes of a word.
KERNEL(copy_blocks, 256, Node<1>)
{
    const i64 all = count(n.dst), size = n.aux[0];
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const char *x = n.src[0].data + at(n.src[0], element_index(n.src[0], e));
        char *y = n.dst.data + at(n.dst, element_index(n.dst, e));
        if (n.aux[1] == 4) {
            for (i64 i = 0; i < size; i += 4) *(u32 *)(y + i) = *(const u32 *)(x + i);
        } else if (n.aux[1] == 2) {
            for (i64 i = 0; i < size; i += 2) *(u16 *)(y + i) = *(const u16 *)(x + i);
        } else {
            for (i64 i = 0; i < size; ++i) y[i] = x[i];
        }
    }
}

DEV void convert(i64 from, const char *x, i64 to, char *y)
{
    const float v = from == I32 ? (float)*(const int *)x : load(from, x);
    if (to == I32) // NaN and values out of range give the least integer, as cvttss2si of x86 does
        *(int *)y = v >= -2147483648.0f && v < 2147483648.0f ? (int)v : -2147483647 - 1;
    else
        store(to, y, v);
}

// For source and result of one shape.
KERNEL(convert_rows, 256, Node<1>)
{
    const i64 i0 = (i64)blockIdx.x * (4 * blockDim.x) + threadIdx.x;
    const i64 rows = row_count(n.dst);
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (i64)gridDim.y * blockDim.y) {
        const Index i = row_index(n.dst, row);
        const char *x = n.src[0].data + at(n.src[0], i);
        char *y = n.dst.data + at(n.dst, i);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            if (e < n.dst.ne[0]) convert(n.src[0].type, x + e * n.src[0].nb[0], n.dst.type, y + e * n.dst.nb[0]);
        }
    }
}

KERNEL(convert_any, 256, Node<1>)
{
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        convert(n.src[0].type, n.src[0].data + at(n.src[0], element_index(n.src[0], e)), n.dst.type,
                n.dst.data + at(n.dst, element_index(n.dst, e)));
    }
}

// A thread for each 32 elements; elements of a source row have no gaps.
KERNEL(from_quantized, 128, Node<1>)
{
    const i64 all = count(n.dst) / 32;
    for (i64 g = global_thread(); g < all; g += global_threads()) {
        float x[32];
        Index from = element_index(n.src[0], g * 32);
        const i64 group = from.i0 / 32;
        from.i0 = 0;
        unpack_any(n.src[0].type, n.src[0].data + at(n.src[0], from), group, x);
        Index i = element_index(n.dst, g * 32);
#pragma unroll
        for (int k = 0; k < 32; ++k) {
            *(float *)(n.dst.data + at(n.dst, i)) = x[k];
            if (++i.i0 >= n.dst.ne[0] && k < 31) i = element_index(n.dst, g * 32 + k + 1);
        }
    }
}
