// Kernels that run before a product: they quantize columns of b to int8 (struct Act) and sort slots of mul_mat_id by
// expert.
#include "columns.cuh"

DEV float element(i64 type, const char *row, i64 e)
{
    switch (type) {
    case F32: return ((const float *)row)[e];
    case Q8_0: {
        const char *p = row + e / 32 * 34;
        return half_to_float(*(const u16 *)p) * (float)((const i8 *)p)[2 + e % 32];
    }
    case Q8_1: {
        const char *p = row + e / 32 * 36;
        return half_to_float(*(const u16 *)p) * (float)((const i8 *)p)[4 + e % 32];
    }
    case Q8_K: {
        const char *p = row + e / 256 * 292;
        return *(const float *)p * (float)((const i8 *)p)[4 + e % 256];
    }
    default: return load(type, row + 2 * e);
    }
}

// A warp for each 32 elements. src: rows of b; their Acts are written to scratch + aux[0].
KERNEL(quantize_columns, 256, Node<1>)
{
    const Tensor &b = n.src[0];
    const i64 groups = b.ne[0] / 32, all = groups * row_count(b);
    const int lane = threadIdx.x & 31;
    Act *out = (Act *)(n.scratch + n.aux[0]);
    for (i64 w = global_thread() / 32; w < all; w += global_threads() / 32) {
        i64 row, g;
        divide(w, groups, &row, &g);
        const float x = element(b.type, b.data + at(b, row_index(b, row)), 32 * g + lane);
        const float largest = warp_max(fabsf(x)), d = largest / 127.0f;
        const int q = largest > 0.0f ? __float2int_rn(x / d) : 0;
        int sum = q;
#pragma unroll
        for (int o = 8; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        ((i8 *)out[w].q)[lane] = (i8)q;
        if (lane == 0) out[w].d = d;
        if ((lane & 15) == 0) out[w].s[lane / 16] = d * (float)sum;
    }
}

// The expert of a slot, -1 if it has none.
DEV int expert_at(const Tensor &ids, i64 slot, i64 slots)
{
    if (slot >= slots) return -1;
    i64 i1, i0;
    divide(slot, ids.ne[0], &i1, &i0);
    return *(const int *)(ids.data + i0 * ids.nb[0] + i1 * ids.nb[1]);
}

// A block for each expert. src: a, b, ids. A block counts the slots of its own expert and of the experts before it. So
// it knows where its own slots begin, and no block waits for another. Each warp has a contiguous run of the slots, so
// that the order is always the same.
// Results of slots without an expert are 0.
KERNEL(group_slots, 256, Node<3>)
{
    if (n.fault[0] != 0) return;
    __shared__ int before[8], own[8]; // for each warp: slots of the experts before, of this expert
    const Tensor &ids = n.src[2];
    const int experts = (int)n.src[0].ne[2], slots = (int)slots_of(n);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int run = (slots + 32 * warps - 1) / (32 * warps) * 32;
    const int begin = warp * run, end = begin + run < slots ? begin + run : slots;
    int *start = (int *)n.scratch, *order = start + experts + 1;
    for (int e = blockIdx.x; e < experts; e += gridDim.x) {
        int less = 0, mine = 0;
        for (int s = begin; s < end; s += 32) {
            const int id = expert_at(ids, s + lane, slots);
            less += __popc(__ballot_sync(0xffffffffu, id >= 0 && id < e));
            mine += __popc(__ballot_sync(0xffffffffu, id == e));
        }
        __syncthreads();
        if (lane == 0) before[warp] = less, own[warp] = mine;
        __syncthreads();
        int to = 0, all = 0;
        for (int w = 0; w < warps; ++w) {
            to += before[w] + (w < warp ? own[w] : 0);
            all += before[w] + own[w];
        }
        if (threadIdx.x == 0) start[e] = to;
        if (threadIdx.x == 0 && e == experts - 1) start[experts] = all;
        for (int s = begin; mine > 0 && s < end; s += 32) {
            const bool here = expert_at(ids, s + lane, slots) == e;
            const u32 others = __ballot_sync(0xffffffffu, here);
            if (here) order[to + __popc(others & ((1u << lane) - 1))] = s + lane;
            to += __popc(others);
        }
    }
    for (i64 s = (i64)blockIdx.x * warps + warp; s < slots; s += (i64)gridDim.x * warps) {
        if (expert_at(ids, s, slots) >= 0) continue;
        Columns none;
        float *y = (float *)result_at(n, none, s);
        for (i64 i = lane; i < n.dst.ne[0]; i += 32) y[i] = 0.0f;
    }
}

// Adds the parts of a product whose depth was split over blocks, in order. aux[2], aux[4]: see part_of
template <int N> DEV void add_all(const Node<N> &n)
{
    const i64 all = count(n.dst);
    const float *sums = (const float *)(n.scratch + n.aux[4]);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        float sum = 0.0f;
        for (i64 p = 0; p < n.aux[2]; ++p) sum += sums[p * all + e];
        *(float *)(n.dst.data + at(n.dst, element_index(n.dst, e))) = sum;
    }
}

KERNEL(add_parts, 256, Node<2>) { add_all(n); }
