// Exclusive prefix sums over the threads of a block, for kernels that compute positions or bounds. Not here: the sum of
// all threads (common.cuh).
#pragma once
#include "common.cuh"

// The sum of the numbers of all threads before this one, in a block of one dimension. May be called repeatedly.
template <class T> DEV T sum_before(T mine)
{
    __shared__ T totals[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    T sum = mine;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const T below = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o) sum += below;
    }
    __syncthreads();
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += totals[w];
    return sum - mine;
}
