// argsort and top_k of rows of at most 4096 keys, which fit shared memory: a block for each row sorts it (bitonic
// sort). top_k of 1 needs no sorting. Not here: longer rows (sort_long.cu), keys (sort.cuh).
#include "sort.cuh"

// top_k of 1: finds the least key.
KERNEL(sort_first, 512, Node<1>)
{
    SHARED(u64, keys);
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a), width = a.ne[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(a, row);
        const char *x = a.data + at(a, i);
        u64 mine = ~(u64)0;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) {
            const u64 key = key_of(x + e * a.nb[0], e, true);
            if (key < mine) mine = key;
        }
        if (threadIdx.x == 0) keys[0] = ~(u64)0;
        __syncthreads();
        atomicMin(&keys[0], mine);
        __syncthreads();
        if (threadIdx.x == 0) *(int *)(n.dst.data + at(n.dst, i)) = (int)(keys[0] & 0xffffffffu);
        __syncthreads();
    }
}

// aux: number of keys, a power of two; whether to sort in descending order.
KERNEL(sort_shared, 512, Node<1>)
{
    SHARED(u64, keys);
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a), width = a.ne[0], size = n.aux[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(a, row);
        for (i64 e = threadIdx.x; e < size; e += blockDim.x) {
            keys[e] = e < width ? key_of(a.data + at(a, i) + e * a.nb[0], e, n.aux[1] != 0) : ~(u64)0;
        }
        bitonic(keys, size);
        for (i64 e = threadIdx.x; e < n.dst.ne[0]; e += blockDim.x) {
            *(int *)(n.dst.data + at(n.dst, i) + e * n.dst.nb[0]) = (int)(keys[e] & 0xffffffffu);
        }
        __syncthreads();
    }
}
