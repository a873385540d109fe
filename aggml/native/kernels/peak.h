/* Peaks: the most operations that the processor can do, measured by loops of nothing but the instruction in question.
 *
 * A kernel peak_<name> runs a block of instructions `turns` times and returns how many operations one turn has; a
 * multiplication and an addition are two. Consecutive instructions use different registers, so that none waits for
 * the one before: FMA and similar instructions take 4 or 5 cycles. Not here: threads and clocks
 * (runtime/roofline.c). */
#ifndef AGK_PEAK_H
#define AGK_PEAK_H

#include "kernels/inline.h"
#include "table/kernel_types.h"

/* `instruction` adds products of %1 with itself to %0; `letter` is the register class; `chains` sums are
 * independent. */
#define AGK_PEAK(symbol, vector, letter, start, chains, instruction, operations) \
    double symbol(int64_t turns) \
    { \
        const vector x = start; \
        vector sums[chains]; \
        AGK_UNROLL for (int i = 0; i < (chains); ++i) sums[i] = x; \
        for (int64_t turn = 0; turn < turns; ++turn) { \
            AGK_UNROLL for (int i = 0; i < (chains); ++i) \
            { \
                __asm__ volatile(instruction : "+" letter(sums[i]) : letter(x)); \
            } \
        } \
        return (double)(operations) * (chains); \
    }

/* Loads every line; `letter` is the register class. The next 4 KB are prefetched. */
#define AGK_PEAK_READ(symbol, vector, letter) \
    void symbol(int64_t size, const char *data) \
    { \
        enum { WIDE = sizeof(vector), SUMS = 8 }; \
        vector sums[SUMS]; \
        memset(sums, 0, sizeof sums); \
        for (int64_t i = 0; i < size; i += WIDE * SUMS) { \
            AGK_UNROLL for (int k = 0; k < SUMS; ++k) \
            { \
                if (k * WIDE % 64 == 0) __builtin_prefetch(data + i + 4096 + k * WIDE); \
                sums[k] ^= *(const vector *)(const void *)(data + i + k * WIDE); \
            } \
        } \
        AGK_UNROLL for (int k = 0; k < SUMS; ++k) __asm__ volatile("" : : letter(sums[k])); \
    }

#endif
