/* Panels and units of the scheme `shorts`: quantized rows as bytes on vectors of 256 bits, whose products have sums of
 * 16 bits (vpmaddubsw, AVX2) or of 32 (vpdpbusd, AVX-VNNI).
 *
 * Not here: the arguments of the kernel (mul_mat_panels.h), vectors of 512 bits and NEON (mul_mat_bytes.h). */
#ifndef AGK_MUL_MAT_SHORT_H
#define AGK_MUL_MAT_SHORT_H

#include "mul_mat.h"
#include "mul_mat_bytes.h"

/* vpmaddubsw multiplies unsigned by signed bytes and saturates the sum of two products. So columns are unsigned, x +
 * 128, and rows are signed, as narrow as their type. With |q| <= 8 the sums of 16 products fit in 16 bits (16 * 255
 * * 8 = 32640), and widening them costs an eighth; with |q| <= 16, 32, 64 the sums of 8, 4, 2 products fit. The
 * added 128 makes sums larger by 128 * sum(q), which depends on the row alone. Unsigned codes are moved by half of
 * their range, which their minimum takes back. Codes of 8 bits (q8_0, iq4) are stored as words: as bytes, each of
 * their sums would need widening, and moving their signs to the other operand (vpsignb) one instruction more. An
 * element of a row is q * d + minimum, whatever its type. In blocks of 256, d is an integer times `unit`: sums of 16
 * bits are multiplied by that integer as they are widened, and become floats only once in 256. */

/* 32 k of a row. Pairs of fields belong to the first and the last 16, or are equal. */
typedef struct agk_short_row {
    float d[2], minimum[2];
    int32_t factor[2]; /* of blocks of 256: twice the same 16 bits, d / unit */
    int32_t start[2];  /* -128 * sum(q); of all 32 in the first, if there is one scale for them */
    float unit;
    int32_t total; /* of the 256 elements that begin here: sum of start * factor */
    union {
        int8_t q[AGK_MM_BLOCK];
        int16_t words[AGK_MM_BLOCK]; /* the order in each four: first, third, second, fourth */
    };
} agk_short_row;

/* A factor of 16 bits, twice. */
static inline int32_t agk_short_twice(int32_t factor)
{
    return (int32_t)((uint32_t)(factor & 0xffff) * 0x10001u);
}

/* 32 k of 16 columns: q is x + 128; sum: d * sum(x), without d if wide. There is a sum for the first and one for the
 * last 16, or one for all 32 in the first. */
typedef struct agk_short_unit {
    float d[16];
    float sum[2][16];
    uint8_t q[AGK_MM_BLOCK / 4][16][4];
} agk_short_unit;

/* How many fours of a row are added in a sum of 16 bits: 8, 4, 2, 1; 0: its codes have 8 bits. For types that
 * agk_code_traits_of serves. */
int agk_short_fours(int type);

/* Bytes of 32 k of a row. */
static inline size_t agk_short_row_bytes(bool words)
{
    return words ? sizeof(agk_short_row) : sizeof(agk_short_row) - AGK_MM_BLOCK;
}

#endif
