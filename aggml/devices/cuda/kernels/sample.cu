// sample: draws one of the best elements of each row. penalize: changes some elements of each row.
// computes: sample by sample of 3 operands, for each row of source 0
// computes: penalize by penalize of 3 operands, for each row of source 0
//
// The token must be the one that the CPU draws. Therefore weights are integers, and the operations that compute them
// are rounded one by one; native/lower/sample.c has the same operations and says why. A thread has a run of consecutive
// candidates. It needs the sum of all runs before its own, then walks its run from there.
#include "scan.cuh"

enum { WHOLE = 42 };
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, DRAW };
enum { UP, DOWN, BIAS, FALL, STEP };

DEV u64 weight_of(double x)
{
    const double series[13] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                               1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,     1.0 / 6.0,
                               1.0 / 2.0,         1.0,              1.0};
    if (x >= 0.0) return (u64)1 << WHOLE;
    if (!(x > -30.0)) return 0;
    const double t = __dmul_rn(x, 1.4426950408889634), whole = floor(t);
    const double z = __dmul_rn(__dadd_rn(__dadd_rn(t, -whole), -0.5), 0.6931471805599453);
    double sum = 1.0 / 6227020800.0;
#pragma unroll
    for (int i = 0; i < 13; ++i) sum = __dadd_rn(__dmul_rn(sum, z), series[i]);
    const double scale = __longlong_as_double((i64)(1023 + WHOLE + (int)whole) << 52);
    return (u64)__dadd_rn(__dmul_rn(__dmul_rn(sum, 1.4142135623730951), scale), 0.5);
}

struct Row {
    const char *x, *ids;
    i64 n, x_step, id_step, first, last; // candidates of this thread
    float best;
};

DEV int id_of(const Row &r, i64 i)
{
    return *(const int *)(r.ids + i * r.id_step);
}

DEV u64 weight_at(const Row &r, i64 i, double temperature)
{
    const int id = id_of(r, i);
    if (id < 0 || id >= r.n) return 0;
    const float value = f32_at(r.x + id * r.x_step);
    if (value == r.best) return (u64)1 << WHOLE;
    return weight_of(__ddiv_rn(__dadd_rn((double)value, -(double)r.best), temperature));
}

// The sum of the weights of this thread's candidates that are among the first `most`.
DEV u64 sum_of(const Row &r, i64 most, double temperature)
{
    u64 sum = 0;
    for (i64 i = r.first; i < r.last && i < most; ++i) sum += weight_at(r, i, temperature);
    return sum;
}

// How many of the first `most` running sums of weights are below `bound`; `mine`: this thread's sum. By a whole block.
DEV i64 sums_below(const Row &r, i64 most, double temperature, u64 bound, u64 mine)
{
    u64 sum = sum_before(mine);
    i64 below = 0;
    for (i64 i = r.first; i < r.last && i < most; ++i) {
        sum += weight_at(r, i, temperature);
        if (sum >= bound) break;
        ++below;
    }
    return block_sum(below);
}

// How many first candidates, of `kept`, are at least `share` times as probable as the first of all. By a whole block.
DEV i64 enough_of(const Row &r, i64 kept, double share)
{
    const double least = __dmul_rn(share, (double)((u64)1 << WHOLE));
    __shared__ u64 less; // the first candidate that is not
    if (threadIdx.x == 0) less = (u64)kept;
    __syncthreads();
    for (i64 i = r.first; i < r.last && i < kept; ++i) {
        if ((double)weight_at(r, i, 1.0) >= least) continue;
        atomicMin(&less, (u64)i);
        break;
    }
    __syncthreads();
    const i64 found = (i64)less;
    __syncthreads();
    return found > 1 ? found : 1;
}

DEV int drawn(const Row &r, i64 k, const double *how)
{
    const int first = id_of(r, 0);
    if (!(how[TEMPERATURE] > 0.0)) return first;
    i64 kept = how[TOP_K] >= 1.0 && how[TOP_K] < (double)k ? (i64)how[TOP_K] : k;
    if (how[TOP_P] < 1.0) {
        const u64 mine = sum_of(r, kept, 1.0);
        const double bound = ceil(__dmul_rn(how[TOP_P], (double)block_sum(mine)));
        const i64 below = sums_below(r, kept, 1.0, bound > 0.0 ? (u64)bound : 0, mine);
        kept = below + 1 < kept ? below + 1 : kept;
    }
    if (how[MIN_P] > 0.0) kept = enough_of(r, kept, how[MIN_P]);
    const u64 mine = sum_of(r, kept, how[TEMPERATURE]), all = block_sum(mine);
    const double reached = how[DRAW] > 0.0 ? floor(__dmul_rn(how[DRAW], (double)all)) : 0.0;
    const i64 place = sums_below(r, kept, how[TEMPERATURE], (u64)reached + 1, mine);
    return all == 0 ? first : id_of(r, place < kept ? place : kept - 1);
}

// A block for each row. src: a, ids, how
KERNEL(sample, 256, Node<3>)
{
    const Tensor &a = n.src[0], &ids = n.src[1], &how = n.src[2];
    const i64 k = ids.ne[0], each = (k + blockDim.x - 1) / blockDim.x;
    for (i64 row = blockIdx.x; row < a.ne[1]; row += gridDim.x) {
        Row r;
        r.x = a.data + row * a.nb[1];
        r.ids = ids.data + row * ids.nb[1];
        r.n = a.ne[0];
        r.x_step = a.nb[0];
        r.id_step = ids.nb[0];
        r.first = threadIdx.x * each;
        r.last = r.first + each < k ? r.first + each : k;
        const int first = id_of(r, 0);
        r.best = first < 0 || first >= r.n ? NANF : f32_at(r.x + first * r.x_step);
        const int id = drawn(r, k, (const double *)(how.data + row * how.nb[1]));
        if (threadIdx.x == 0) *(int *)(n.dst.data + row * n.dst.nb[0]) = id;
    }
}

// A block for each row. src: a, ids, how
KERNEL(penalize, 256, Node<3>)
{
    const Tensor &a = n.src[0], &ids = n.src[1], &how = n.src[2];
    for (i64 row = blockIdx.x; row < a.ne[1]; row += gridDim.x) {
        const char *x = a.data + row * a.nb[1];
        float *y = (float *)(n.dst.data + row * n.dst.nb[1]);
        for (i64 e = threadIdx.x; e < a.ne[0]; e += blockDim.x) y[e] = f32_at(x + e * a.nb[0]);
        __syncthreads();
        for (i64 j = threadIdx.x; j < ids.ne[0]; j += blockDim.x) {
            const int id = *(const int *)(ids.data + j * ids.nb[0] + row * ids.nb[1]);
            if (id < 0 || id >= a.ne[0]) continue;
            const char *by = how.data + 4 * j + row * how.nb[2];
            const float value = f32_at(x + id * a.nb[0]);
            float changed = __fmul_rn(value, f32_at(by + (value > 0.0f ? UP : DOWN) * how.nb[1]));
            changed = __fadd_rn(changed, f32_at(by + BIAS * how.nb[1]));
            changed = __fadd_rn(changed, -f32_at(by + FALL * how.nb[1]));
            y[id] = __fadd_rn(changed, -f32_at(by + STEP * how.nb[1]));
        }
        __syncthreads();
    }
}
