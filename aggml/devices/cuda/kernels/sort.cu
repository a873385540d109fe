// argsort and top_k of rows that fit shared memory, 4096 keys: a bitonic sort by a block for each row. The first one
// alone is found without sorting. Not here: longer rows (sort_long.cu), what a key is (sort.cuh).
#include "sort.cuh"

// top_k of 1: the least key alone.
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

// aux: keys, a power of two; whether descending.
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
