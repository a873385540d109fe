// solve_tri: A x = b with A lower triangular, by forward substitution. A first launch looks for zeros on the diagonals.
#include "common.cuh"

// One block. Leaves a fault of kind 2 for the first zero: index on the diagonal, number of the matrix.
KERNEL(check_diagonal, 256, Node<1>)
{
    const Tensor &a = n.src[0];
    const i64 all = a.ne[0] * a.ne[2] * a.ne[3];
    i64 first = all;
    for (i64 e = threadIdx.x; e < all && first == all; e += blockDim.x) {
        const i64 i = e % a.ne[0], plane = e / a.ne[0];
        if (f32_at(a.data + at(a, i, i, plane % a.ne[2], plane / a.ne[2])) == 0.0f) first = e;
    }
    const i64 least = (i64)block_min((u64)first);
    if (threadIdx.x == 0 && least < all && n.fault[0] == 0) {
        n.fault[1] = least % a.ne[0];
        n.fault[2] = least / a.ne[0];
        n.fault[0] = 2;
    }
}

// A thread for each column of b. src: a, b
KERNEL(solve_tri, 64, Node<2>)
{
    if (n.fault[0] != 0) return;
    const Tensor &a = n.src[0], &b = n.src[1], &y = n.dst;
    const i64 all = b.ne[0] * b.ne[2] * b.ne[3];
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const i64 c = e % b.ne[0], i2 = e / b.ne[0] % b.ne[2], i3 = e / b.ne[0] / b.ne[2];
        for (i64 i = 0; i < a.ne[1]; ++i) {
            float sum = 0.0f;
            for (i64 j = 0; j < i; ++j) {
                sum += f32_at(a.data + at(a, j, i, i2, i3)) * f32_at(y.data + at(y, c, j, i2, i3));
            }
            const float value = f32_at(b.data + at(b, c, i, i2, i3)) - sum;
            *(float *)(y.data + at(y, c, i, i2, i3)) = value / f32_at(a.data + at(a, i, i, i2, i3));
        }
    }
}
