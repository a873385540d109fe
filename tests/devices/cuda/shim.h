// A CUDA kernel file compiled by g++: the threads of a block are fibers, which shim.cpp runs one after the other.
//
// Here: CUDA's language as far as our kernels use it, and C++ versions of instructions. Not here: the scheduler. The
// shim finds wrong numbers, indices and barriers; with sanitizers also accesses out of bounds. It models neither the
// GPU's memory order nor its speed. It is stricter than a GPU: all 32 lanes of a warp have to reach a *_sync.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#define AGGML_HOST 1
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __global__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static
#define CONSTANT static const
#define SHARED(T, name) T *name = (T *)shim_shared()
#define ENTRY(name, threads, blocks, Args) \
    static void name##_body(const Args &n); \
    extern "C" __attribute__((visibility("default"))) const unsigned name##_size = sizeof(Args); \
    extern "C" __attribute__((visibility("default"))) const unsigned name##_threads = threads; \
    extern "C" __attribute__((visibility("default"))) void name(const void *args) \
    { \
        name##_body(*(const Args *)args); \
    } \
    static void name##_body(const Args &n)

struct uint3 {
    unsigned x, y, z;
};
struct __align__(8) int2 { int x, y; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

extern "C" {
extern uint3 shim_thread, shim_block, shim_block_dim, shim_grid_dim;
void *shim_shared(void);
void shim_barrier(void);
// The values that the 32 lanes of the warp passed; valid until the next exchange.
const uint64_t *shim_exchange(unsigned mask, uint64_t value);
unsigned shim_lane(void);
void shim_fail(const char *what);
void shim_wait(void); // waits for the kernel before; shim_waited counts these threads
// An asynchronous copy of 16 bytes, or of zeros if not wanted: the bytes arrive when this thread waits for their group.
void shim_copy_async(void *to, const void *from, bool wanted);
void shim_commit_copies(void);
void shim_wait_for_copies(unsigned left);
}
#define threadIdx shim_thread
#define blockIdx shim_block
#define blockDim shim_block_dim
#define gridDim shim_grid_dim

static inline void __syncthreads() { shim_barrier(); }
static inline void __syncwarp(unsigned mask = ~0u) { shim_exchange(mask, 0); }
static inline int __syncthreads_or(int p)
{
    static int any;
    shim_barrier();
    any = 0;
    shim_barrier();
    any |= p != 0;
    shim_barrier();
    return any;
}
static inline void __threadfence() {}

template <class T> static inline uint64_t shim_raw(T v)
{
    static_assert(sizeof v <= 8, "a shuffle moves at most 8 bytes");
    uint64_t raw = 0;
    memcpy(&raw, &v, sizeof v);
    return raw;
}
template <class T> static inline T shim_cooked(uint64_t raw)
{
    T v;
    memcpy(&v, &raw, sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane)
{
    return shim_cooked<T>(shim_exchange(mask, shim_raw(v))[lane & 31]);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int lanes)
{
    return shim_cooked<T>(shim_exchange(mask, shim_raw(v))[(shim_lane() ^ (unsigned)lanes) & 31]);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by)
{
    const uint64_t *all = shim_exchange(mask, shim_raw(v));
    return shim_lane() < by ? v : shim_cooked<T>(all[shim_lane() - by]);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by)
{
    const uint64_t *all = shim_exchange(mask, shim_raw(v));
    return shim_lane() + by > 31 ? v : shim_cooked<T>(all[shim_lane() + by]);
}
static inline unsigned __ballot_sync(unsigned mask, int p)
{
    const uint64_t *all = shim_exchange(mask, p != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) bits |= (unsigned)all[i] << i;
    return bits;
}
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }

// One OS thread runs all fibers, so plain memory suffices.
template <class T> static inline T atomicAdd(T *p, T v)
{
    const T old = *p;
    *p = old + v;
    return old;
}
template <class T> static inline T atomicCAS(T *p, T expected, T v)
{
    const T old = *p;
    if (old == expected) *p = v;
    return old;
}
template <class T> static inline T atomicMax(T *p, T v)
{
    const T old = *p;
    if (old < v) *p = v;
    return old;
}
template <class T> static inline T atomicMin(T *p, T v)
{
    const T old = *p;
    if (v < old) *p = v;
    return old;
}

static inline float __int_as_float(int x) { return shim_cooked<float>((uint32_t)x); }
static inline float __uint_as_float(unsigned x) { return shim_cooked<float>(x); }
static inline int __float_as_int(float x) { return (int)shim_raw(x); }
static inline unsigned __float_as_uint(float x) { return (unsigned)shim_raw(x); }
static inline float shim_rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define rsqrtf shim_rsqrtf /* math.h of C23 declares a function of this name, which rounds only once */
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __float2int_rn(float x)
{
    if (x != x) return 0;
    return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : (int)rintf(x);
}
/* Rounds each operation by itself: the compiler cannot look into the asm, so it cannot fuse. */
template <class T> static inline T shim_rounded(T x)
{
    __asm__("" : "+m"(x));
    return x;
}
static inline float __fmul_rn(float a, float b) { return shim_rounded(a * b); }
static inline float __fadd_rn(float a, float b) { return shim_rounded(a + b); }
static inline double __dmul_rn(double a, double b) { return shim_rounded(a * b); }
static inline double __dadd_rn(double a, double b) { return shim_rounded(a + b); }
static inline double __ddiv_rn(double a, double b) { return shim_rounded(a / b); }
static inline double __longlong_as_double(long long x)
{
    double y;
    memcpy(&y, &x, sizeof y);
    return y;
}
using std::max;
using std::min;

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = selector >> 4 * i & 15, byte = bytes >> 8 * (s & 7) & 255;
        r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}

