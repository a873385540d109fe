// Columns of b in mul_mat and mul_mat_id: how many there are, where they are, and where their results are stored.
//
// mul_mat: slot s is column s of a batch. mul_mat_id: slot s is element [s % used, s / used] of ids. A table in
// scratch groups the slots of each expert: start[experts + 1], then the slots in the order of their experts.
#pragma once
#include "common.cuh"

// 32 elements of a column: int8 codes, their scale, and the sums of both halves.
struct __align__(16) Act {
    int q[8];
    float d, s[2], unused;
};

struct Columns {
    const char *a;    // the matrix
    i64 first, count; // slots order[first] .. order[first + count - 1], or first .. first + count - 1
    const int *order; // 0: no table, slots are in sequence
    i64 batch;
};

template <int N> DEV i64 used_of(const Node<N> &n)
{
    return n.dst.ne[1];
}

DEV const int *starts(const Node<3> &n)
{
    return (const int *)n.scratch;
}

DEV i64 slots_of(const Node<3> &n)
{
    return n.src[2].ne[0] * n.src[2].ne[1];
}

DEV i64 table_bytes(const Node<3> &n)
{
    return (4 * (n.src[0].ne[2] + 1 + slots_of(n)) + 255) / 256 * 256;
}

// mul_mat: the columns of matrix number `batch` of b; the matrices of a repeat over those of b.
DEV Columns columns_of(const Node<2> &n, i64 batch)
{
    const Tensor &a = n.src[0], &b = n.src[1];
    Columns c;
    c.a = a.data;
    if (batch > 0) {
        i64 i3, i2;
        divide(batch, b.ne[2], &i3, &i2);
        c.a += i2 / (b.ne[2] / a.ne[2]) * a.nb[2] + i3 / (b.ne[3] / a.ne[3]) * a.nb[3];
    }
    c.first = 0;
    c.count = b.ne[1];
    c.order = 0;
    c.batch = batch;
    return c;
}

// mul_mat_id: tile number `tile` of all experts' tiles of `width` columns; count is 0 if there is no such tile. Every
// warp of the block must call this: its lanes look at 32 experts at a time.
DEV Columns columns_of(const Node<3> &n, i64 tile, int width)
{
    const int *start = starts(n);
    const int experts = (int)n.src[0].ne[2], lane = threadIdx.x & 31;
    Columns c;
    c.order = start + experts + 1;
    c.count = 0;
    c.first = 0;
    c.a = n.src[0].data;
    c.batch = 0;
    int before = 0; // tiles of the experts before e0
    for (int e0 = 0; e0 < experts; e0 += 32) {
        const int e = e0 + lane, first = e < experts ? start[e] : 0, here = e < experts ? start[e + 1] - first : 0;
        const int tiles = (here + width - 1) / width;
        int end = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int below = __shfl_up_sync(0xffffffffu, end, d);
            end += lane >= d ? below : 0;
        }
        end += before;
        const u32 beyond = __ballot_sync(0xffffffffu, tile < end);
        if (beyond != 0) {
            const int at = __popc(~beyond & (beyond - 1)); // the first lane whose tiles end after this tile
            const int left = (int)tile - __shfl_sync(0xffffffffu, end - tiles, at);
            const int its = __shfl_sync(0xffffffffu, here, at);
            c.a += (e0 + at) * n.src[0].nb[2];
            c.first = __shfl_sync(0xffffffffu, first, at) + left * width;
            c.count = its - left * width < width ? its - left * width : width;
            return c;
        }
        before = __shfl_sync(0xffffffffu, end, 31);
    }
    return c;
}

// Slot of column j.
DEV i64 slot_at(const Columns &c, i64 j)
{
    return c.order != 0 ? c.order[c.first + j] : c.first + j;
}

// The row of b that a slot needs, counted over all rows of b.
DEV i64 row_of(const Node<2> &n, const Columns &c, i64 slot)
{
    return c.batch * n.src[1].ne[1] + slot;
}

DEV i64 row_of(const Node<3> &n, const Columns &, i64 slot)
{
    const i64 used = n.src[2].ne[0], i2 = slot / used;
    return i2 * n.src[1].ne[1] + modulo(slot - i2 * used, n.src[1].ne[1]);
}

template <int N> DEV const char *column_at(const Node<N> &n, const Columns &c, i64 slot)
{
    return n.src[1].data + at(n.src[1], row_index(n.src[1], row_of(n, c, slot)));
}

DEV char *result_at(const Node<2> &n, const Columns &c, i64 slot)
{
    i64 i3, i2;
    divide(c.batch, n.dst.ne[2], &i3, &i2);
    return n.dst.data + slot * n.dst.nb[1] + i2 * n.dst.nb[2] + i3 * n.dst.nb[3];
}

DEV char *result_at(const Node<3> &n, const Columns &, i64 slot)
{
    const i64 used = n.dst.ne[1], i2 = slot / used;
    return n.dst.data + (slot - i2 * used) * n.dst.nb[1] + i2 * n.dst.nb[2];
}

DEV const Act *acts(const Node<2> &n)
{
    return (const Act *)n.scratch;
}

