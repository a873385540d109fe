/* The types of packed weights, for the products of all instruction sets: a kernel is a template of one of these, so the
 * compiler knows every fact below, and nothing is decided at run time. All static inline. Not here: how weights are
 * packed (mul_mat_packed.h, kernels/scalar/mul_mat_packed.c). */
#ifndef AGK_PACKED_KINDS_H
#define AGK_PACKED_KINDS_H

#include <stdbool.h>
#include <stddef.h>

#include "inline.h"

/* In the order of types.def: blocks of 32, then blocks of 256. */
typedef enum code_type {
#define AGK_PACKED(NAME, ...) NAME,
#include "table/types.def"
} code_type;

AGK_INLINE bool of_256(code_type t)
{
    return t >= Q2_K;
}

AGK_INLINE bool scale_per_16(code_type t)
{
    return t == Q2_K || t == Q3_K || t == Q6_K;
}

AGK_INLINE bool has_minimum(code_type t)
{
    return t == Q4_1 || t == Q5_1 || t == Q2_K || t == Q4_K || t == Q5_K;
}

/* The offset of the vectors of a block, in bytes. */
AGK_INLINE size_t data_at(code_type t)
{
    switch (t) {
#define AGK_PACKED(NAME, symbol, head, ...) \
    case NAME: return head;
#include "table/types.def"
    }
    return 0;
}

/* The number of vectors of 64 bytes. */
AGK_INLINE size_t vectors(code_type t)
{
    switch (t) {
#define AGK_PACKED(NAME, symbol, head, vectors, ...) \
    case NAME: return vectors;
#include "table/types.def"
    }
    return 0;
}

/* Where the vectors of a block of 256 lie, in bytes from the beginning of its data. They are in the order in which a
 * product first reads them, so that the hardware prefetcher, which follows consecutive lines, keeps up. On a Zen 4,
 * q6_K with its high bits behind all low ones reached 0.47 of the read bandwidth without a software prefetch, in this
 * order 0.98.
 *
 * A block has two halves of 128 k, a half four parts of 32, a part eight vectors of 4 k. Low bits: vector v of a
 * part, together with other parts of the half. High bits: of q3_K and q5_K one bit of each part, those of vectors v
 * and v + 4 in the low and the high nibble of one vector; of q6_K two bits. */
AGK_INLINE size_t low_bits_at(code_type t, int64_t half, int part, int v)
{
    const size_t h = (size_t)half, i = (size_t)v;
    switch (t) {
    case Q2_K: return 512 * h + 64 * i;
    case Q3_K: return 768 * h + 256 + 64 * i;
    case Q4_K: return 1024 * h + 512 * (size_t)(part / 2) + 64 * i;
    case Q5_K: return 1280 * h + 256 + 512 * (size_t)(part / 2) + 64 * i;
    case Q6_K: return 1536 * h + 192 * i + 64 * (size_t)(part % 2);
    default: return 0;
    }
}

AGK_INLINE size_t high_bits_at(code_type t, int64_t half, int v)
{
    const size_t h = (size_t)half, i = (size_t)v;
    return t == Q3_K ? 768 * h + 64 * (i % 4) : t == Q5_K ? 1280 * h + 64 * (i % 4) : 1536 * h + 192 * i + 128;
}

/* By how many bits the codes of a part have to be shifted right. */
AGK_INLINE int low_shift(code_type t, int part)
{
    return t == Q2_K || t == Q3_K ? 2 * part : t == Q6_K ? 4 * (part / 2) : 4 * (part % 2);
}

AGK_INLINE int high_shift(code_type t, int part, int v)
{
    return t == Q6_K ? 2 * part : 4 * (v / 4) + part;
}

AGK_INLINE int low_mask(code_type t)
{
    return t == Q2_K || t == Q3_K ? 3 : 15;
}

/* The position of the high bits above the low ones: the lowest of them, all of them; 0: the type has none. */
AGK_INLINE int high_place(code_type t)
{
    return t == Q3_K ? 2 : 4;
}

AGK_INLINE int high_mask(code_type t)
{
    return t == Q3_K ? 4 : t == Q5_K ? 16 : t == Q6_K ? 0x30 : 0;
}

#endif
