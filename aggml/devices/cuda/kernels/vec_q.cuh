// A warp's part of a product of a quantized matrix with few columns: it copies rows to shared memory in loads of 16
// bytes, unpacks them there, and multiplies them by the columns with dp4a. Not here: which rows a warp has, where
// results go (mul_mat_q.cu).
#pragma once
#include "columns.cuh"
#include "quant.cuh"

enum {
    CHUNK = 32 * 32 / Block<TYPE>::n * Block<TYPE>::bytes, // bytes of 32 groups of a row
    VECTORS = (CHUNK + 30) / 16,                           // of 16 bytes that a chunk touches at most
    WARPS = 4
};

// rows: the rows of a warp, which share the loads of the columns. each: vectors of 16 bytes that a lane loads.
template <int N> struct Width {
    static const int rows = CHUNK > 700 || N > 4 ? 2 : 4, each = (rows * VECTORS + 31) / 32;
};

// Loads the chunk of rows a, a + nb, .. that begins at byte `at`, as aligned vectors of 16 bytes, by all lanes
// together. No vector beyond the end of a row is read. Bytes before or after a row that a vector contains belong to the
// same buffer, whose size is a multiple of 16.
template <int N> DEV void fetch(uint4 v[Width<N>::each], const char *a, i64 nb, int last, i64 at, i64 bytes)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int e = 0; e < Width<N>::each; ++e) {
        const int i = lane + 32 * e, r = i / VECTORS, k = i % VECTORS;
        const char *row = a + (r < last ? r : last) * nb, *start = row + at, *end = row + bytes;
        const char *p = start - ((u64)start & 15) + 16 * k;
        if (end > start + CHUNK) end = start + CHUNK;
        v[e] = make_uint4(0, 0, 0, 0);
        if (r < Width<N>::rows && p < end) v[e] = *(const uint4 *)p;
    }
}

template <int N> DEV const char *staged_row(const uint4 *staged, const char *a, i64 nb, int last, i64 at, int r)
{
    const char *start = a + (r < last ? r : last) * nb + at;
    return (const char *)&staged[r * VECTORS] + ((u64)start & 15);
}

DEV float dot(const Group &o, int4 low, int4 high, float4 scale)
{
    const int *q = o.q;
    const int dot0 = __dp4a(q[3], low.w, __dp4a(q[2], low.z, __dp4a(q[1], low.y, __dp4a(q[0], low.x, 0))));
    const int dot1 = __dp4a(q[7], high.w, __dp4a(q[6], high.z, __dp4a(q[5], high.y, __dp4a(q[4], high.x, 0))));
    const float all = Block<TYPE>::halves ? o.d[0] * (float)dot0 + o.d[1] * (float)dot1 : o.d[0] * (float)(dot0 + dot1);
    return Block<TYPE>::mins ? all * scale.x + o.m[0] * scale.y + o.m[1] * scale.z : all * scale.x;
}

template <int N> struct Vec {
    enum { ROWS = Width<N>::rows, EACH = Width<N>::each };
    uint4 staged[WARPS][ROWS * VECTORS];
    float parts[WARPS][ROWS * N]; // each warp's sums
};

// Adds the products of 32 groups of all rows, which are in shared memory. `there`: whether this lane has a group.
template <int N>
DEV void add_groups(float sum[Width<N>::rows][N], const char *const rows[Width<N>::rows], const Act *const x[N], i64 g0,
                    bool there)
{
    enum { ROWS = Width<N>::rows };
    const int mine = there ? threadIdx.x & 31 : 0; // else: the bytes of this lane are no block
    Group o[ROWS];
    if (N > 2) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) unpack_staged<TYPE>(rows[r], mine, o[r]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const Act *y = x[j] + g0 + mine;
        const int4 low = *(const int4 *)&y->q[0], high = *(const int4 *)&y->q[4];
        const float4 scale = *(const float4 *)&y->d;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (N <= 2 && j == 0) {
                unpack_staged<TYPE>(rows[r], mine, o[r]);
                if (N == 1) __syncwarp(); // one row after the other takes fewer registers
            }
            const float value = dot(o[r], low, high, scale);
            sum[r][j] += there ? value : 0.0f;
        }
        if (N > 4) __syncwarp(); // one column after the other
    }
}

// Writes a warp's sums of rows a, a + nb, .. times columns x to `parts`. With `split`, a warp has every fourth chunk.
template <int N>
DEV void vec_parts(Vec<N> &f, const char *a, i64 nb, int last, const Act *const x[N], i64 groups, bool split)
{
    enum { ROWS = Width<N>::rows, EACH = Width<N>::each };
    const i64 bytes = groups * 32 / Block<TYPE>::n * Block<TYPE>::bytes;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float sum[ROWS][N];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum[r][j] = 0.0f;
    }
    const i64 step = split ? 32 * WARPS : 32;
    i64 g0 = split ? 32 * warp : 0;
    uint4 v[EACH];
    if (g0 < groups) fetch<N>(v, a, nb, last, g0 / 32 * CHUNK, bytes);
    for (; g0 < groups; g0 += step) {
        const i64 at = g0 / 32 * CHUNK;
        __syncwarp();
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if (lane + 32 * e < ROWS * VECTORS) f.staged[warp][lane + 32 * e] = v[e];
        }
        __syncwarp();
        if (g0 + step < groups) fetch<N>(v, a, nb, last, at + step / 32 * CHUNK, bytes);
        const char *rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) rows[r] = staged_row<N>(f.staged[warp], a, nb, last, at, r);
        add_groups<N>(sum, rows, x, g0, g0 + lane < groups);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float total = warp_sum(sum[r][j]);
            if (lane == 0) f.parts[warp][r * N + j] = total;
        }
    }
}

// A barrier of the warps that have the same rows: those of the block with `split`, else one warp.
DEV void meet(bool split)
{
    if (split)
        __syncthreads();
    else
        __syncwarp();
}

// Result number `which` of a warp's rows and columns; with `split`, the sum over the warps.
template <int N> DEV float total_of(const Vec<N> &f, int which, bool split)
{
    float total = f.parts[split ? 0 : threadIdx.x >> 5][which];
    for (int w = 1; split && w < WARPS; ++w) total += f.parts[w][which];
    return total;
}