DEV const Act *acts(const Node<3> &n)
{
    return (const Act *)(n.scratch + table_bytes(n));
}

// --- tiles of 64 rows by 64 columns, 4 warps with 32 x 32 each

enum { TILE = 64 };

struct Shape {
    enum { I = 2, J = 4 }; // fragments of 16 rows, of 8 columns
    int to_row, to_column, group, member;
    __device__ __forceinline__ Shape()
    {
        const int warp = threadIdx.x >> 5;
        to_row = warp % 2 * 32;
        to_column = warp / 2 * 32;
        group = (threadIdx.x & 31) >> 2;
        member = threadIdx.x & 3;
    }
};

// The part of the depth that a block computes, in units of 32: all of it, or less if other blocks compute the rest. In
// that case add_parts adds the sums of all parts.
struct Part {
    i64 begin, end;
    float *sums; // 0: this part is all, so its sums are the result
};

// aux[2]: number of parts, aux[3]: depth of each in units of 32, aux[4]: offset of their sums in scratch
template <int N> DEV Part part_of(const Node<N> &n, i64 which)
{
    const i64 all = (n.src[0].ne[0] + 31) / 32;
    Part p;
    p.begin = which * n.aux[3];
    p.end = p.begin + n.aux[3] < all ? p.begin + n.aux[3] : all;
    p.sums = n.aux[2] == 1 ? 0 : (float *)(n.scratch + n.aux[4]) + which * n.dst.ne[0] * row_count(n.dst);
    return p;
}

template <int N> DEV float *sums_at(const Node<N> &n, const Columns &c, const Part &part, i64 slot)
{
    if (part.sums == 0) return (float *)result_at(n, c, slot);
    return part.sums + (c.batch * n.dst.ne[1] + slot) * n.dst.ne[0];
}

// Writes the sums of a tile. S tells which rows and columns of it a warp computes.
template <class S, int N>
DEV void write_tile(const Node<N> &n, const Columns &c, const Part &part, const S &shape, i64 row, i64 first,
                    const float sum[S::I][S::J][4])
{
#pragma unroll
    for (int j = 0; j < S::J; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const i64 column = first + shape.to_column + 8 * j + 2 * shape.member + r % 2;
            if (column >= c.count) continue;
            float *y = sums_at(n, c, part, slot_at(c, column));
#pragma unroll
            for (int i = 0; i < S::I; ++i) {
                const i64 to = row + shape.to_row + 16 * i + shape.group + r / 2 * 8;
                if (to < n.dst.ne[0]) y[to] = sum[i][j][r];
            }
        }
    }
}

// --- fused after a product: a sum or a gated unit with the element of another tensor at the same place

DEV float swiglu(float gate, float up)
{
    return gate / (1.0f + expf(-gate)) * up;
}

// aux[3]: the op, 0: none; aux[4]: the other tensor, f32; aux[5]: whether that is the first operand; aux[6]: its nb[1]
DEV float after(const Node<2> &n, i64 row, i64 slot, float x)
{
    if (n.aux[3] == 0) return x;
    const float other = f32_at((const char *)n.aux[4] + slot * n.aux[6] + row * (i64)sizeof(float));
    if (n.aux[3] == OP_add) return x + other;
    return n.aux[5] != 0 ? swiglu(other, x) : swiglu(x, other);
}

DEV float after(const Node<3> &, i64, i64, float x)
{
    return x;
}

// --- two products with the same columns, and their gated unit

// aux[3]: the op, aux[4]: the other matrix, of the shape of src[0], aux[5]: whether the other matrix gives the gate

template <int N> DEV const char *other_matrix(const Node<N> &n, const Columns &c)
{
    return (const char *)n.aux[4] + (c.a - n.src[0].data);
}

template <int N> DEV float unit_of(const Node<N> &n, float x, float other)
{
    return n.aux[5] != 0 ? swiglu(other, x) : swiglu(x, other);
}

template <int N> DEV void put(const Node<N> &n, const Columns &c, i64 row, i64 slot, float x)
{
    ((float *)result_at(n, c, slot))[row] = after(n, row, slot, x);
}

// --- mul_mat_id with few slots: each by itself

// The matrix of a slot's expert, and the slot as the only column; false: the slot has no expert.
DEV bool column_of_slot(const Node<3> &n, i64 slot, Columns &c)
{
    const i64 used = n.src[2].ne[0];
    const int id = *(const int *)(n.src[2].data + slot % used * n.src[2].nb[0] + slot / used * n.src[2].nb[1]);
    c.a = n.src[0].data + (id < 0 ? 0 : id) * n.src[0].nb[2];
    c.first = slot;
    c.count = 1;
    c.order = 0;
    c.batch = 0;
    return id >= 0;
}

// Writes zeros to a warp's rows of the result of a slot without an expert.
DEV void zero_rows(const Node<3> &n, const Columns &c, i64 slot, i64 row, int rows)
{
    const int lane = threadIdx.x & 31;
    if (lane < rows && row + lane < n.dst.ne[0]) ((float *)result_at(n, c, slot))[row + lane] = 0.0f;
}
