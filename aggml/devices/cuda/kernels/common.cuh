// What all kernels share: the parameter, element types, sums over a warp and a block.
//
// A file is compiled by NVRTC for a GPU, without any header of CUDA's, and by g++ against the shim of the tests, which
// defines AGGML_HOST. Therefore kernels begin with KERNEL, dynamic shared memory is declared with SHARED, and PTX
// instructions have a twin in C++. Blocks that use warps consist of whole warps; all lanes reach every *_sync.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEV static __device__ __forceinline__
#define DEV_CALL static __device__ __noinline__
#ifndef AGGML_HOST
#define CONSTANT static __device__ const
#define ENTRY(name, threads, blocks, Args) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args n)
#define SHARED(T, name) extern __shared__ __align__(16) char shared_bytes[]; T *name = (T *)shared_bytes
#endif

// Every kernel begins with this. From sm_90 on a kernel may be launched while the kernel before it still runs
// (programmatic dependent launch). This lets the next kernel be launched as soon as all blocks of this one have
// started, then waits until the kernel before has ended. That kernel has waited, too, so all earlier ones have ended as
// well.
DEV void wait_for_kernel_before()
{
#ifdef AGGML_HOST
    shim_wait();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define KERNEL(name, threads, Args) KERNEL_OF(name, threads, 1, Args)
// A kernel of which `blocks` blocks have to fit a multiprocessor: this bounds its registers.
#define KERNEL_OF(name, threads, blocks, Args) \
    DEV void name##_of(const Args &n); \
    ENTRY(name, threads, blocks, Args) \
    { \
        wait_for_kernel_before(); \
        name##_of(n); \
    } \
    DEV void name##_of(const Args &n)

#define NANF (__int_as_float(0x7fc00000))
#define INF (__int_as_float(0x7f800000))

// ggml's numbers of the element types
enum {
#define AGK_TYPE(NAME, id, ...) NAME = id,
#include "types.def"
};

enum {
#define AGK_OP(name, ...) OP_##name,
#include "ops.def"
#undef AGK_OP
};

// Strides are in bytes, as in ggml; data is 0 if an operand is not given.
struct Tensor {
    char *data;
    i64 ne[4], nb[4];
    i64 type;
};

// The only parameter of a kernel: a node with N operands. The host passes further values in aux.
template <int N> struct Node {
    Tensor dst, src[N];
    int p[16]; // op_params
    i64 aux[8];
    char *scratch;
    i64 *fault; // where errors are reported: see Kernels.launches in launch.py
    i64 op;
};

DEV float param(const int *p, int i)
{
    return __int_as_float(p[i]);
}

// --- elements as f32

#ifndef AGGML_HOST
DEV float half_to_float(u16 h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

DEV u16 float_to_half(float f)
{
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#endif

DEV float bf16_to_float(u16 b)
{
    return __uint_as_float((u32)b << 16);
}

DEV u16 float_to_bf16(float f)
{
    const u32 bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

struct half_t {
    u16 bits;
};
struct bf16_t {
    u16 bits;
};

DEV float to_float(float x) { return x; }
DEV float to_float(half_t x) { return half_to_float(x.bits); }
DEV float to_float(bf16_t x) { return bf16_to_float(x.bits); }
DEV void from_float(float x, float *p) { *p = x; }
DEV void from_float(float x, half_t *p) { p->bits = float_to_half(x); }
DEV void from_float(float x, bf16_t *p) { p->bits = float_to_bf16(x); }

// An element of f32, f16 or bf16, by the number of its type, which is the same for the whole grid.
DEV float load(i64 type, const char *p)
{
    if (type == F32) return *(const float *)p;
    const u16 bits = *(const u16 *)p;
    return type == F16 ? half_to_float(bits) : bf16_to_float(bits);
}

DEV void store(i64 type, char *p, float x)
{
    if (type == F32)
        *(float *)p = x;
    else
        *(u16 *)p = type == F16 ? float_to_half(x) : float_to_bf16(x);
}

DEV float f32_at(const char *p)
{
    return *(const float *)p;
}

// --- offsets of elements, in bytes

DEV i64 at(const Tensor &t, i64 i0, i64 i1, i64 i2, i64 i3)
{
    return i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}

DEV i64 count(const Tensor &t)
{
    return t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
}

DEV i64 row_count(const Tensor &t)
{
    return t.ne[1] * t.ne[2] * t.ne[3];
}

struct Index {
    i64 i0, i1, i2, i3;
};

// Division of numbers that fit in 32 bits costs a fifth of a 64-bit division.
DEV void divide(i64 x, i64 by, i64 *whole, i64 *rest)
{
    if (((u64)x | (u64)by) >> 32 == 0) {
        *whole = (u32)x / (u32)by;
        *rest = (u32)x % (u32)by;
    } else {
        *whole = x / by;
        *rest = x % by;
    }
}

DEV i64 modulo(i64 x, i64 by)
{
    if (x < by) return x;
    i64 whole, rest;
    divide(x, by, &whole, &rest);
    return rest;
}

// Row number `row` of dimensions 1 to 3.
DEV Index row_index(const Tensor &t, i64 row)
{
    Index i;
    i64 plane;
    i.i0 = 0;
    divide(row, t.ne[1], &plane, &i.i1);
    divide(plane, t.ne[2], &i.i3, &i.i2);
    return i;
}

// Element number `e` in logical order.
DEV Index element_index(const Tensor &t, i64 e)
{
    i64 row, i0;
    divide(e, t.ne[0], &row, &i0);
    Index i = row_index(t, row);
    i.i0 = i0;
    return i;
}

DEV i64 at(const Tensor &t, const Index &i)
{
    return at(t, i.i0, i.i1, i.i2, i.i3);
}

// The offset of the element of t at i, if t repeats in all dimensions.
DEV i64 at_repeated(const Tensor &t, const Index &i)
{
    return at(t, modulo(i.i0, t.ne[0]), modulo(i.i1, t.ne[1]), modulo(i.i2, t.ne[2]), modulo(i.i3, t.ne[3]));
}

DEV i64 global_thread()
{
    return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}

DEV i64 global_threads()
{
    return (i64)gridDim.x * blockDim.x;
}

// --- sums and maxima

template <class T> DEV T warp_sum(T v)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

// The largest number; NaN is ignored.
DEV float warp_max(float v)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

// The sum over a block of one dimension; every thread gets it. May be called repeatedly.
template <class T> DEV T block_sum(T v)
{
    __shared__ T part[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = warp_sum(v);
    if (blockDim.x == 32) return v;
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    return warp_sum(lane < (int)(blockDim.x >> 5) ? part[lane] : (T)0);
}

DEV float block_max(float v)
{
    __shared__ float part[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = warp_max(v);
    if (blockDim.x == 32) return v;
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    return warp_max(lane < (int)(blockDim.x >> 5) ? part[lane] : -INF);
}

// The minimum over a block; every thread gets it. Not to be called twice without a barrier between.
DEV u64 block_min(u64 v)
{
    __shared__ u64 least;
    if (threadIdx.x == 0) least = ~(u64)0;
    __syncthreads();
    atomicMin(&least, v);
    __syncthreads();
    return least;
}

DEV float alibi_slope(i64 head, i64 heads, float max_bias)
{
    i64 p = 1;
    while (2 * p <= heads) p *= 2;
    if (head < p) return powf(powf(2.0f, -max_bias / (float)p), (float)(head + 1));
    return powf(powf(2.0f, -max_bias / 2.0f / (float)p), (float)(2 * (head - p) + 1));
}
