// argsort and top_k: the order of the elements of each row of f32, by a bitonic sort of a block.
//
// An element becomes a key of 64 bits: its value as a number that ascends in the wanted order, then its index. So keys
// are distinct, equal values keep their order, NaN comes last, and -0 equals 0. Rows of up to 4096 are sorted in shared
// memory, longer ones in scratch. The first one alone is found without sorting.
#include "common.cuh"

DEV u64 key_of(const char *p, i64 index, bool descending)
{
    const float value = f32_at(p);
    u32 bits = __float_as_uint(value);
    if (value != value) {
        bits = 0xffffffffu;
    } else {
        if (bits == 0x80000000u) bits = 0;
        bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        if (descending) bits = ~bits;
    }
    return (u64)bits << 32 | (u64)index;
}

// aux: keys, a power of two; whether descending. Scratch: keys for each block.
template <bool SHARED_KEYS> DEV void sort(const Node<1> &n, u64 *keys)
{
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a), width = a.ne[0], size = n.aux[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(a, row);
        for (i64 e = threadIdx.x; e < size; e += blockDim.x) {
            keys[e] = e < width ? key_of(a.data + at(a, i) + e * a.nb[0], e, n.aux[1] != 0) : ~(u64)0;
        }
        __syncthreads();
        for (i64 run = 2; run <= size; run *= 2) {
            for (i64 apart = run / 2; apart > 0; apart /= 2) {
                for (i64 t = threadIdx.x; t < size / 2; t += blockDim.x) {
                    const i64 low = 2 * t - (t & (apart - 1)), high = low + apart;
                    const u64 x = keys[low], y = keys[high];
                    if ((x > y) == ((low & run) == 0)) {
                        keys[low] = y;
                        keys[high] = x;
                    }
                }
                __syncthreads();
            }
        }
        for (i64 e = threadIdx.x; e < n.dst.ne[0]; e += blockDim.x) {
            *(int *)(n.dst.data + at(n.dst, i) + e * n.dst.nb[0]) = (int)(keys[e] & 0xffffffffu);
        }
        __syncthreads();
    }
}

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

KERNEL(sort_shared, 512, Node<1>)
{
    SHARED(u64, keys);
    sort<true>(n, keys);
}

KERNEL(sort_scratch, 512, Node<1>) { sort<false>(n, (u64 *)n.scratch + blockIdx.x * n.aux[0]); }
