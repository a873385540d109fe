// Keys of sort.cu and sort_long.cu: an f32 element as a number of 32 bits that ascends in the wanted order.
//
// A key of 64 bits has the element's index in its lower half. So keys are distinct and equal values keep their order.
// NaN comes last, and -0 equals 0.
#pragma once
#include "common.cuh"

DEV u32 value_key(const char *p, bool descending)
{
    const float value = f32_at(p);
    u32 bits = __float_as_uint(value);
    if (value != value) return 0xffffffffu;
    if (bits == 0x80000000u) bits = 0;
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return descending ? ~bits : bits;
}

DEV u64 key_of(const char *p, i64 index, bool descending)
{
    return (u64)value_key(p, descending) << 32 | (u64)index;
}

// Sorts `size` keys, a power of two, in ascending order, by a whole block.
DEV void bitonic(u64 *keys, i64 size)
{
    __syncthreads();
    for (i64 run = 2; run <= size; run *= 2) {
        for (i64 apart = run / 2; apart > 0; apart /= 2) {
            for (i64 t = threadIdx.x; t < size / 2; t += blockDim.x) {
                const i64 low = 2 * t - (t & (apart - 1)), high = low + apart;
                const u64 x = keys[low], y = keys[high];
                if ((x > y) == ((low & run) == 0)) {
                    keys[low] = y;
                    keys[high] = x;
                }
            }
            __syncthreads();
        }
    }
}
