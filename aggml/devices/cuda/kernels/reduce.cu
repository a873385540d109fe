// sum, sum_rows, mean, argmax, count_equal, cumsum, cross_entropy_loss.
//
// Totals take two launches. The first writes the sum of each block to scratch, as double. The second adds them in
// order, so that the result does not depend on which block was first.
// computes: sum_rows mean by sum_rows of 1 operand, for each row of source 0
// computes: argmax by argmax of 1 operand, for each row of source 0
// computes: cumsum by cumsum of 1 operand, for each row of source 0 in a warp
#include "common.cuh"

// sum: each block writes the sum of the elements of its threads.
KERNEL(sum_parts, 256, Node<1>)
{
    const i64 all = count(n.src[0]);
    double sum = 0.0;
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        sum += (double)load(n.src[0].type, n.src[0].data + at(n.src[0], element_index(n.src[0], e)));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) ((double *)n.scratch)[blockIdx.x] = sum;
}

KERNEL(count_parts, 256, Node<2>)
{
    const i64 all = count(n.src[0]);
    double sum = 0.0; // exact up to 2^53
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.src[0], e);
        sum += *(const int *)(n.src[0].data + at(n.src[0], i)) == *(const int *)(n.src[1].data + at(n.src[1], i));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) ((double *)n.scratch)[blockIdx.x] = sum;
}

// cross_entropy_loss: a block for each row, sum of label * log(soft_max(logit)).
KERNEL(entropy_parts, 256, Node<2>)
{
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a), width = a.ne[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(a, row);
        const float *x = (const float *)(a.data + at(a, i));
        const float *label = (const float *)(n.src[1].data + at(n.src[1], i));
        float most = -INF, sum = 0.0f;
        double loss = 0.0;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) most = x[e] > most ? x[e] : most;
        most = block_max(most);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) sum += expf(x[e] - most);
        const float shift = most + logf(block_sum(sum));
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) loss += (double)(label[e] * (x[e] - shift));
        loss = block_sum(loss);
        if (threadIdx.x == 0) ((double *)n.scratch)[row] = loss;
    }
}

// Adds the parts, by one block. aux: number of parts; number of rows to divide by, 0: no division
KERNEL(total, 256, Node<1>)
{
    double sum = 0.0;
    for (i64 e = threadIdx.x; e < n.aux[0]; e += blockDim.x) sum += ((const double *)n.scratch)[e];
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    if (n.op == OP_count_equal)
        *(i64 *)n.dst.data = (i64)sum;
    else
        store(n.dst.type, n.dst.data, (float)(n.aux[1] != 0 ? -sum / (double)n.aux[1] : sum));
}

// sum_rows, mean: a block for each row.
KERNEL(sum_rows, 256, Node<1>)
{
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(a, row);
        float sum = 0.0f;
        for (i64 e = threadIdx.x; e < a.ne[0]; e += blockDim.x) sum += f32_at(a.data + at(a, i) + e * a.nb[0]);
        sum = block_sum(sum);
        if (n.op == OP_mean) sum /= (float)a.ne[0];
        if (threadIdx.x == 0) *(float *)(n.dst.data + at(n.dst, 0, i.i1, i.i2, i.i3)) = sum;
    }
}

// The index of the largest element, the last of equal ones; NaN is ignored. A block for each row.
KERNEL(argmax, 256, Node<1>)
{
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        float most = -INF;
        i64 where = 0;
        for (i64 e = threadIdx.x; e < a.ne[0]; e += blockDim.x) {
            const float x = f32_at(a.data + e * a.nb[0] + row * a.nb[1]);
            if (x >= most) {
                most = x;
                where = e;
            }
        }
        const float all = block_max(most);
        __shared__ i64 last;
        if (threadIdx.x == 0) last = 0;
        __syncthreads();
        if (most == all) atomicMax(&last, where);
        __syncthreads();
        if (threadIdx.x == 0) *(int *)(n.dst.data + row * n.dst.nb[0]) = (int)last;
        __syncthreads();
    }
}

// A warp for each row, 32 elements at a time; running sums are double, as on the CPU.
KERNEL(cumsum, 32, Node<1>)
{
    const Tensor &a = n.src[0];
    const i64 rows = row_count(a);
    const int lane = threadIdx.x;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(a, row);
        double before = 0.0;
        for (i64 e = lane; e - lane < a.ne[0]; e += 32) {
            double sum = e < a.ne[0] ? (double)f32_at(a.data + at(a, i) + e * a.nb[0]) : 0.0;
#pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                const double other = __shfl_up_sync(0xffffffffu, sum, o);
                if (lane >= o) sum += other;
            }
            sum += before;
            if (e < a.ne[0]) *(float *)(n.dst.data + at(n.dst, i) + e * n.dst.nb[0]) = (float)sum;
            before = __shfl_sync(0xffffffffu, sum, 31);
        }
    }
}
