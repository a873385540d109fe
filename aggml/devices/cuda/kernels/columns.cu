// What comes before a product: columns of b as int8 (struct Act), and slots of mul_mat_id by expert.
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

// A warp for each 32 elements. src: rows; the Acts of all of them go to scratch + aux[0].
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

// Expert of a slot, -1 where there is none.
DEV int expert_at(const Tensor &ids, i64 slot, i64 slots)
{
    if (slot >= slots) return -1;
    i64 i1, i0;
    divide(slot, ids.ne[0], &i1, &i0);
    return *(const int *)(ids.data + i0 * ids.nb[0] + i1 * ids.nb[1]);
}

// One block. src: a, b, ids. Counts slots by expert, then puts them in order; results of slots without one are 0. A warp
// has an expert and looks at all slots, 32 at a time, so that the order is always the same.
KERNEL(group_slots, 1024, Node<3>)
{
    if (n.fault[0] != 0) return;
    const Tensor &ids = n.src[2];
    const i64 experts = n.src[0].ne[2], slots = slots_of(n);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int *start = (int *)n.scratch, *order = start + experts + 1;
    for (i64 e = warp; e < experts; e += warps) {
        int mine = 0;
        for (i64 s = 0; s < slots; s += 32) {
            mine += __popc(__ballot_sync(0xffffffffu, expert_at(ids, s + lane, slots) == (int)e));
        }
        if (lane == 0) start[e + 1] = mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        start[0] = 0;
        for (i64 e = 0; e < experts; ++e) start[e + 1] += start[e];
    }
    __syncthreads();
    for (i64 e = warp; e < experts; e += warps) {
        int to = start[e];
        for (i64 s = 0; s < slots; s += 32) {
            const bool here = expert_at(ids, s + lane, slots) == (int)e;
            const u32 others = __ballot_sync(0xffffffffu, here);
            if (here) order[to + __popc(others & ((1u << lane) - 1))] = (int)(s + lane);
            to += __popc(others);
        }
    }
    for (i64 s = warp; s < slots; s += warps) {
        if (expert_at(ids, s, slots) >= 0) continue;
        Columns none;
        float *y = (float *)result_at(n, none, s);
        for (i64 i = lane; i < n.dst.ne[0]; i += 32) y[i] = 0.0f;
    }
}

// The parts of a product whose depth was split over blocks, in order. aux[2], aux[4]: see part_of
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
