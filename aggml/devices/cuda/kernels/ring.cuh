// Products of 9 to 64 columns. Their tiles go through a ring of stages in shared memory: cp.async loads raw rows of the
// matrix and of the columns while earlier stages are multiplied.
//
// A block has 64 rows by WIDE columns. A warp has 32 of the rows, all columns, and every other step of the depth: each
// load from the columns serves 32 rows, and the sums of the two warps with the same rows are added in the end. Not
// here: the contents of a stage (mul_mat_q_ring.cu, mul_mat_f_ring.cu), which products come here (mul_mat.py).
#pragma once
#include "columns.cuh"
#include "mma.cuh"
#include "staged.cuh"

template <int WIDE> struct Halves {
    enum { I = 2, J = WIDE / 8 }; // fragments of 16 rows, of 8 columns
    int to_row, to_column, group, member, half;
    __device__ __forceinline__ Halves()
    {
        const int warp = threadIdx.x >> 5;
        to_row = warp % 2 * 32;
        to_column = 0;
        half = warp / 2; // which half of the steps this warp has
        group = (threadIdx.x & 31) >> 2;
        member = threadIdx.x & 3;
    }
};

// Waits until the oldest stage of a ring has arrived for all threads of the block, and all have finished with the stage
// before it.
DEV void next_stage(int stages)
{
    if (stages >= 4)
        wait_for_copies<2>();
    else if (stages == 3)
        wait_for_copies<1>();
    else
        wait_for_copies<0>();
    __syncthreads();
}

// Walks over stages begin .. end - 1 of the depth: bring(slot, stage) starts to load one, use(slot, stage) multiplies
// it.
template <class Bring, class Use> DEV void around(int begin, int end, int stages, Bring bring, Use use)
{
    for (int s = 0; s < stages - 1; ++s) {
        if (begin + s < end) bring(s, begin + s);
        commit_copies();
    }
    int slot = 0, free = stages - 1;
    for (int s = begin; s < end; ++s) {
        next_stage(stages);
        if (s + stages - 1 < end) bring(free, s + stages - 1);
        commit_copies();
        use(slot, s);
        slot = slot + 1 < stages ? slot + 1 : 0;
        free = free + 1 < stages ? free + 1 : 0;
    }
    __syncthreads(); // the ring is free
}

template <int WIDE> DEV void clear(float sum[2][WIDE / 8][4])
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < WIDE / 8; ++j) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.0f;
    }
}

// Adds the sums of both halves of the steps through `room`, and writes them to the result or to the sums of a part.
template <int WIDE>
DEV void meet_and_write(const Node<2> &n, const Columns &c, const Part &part, const Halves<WIDE> &shape, i64 row,
                        i64 first, float sum[2][WIDE / 8][4], float *room)
{
    enum { J = WIDE / 8 };
    float *mine = room + (threadIdx.x & 63);
    if (shape.half == 1) {
#pragma unroll
        for (int e = 0; e < 8 * J; ++e) mine[64 * e] = sum[e / (4 * J)][e / 4 % J][e % 4];
    }
    __syncthreads();
    if (shape.half == 0) {
#pragma unroll
        for (int e = 0; e < 8 * J; ++e) sum[e / (4 * J)][e / 4 % J][e % 4] += mine[64 * e];
        const bool parts = part.sums != 0;
        const i64 nb = parts ? n.dst.ne[0] * (i64)sizeof(float) : n.dst.nb[1];
        char *y = parts ? (char *)(part.sums + c.batch * n.dst.ne[1] * n.dst.ne[0]) : result_at(n, c, 0);
        y += (first + 2 * shape.member) * nb + (row + shape.to_row + shape.group) * (i64)sizeof(float);
        const i64 rows = n.dst.ne[0] - row - shape.to_row - shape.group, columns = c.count - first - 2 * shape.member;
#pragma unroll
        for (int e = 0; e < 8 * J; ++e) {
            const int i = e / (4 * J), j = e / 4 % J, r = e % 4, below = 16 * i + r / 2 * 8, beside = 8 * j + r % 2;
            if (below < rows && beside < columns) ((float *)(y + beside * nb))[below] = sum[i][j][r];
        }
    }
    __syncthreads();
}
