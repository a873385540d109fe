/* The types of packed weights, for the products of all instruction sets: a kernel is a template of one of these, so the
 * compiler knows every fact below, and nothing is decided at run time. The facts come from types.def. All static
 * inline. Not here: how weights are packed (mul_mat_packed.h, kernels/scalar/mul_mat_packed.c). */
#ifndef AGK_PACKED_TYPES_H
#define AGK_PACKED_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inline.h"
#include "mul_mat_packed.h"

/* In the order of types.def: blocks of 32, then blocks of 256. */
typedef enum code_type {
#define AGK_PACKED(NAME, ...) NAME,
#include "table/types.def"
} code_type;

/* The tables of types.def that turn the bits of an element into its code; from LEVELS_IQ3_XXS on they are those of
 * codebook types. */
typedef enum level_table {
    LEVELS_NONE,
    LEVELS_IQ4,
    LEVELS_FP4,
    LEVELS_IQ3_XXS,
    LEVELS_IQ3_S,
    LEVELS_IQ2,
    LEVELS_IQ1
} level_table;

/* A row of types.def. */
typedef struct packed_type {
    size_t head, vectors;
    agk_packed_sums sums;
    int offset;
    code_type bits;
    level_table levels;
    float unit;
} packed_type;

/* A constant that is read field by field: a function that returned the row was 200 statements in each of its callers,
 * until the compiler knew the type. */
static const packed_type packed_types[] = {
#define AGK_PACKED(NAME, symbol, head, vectors, sums, offset, bits, levels, unit) \
    [NAME] = {head, vectors, AGK_##sums, offset, bits, LEVELS_##levels, unit},
#include "table/types.def"
};

AGK_INLINE bool of_256(code_type t)
{
    return t >= Q2_K;
}

AGK_INLINE bool scale_per_16(code_type t)
{
    const agk_packed_sums sums = packed_types[t].sums;
    return sums == AGK_OFFSET_16 || sums == AGK_MINIMUM_16;
}

AGK_INLINE bool has_minimum(code_type t)
{
    const agk_packed_sums sums = packed_types[t].sums;
    return sums == AGK_MINIMUM_32 || sums == AGK_MINIMUM_16;
}

/* The offset of the vectors of a block, in bytes. */
AGK_INLINE size_t data_at(code_type t)
{
    return packed_types[t].head;
}

/* The number of vectors of 64 bytes. */
AGK_INLINE size_t vectors(code_type t)
{
    return packed_types[t].vectors;
}

/* The type whose codes lie in the same bits. */
AGK_INLINE code_type bits_of(code_type t)
{
    return packed_types[t].bits;
}

/* Blocks of 256 whose parts of 32 k lie like blocks of 32 of q4_0: a nibble for each element. */
AGK_INLINE bool nibbles_of_256(code_type t)
{
    return bits_of(t) == IQ4_XS;
}

/* Codebook types: behind the scales of the block a nibble s for each 16 or 32 elements, whose scale is 2 s + 1. The
 * nibbles of sub-blocks 2 i and 2 i + 1 of a row are the low and the high one of a byte. */
AGK_INLINE bool has_nibble_scales(code_type t)
{
    return packed_types[t].levels >= LEVELS_IQ3_XXS;
}

/* Other blocks of 256 with a scale of one signed byte for each 16 or 32 elements, which follow those of the block. */
AGK_INLINE bool has_signed_scales(code_type t)
{
    return of_256(t) && !has_minimum(t) && data_at(t) > 32 && !has_nibble_scales(t);
}

/* How many elements of iq1 share the third bit of their codes; 0: of other types each has its own. */
AGK_INLINE int elements_of_mask(code_type t)
{
    return t == IQ1_S ? 32 : t == IQ1_M ? 8 : 0;
}

/* Where the third bits of 16 rows lie, from element e of the block on: 16 bits, behind the scales. */
AGK_INLINE size_t mask_at(code_type t, int64_t e)
{
    return (size_t)(32 + (scale_per_16(t) ? 128 : 64) + 2 * (e / elements_of_mask(t)));
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
    switch (bits_of(t)) {
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
    const code_type bits = bits_of(t);
    return bits == Q3_K ? 768 * h + 64 * (i % 4) : bits == Q5_K ? 1280 * h + 64 * (i % 4) : 1536 * h + 192 * i + 128;
}

/* By how many bits the codes of a part have to be shifted right. */
AGK_INLINE int low_shift(code_type t, int part)
{
    const code_type bits = bits_of(t);
    return bits == Q2_K || bits == Q3_K ? 2 * part : bits == Q6_K ? 4 * (part / 2) : 4 * (part % 2);
}

AGK_INLINE int high_shift(code_type t, int part, int v)
{
    return bits_of(t) == Q6_K ? 2 * part : 4 * (v / 4) + part;
}

AGK_INLINE int low_mask(code_type t)
{
    return bits_of(t) == Q2_K || bits_of(t) == Q3_K ? 3 : 15;
}

/* The position of the high bits above the low ones: the lowest of them, all of them; 0: the type has none. */
AGK_INLINE int high_place(code_type t)
{
    return bits_of(t) == Q3_K ? 2 : 4;
}

AGK_INLINE int high_mask(code_type t)
{
    const code_type bits = bits_of(t);
    return bits == Q3_K ? 4 : bits == Q5_K ? 16 : bits == Q6_K ? 0x30 : 0;
}

/* The codes of a table, by the bits of an element: its value plus the offset of the type. Values are
 * - of iq4 ggml's kvalues_iq4nl;
 * - of fp4 twice the value of an e2m1;
 * - of iq2 and iq3 the magnitudes that points of the codebook have, then the same below zero;
 * - of iq1 eight times (-1, 0 or 1, plus 1/8), then eight times (-1, 0 or 1, minus 1/8). */
AGK_INLINE const uint8_t *levels_of(code_type t)
{
    static const uint8_t iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
    static const uint8_t fp4[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
    static const uint8_t iq3_xxs[16] = {68, 76, 84, 92, 100, 108, 116, 126, 60, 52, 44, 36, 28, 20, 12, 2};
    static const uint8_t iq3_s[16] = {17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1};
    static const uint8_t iq2[16] = {72, 89, 107, 64, 56, 39, 21, 64};
    static const uint8_t iq1[16] = {9, 17, 25, 16, 7, 15, 23, 16};
    switch (packed_types[t].levels) {
    case LEVELS_IQ4: return iq4;
    case LEVELS_FP4: return fp4;
    case LEVELS_IQ3_XXS: return iq3_xxs;
    case LEVELS_IQ3_S: return iq3_s;
    case LEVELS_IQ2: return iq2;
    case LEVELS_IQ1: return iq1;
    default: return NULL;
    }
}

AGK_INLINE bool has_levels(code_type t)
{
    return packed_types[t].levels != LEVELS_NONE;
}

/* The largest code of a type. */
AGK_INLINE int largest_code(code_type t)
{
    switch (packed_types[t].levels) {
    case LEVELS_IQ4: return 241;
    case LEVELS_FP4: return 28;
    case LEVELS_IQ3_XXS: return 126;
    case LEVELS_IQ3_S: return 31;
    case LEVELS_IQ2: return 107;
    case LEVELS_IQ1: return 25;
    default: break;
    }
    if (t == Q8_0) return 255;
    if (bits_of(t) == Q5_0) return 31;
    return of_256(t) ? low_mask(t) | high_mask(t) : 15;
}

#endif
