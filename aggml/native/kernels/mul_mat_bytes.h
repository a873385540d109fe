/* Panels and units of the scheme `bytes`: quantized rows as bytes, which vpdpbusd, sdot and smmla multiply.
 *
 * An element of a row is (q - 128) * d + minimum with an unsigned byte q, whatever its type, so all types share one
 * product. Columns are quantized as for few columns (agk_mm_col_q8); for types with blocks of 256 they have one
 * scale for each 256, as in ggml. 16 columns make a unit. vpdpbusd multiplies unsigned by signed bytes, so the sums
 * of a unit begin at -128 * sum(q) of the column, and no sums along rows are needed. Not here: the arguments of the
 * kernel (mul_mat_panels.h), sums of 16 bits (mul_mat_shorts.h). */
#ifndef AGK_MUL_MAT_BYTES_H
#define AGK_MUL_MAT_BYTES_H

#include "mul_mat.h"
#include "mul_mat_panels.h"

/* 16 elements of a row. */
typedef struct agk_bytes_row {
    uint8_t q[16];
    float d, minimum;
    /* of wide columns, on AVX-512: minimums are -step times small integers; a step for each 256 k, pairs of integers
     * for each 16 k in every second of these, for each 32 k in every fourth */
    float step;
    int16_t times[2];
} agk_bytes_row;

/* The functions that unpack blocks to floats can produce such rows, too (vec/mul_mat_rows.h): this is to a row of them
 * what a float is to 16 floats. */
typedef uint16_t agk_bytes_slot;
_Static_assert(sizeof(agk_bytes_row) == 16 * sizeof(agk_bytes_slot), "16 slots are a row of 16 elements");

/* Blocks of 256 whose codes times the scales within fit a byte, or that have no such scales. mm_bytes_scaled_rows
 * makes rows of them that have one scale for 256 k, that of the first piece; floats of other pieces are not defined.
 * An element is (q - 128) * d, of q2_K less step * times, of iq1 less half of d. */
static inline bool agk_bytes_odd(int type)
{
    return type == AGK_IQ1_S || type == AGK_IQ1_M;
}

static inline bool agk_bytes_one_scale(int type)
{
    return agk_bytes_odd(type) || type == AGK_Q2_K || type == AGK_Q3_K || type == AGK_TQ1_0 || type == AGK_TQ2_0;
}

/* 32 k of 16 columns. start: -128 * sum(q). sum: d * sum(q), without d if scales are for 256. Both of the first and the
 * last 16 k, or of all 32 in the first. q: [four k][column][4], a vector of 64 bytes for each four k. */
typedef struct agk_bytes_unit {
    float d[16];
    int32_t start[2][16];
    float sum[2][16];
    int8_t q[AGK_MM_BLOCK / 4][16][4];
} agk_bytes_unit;
_Static_assert(sizeof(agk_bytes_unit) == AGK_BYTES_UNIT, "the size that mul_mat_panels.h names");

#endif
