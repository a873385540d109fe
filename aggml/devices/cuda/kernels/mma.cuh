// Products of 16 x 8 on tensor cores, d += a b, with fragments as in the PTX manual; sm_75 composes them of smaller
// ones.
#pragma once
#include "common.cuh"

// ggml's number of a plain type.
template <class T> struct Type;
template <> struct Type<float> { static const int number = F32; };
template <> struct Type<half_t> { static const int number = F16; };
template <> struct Type<bf16_t> { static const int number = BF16; };

// Two neighbouring elements of a fragment of T, in a word.
template <class T> DEV u32 pair_of(float low, float high)
{
#if !defined(AGGML_HOST) && __CUDA_ARCH__ >= 800
    u32 pair;
    if (Type<T>::number == BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    T x, y;
    from_float(low, &x);
    from_float(high, &y);
    return *(const u16 *)&x | (u32) * (const u16 *)&y << 16;
#endif
}

// 16 x 32 by 32 x 8 of int8
DEV void mma_int8(int d[4], const u32 a[4], const u32 b[2])
{
#ifdef AGGML_HOST
    shim_mma_16832(d, a, b);
#elif __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) { // halves of the depth; in each, the upper and the lower 8 rows
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+r"(d[0]), "+r"(d[1])
                     : "r"(a[2 * half]), "r"(b[half]));
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+r"(d[2]), "+r"(d[3])
                     : "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
}

// 16 x 16 by 16 x 8 of f16
DEV void mma_half(float d[4], const u32 a[4], const u32 b[2])
{
#ifdef AGGML_HOST
    shim_mma_16816<false>(d, a, b);
#elif __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
}

#if !defined(AGGML_HOST) && __CUDA_ARCH__ < 800
// sm_75 has no products of bf16: lanes get the elements of others by shuffles. This is a loop because it takes minutes
// to compile if unrolled.
DEV float4 bf16_by_shuffles(float4 d, uint4 a, uint2 b)
{
    const int group = (threadIdx.x & 31) >> 2, member = threadIdx.x & 3;
#pragma unroll 1
    for (int pair = 0; pair < 8; ++pair) {
        const int lane = group * 4 + pair % 4;
        const u32 top = __shfl_sync(0xffffffffu, pair < 4 ? a.x : a.z, lane);
        const u32 bottom = __shfl_sync(0xffffffffu, pair < 4 ? a.y : a.w, lane);
        const u32 y = __shfl_sync(0xffffffffu, pair < 4 ? b.x : b.y, 2 * member * 4 + pair % 4);
        const u32 z = __shfl_sync(0xffffffffu, pair < 4 ? b.x : b.y, (2 * member + 1) * 4 + pair % 4);
        const float top0 = __uint_as_float(top << 16), top1 = __uint_as_float(top & 0xffff0000u);
        const float bottom0 = __uint_as_float(bottom << 16), bottom1 = __uint_as_float(bottom & 0xffff0000u);
        const float y0 = __uint_as_float(y << 16), y1 = __uint_as_float(y & 0xffff0000u);
        const float z0 = __uint_as_float(z << 16), z1 = __uint_as_float(z & 0xffff0000u);
        d.x += top0 * y0 + top1 * y1;
        d.y += top0 * z0 + top1 * z1;
        d.z += bottom0 * y0 + bottom1 * y1;
        d.w += bottom0 * z0 + bottom1 * z1;
    }
    return d;
}
#endif

// 16 x 16 by 16 x 8 of bf16
DEV void mma_bf16(float d[4], const u32 a[4], const u32 b[2])
{
#ifdef AGGML_HOST
    shim_mma_16816<true>(d, a, b);
#elif __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const float4 sum = bf16_by_shuffles(make_float4(d[0], d[1], d[2], d[3]), make_uint4(a[0], a[1], a[2], a[3]),
                                        make_uint2(b[0], b[1]));
    d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
#endif
}

// A row of a tile: 16 words, plus 4 so that the lanes of a fragment access different banks. A step of depth is 8 words.
typedef u32 TileRow[20];

// Rows row .. row + 15 of a, step s.
DEV void load_a(u32 a[4], const TileRow *tile, int row, int s)
{
    const int group = (threadIdx.x & 31) >> 2, member = threadIdx.x & 3, word = 8 * s + member;
    a[0] = tile[row + group][word];
    a[1] = tile[row + group + 8][word];
    a[2] = tile[row + group][word + 4];
    a[3] = tile[row + group + 8][word + 4];
}

// Columns column .. column + 7 of b, each of which is a row of the tile.
DEV void load_b(u32 b[2], const TileRow *tile, int column, int s)
{
    const int group = (threadIdx.x & 31) >> 2, member = threadIdx.x & 3, word = 8 * s + member;
    b[0] = tile[column + group][word];
    b[1] = tile[column + group][word + 4];
}
