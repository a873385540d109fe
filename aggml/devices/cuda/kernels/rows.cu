// get_rows, set_rows, get_rows_back: rows named by indices, of any type.
//
// A first launch checks all indices; if one is out of range, the launches after it do nothing.
#include "any.cuh"
#include "set_rows.cuh"

// One block. src[0]: the indices. aux: number of rows; whether a negative index is allowed and names no row.
KERNEL(check_ids, 256, Node<1>)
{
    const Tensor &ids = n.src[0];
    const i64 all = count(ids), rows = n.aux[0];
    i64 first = all; // this thread's first wrong index
    for (i64 e = threadIdx.x; e < all && first == all; e += blockDim.x) {
        const Index i = element_index(ids, e);
        const i64 id = id_at(ids, i.i0, i.i1, i.i2);
        if ((id < 0 && n.aux[1] == 0) || id >= rows) first = e;
    }
    const i64 least = (i64)block_min((u64)first);
    if (threadIdx.x == 0 && least < all && n.fault[0] == 0) {
        const Index i = element_index(ids, least);
        n.fault[1] = id_at(ids, i.i0, i.i1, i.i2);
        n.fault[2] = least;
        n.fault[3] = rows;
        n.fault[0] = 1;
    }
}

// A block for each row of the result. src: a, ids
KERNEL(get_rows, 256, Node<2>)
{
    if (n.fault[0] != 0) return;
    const Tensor &a = n.src[0], &ids = n.src[1];
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const char *x = a.data + id_at(ids, i.i1, i.i2, i.i3) * a.nb[1] + i.i2 * a.nb[2] + i.i3 * a.nb[3];
        char *y = n.dst.data + at(n.dst, i);
        if (is_quantized(a.type)) {
            for (i64 g = threadIdx.x; g < width / 32; g += blockDim.x) {
                float v[32];
                unpack_any(a.type, x, g, v);
#pragma unroll
                for (int k = 0; k < 32; ++k) ((float *)y)[32 * g + k] = v[k];
            }
        } else if (a.type == F32 || a.type == I32) {
            for (i64 e = threadIdx.x; e < width; e += blockDim.x) ((u32 *)y)[e] = ((const u32 *)x)[e];
        } else {
            for (i64 e = threadIdx.x; e < width; e += blockDim.x) ((float *)y)[e] = load(a.type, x + 2 * e);
        }
    }
}

// A block for each row of b. Not here: quantized rows (quantize.cu).
KERNEL(set_rows, 256, Node<2>)
{
    if (n.fault[0] != 0) return;
    const i64 rows = row_count(n.src[0]);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) set_row(n, row, threadIdx.x, blockDim.x);
}

// A thread for each element of the result; it adds rows of a in order. src: a, ids
KERNEL(get_rows_back, 256, Node<2>)
{
    if (n.fault[0] != 0) return;
    const Tensor &a = n.src[0], &ids = n.src[1];
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        float sum = 0.0f;
        for (i64 j = 0; j < a.ne[1]; ++j) {
            if (id_at(ids, j, 0, 0) == i.i1) sum += load(a.type, a.data + i.i0 * a.nb[0] + j * a.nb[1]);
        }
        *(float *)(n.dst.data + at(n.dst, i)) = sum;
    }
}

// A block for each row. src: a, b, ids
KERNEL(add_id, 256, Node<3>)
{
    if (n.fault[0] != 0) return;
    const Tensor &a = n.src[0], &b = n.src[1], &ids = n.src[2];
    const i64 rows = row_count(n.dst);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const char *x = a.data + at(a, i), *z = b.data + id_at(ids, i.i1, i.i2, 0) * b.nb[1];
        float *y = (float *)(n.dst.data + at(n.dst, i));
        for (i64 e = threadIdx.x; e < n.dst.ne[0]; e += blockDim.x) {
            y[e] = ((const float *)x)[e] + ((const float *)z)[e];
        }
    }
}

// For each token the values that sorted indices name, divided by their sum, which is clamped to p[0] .. p[1]. src:
// values [1, all, tokens], ids [used, tokens]. A warp for each token; it adds in the order of sum_rows.
KERNEL(shares, 32, Node<2>)
{
    const Tensor &a = n.src[0], &ids = n.src[1];
    const float least = param(n.p, 0), most = param(n.p, 1);
    for (i64 token = blockIdx.x; token < n.dst.ne[1]; token += gridDim.x) {
        const char *x = a.data + token * a.nb[2];
        char *y = n.dst.data + token * n.dst.nb[1];
        float sum = 0.0f;
        for (i64 e = threadIdx.x; e < n.dst.ne[0]; e += 32) sum += f32_at(x + id_at(ids, e, token, 0) * a.nb[1]);
        sum = warp_sum(sum);
        const float whole = sum < most ? (sum > least ? sum : least) : (most > least ? most : least);
        for (i64 e = threadIdx.x; e < n.dst.ne[0]; e += 32)
            *(float *)(y + e * 4) = f32_at(x + id_at(ids, e, token, 0) * a.nb[1]) / whole;
    }
}