static inline float half_to_float(unsigned short h)
{
    _Float16 value;
    memcpy(&value, &h, 2);
    return (float)value;
}
static inline unsigned short float_to_half(float f)
{
    const _Float16 value = (_Float16)f;
    unsigned short h;
    memcpy(&h, &value, 2);
    return h;
}

// --- the tensor core instructions in C++; fragments as in the PTX manual: d += a b

// ldmatrix.x4: lane l has the address of row l % 8 of matrix l / 8
template <bool TURNED> static inline void shim_ldmatrix(unsigned r[4], const void *row)
{
    uint64_t rows[32];
    if ((uintptr_t)row % 16 != 0) shim_fail("a row of a matrix that is not aligned");
    memcpy(rows, shim_exchange(~0u, (uint64_t)(uintptr_t)row), sizeof rows);
    const unsigned group = shim_lane() >> 2, member = shim_lane() & 3;
    for (unsigned i = 0; i < 4; ++i) {
        const auto at = [&](unsigned y, unsigned x) { return (unsigned)((const unsigned short *)rows[8 * i + y])[x]; };
        r[i] = TURNED ? at(2 * member, group) | at(2 * member + 1, group) << 16
                      : at(group, 2 * member) | at(group, 2 * member + 1) << 16;
    }
}

// mma.m16n8k16, a row major, b column major, of f16 or bf16
template <bool BF16> static inline void shim_mma_16816(float d[4], const unsigned a[4], const unsigned b[2])
{
    uint64_t rows[2][32], columns[32];
    memcpy(rows[0], shim_exchange(~0u, a[0] | (uint64_t)a[1] << 32), sizeof rows[0]);
    memcpy(rows[1], shim_exchange(~0u, a[2] | (uint64_t)a[3] << 32), sizeof rows[1]);
    memcpy(columns, shim_exchange(~0u, b[0] | (uint64_t)b[1] << 32), sizeof columns);
    const unsigned group = shim_lane() >> 2, member = shim_lane() & 3;
    const auto value = [](uint64_t word, unsigned which) {
        const unsigned short bits = (unsigned short)(word >> 16 * which);
        return BF16 ? __uint_as_float((unsigned)bits << 16) : half_to_float(bits);
    };
    for (unsigned r = 0; r < 4; ++r) {
        const unsigned high = r / 2, column = member * 2 + r % 2;
        for (unsigned k = 0; k < 16; ++k) {
            const uint64_t x = rows[k / 8][group * 4 + k % 8 / 2], y = columns[column * 4 + k % 8 / 2];
            d[r] += value(x, 2 * high + k % 2) * value(y, 2 * (k / 8) + k % 2);
        }
    }
}
// mma.m16n8k32 of s8
static inline void shim_mma_16832(int d[4], const unsigned a[4], const unsigned b[2])
{
    uint64_t rows[2][32], columns[32];
    memcpy(rows[0], shim_exchange(~0u, a[0] | (uint64_t)a[1] << 32), sizeof rows[0]);
    memcpy(rows[1], shim_exchange(~0u, a[2] | (uint64_t)a[3] << 32), sizeof rows[1]);
    memcpy(columns, shim_exchange(~0u, b[0] | (uint64_t)b[1] << 32), sizeof columns);
    const unsigned group = shim_lane() >> 2, member = shim_lane() & 3;
    for (unsigned r = 0; r < 4; ++r) {
        const unsigned high = r / 2, column = member * 2 + r % 2;
        for (unsigned k = 0; k < 32; ++k) {
            const uint64_t x = rows[k / 16][group * 4 + k % 16 / 4], y = columns[column * 4 + k % 16 / 4];
            d[r] += (int)(int8_t)(x >> (32 * high + 8 * (k % 4))) * (int)(int8_t)(y >> (32 * (k / 16) + 8 * (k % 4)));
        }
    }
}
