/* What mul_mat of quantized rows with many columns in byte lanes agrees on (vpdpbusd: unsigned times signed bytes).
 *
 * An element of a row is (q - 128) * d + minimum with an unsigned byte q, whatever its type, so all types share one product.
 * Columns are quantized as for few columns (agk_mm_col_q8), those for types with blocks of 256 with one scale for each 256, as in
 * ggml; 16 make a unit. Their -128 * sum(q) is where the sums of a block
 * begin, so that nothing has to be added up along rows.
 * Not here: the loop over panels and units, which is that of mul_mat_panels.h. */
#ifndef AGK_MUL_MAT_BYTES_H
#define AGK_MUL_MAT_BYTES_H

#include "mul_mat.h"
#include "mul_mat_panels.h"

/* 16 elements of a row; as wide as 16 floats, so that what makes floats of blocks makes these, too. */
typedef struct agk_bytes_row {
    uint8_t q[16];
    float d, minimum;
    float unused[10];
} agk_bytes_row;

/* 32 k of 16 columns. start: -128 * sum(q), sum: d * sum(q), without d if wide; of the first and the last 16, or of all 32 in the
 * first. */
typedef struct agk_bytes_unit {
    float d[16];
    int32_t start[2][16];
    float sum[2][16];
    int8_t q[AGK_MM_BLOCK / 4][16][4];
} agk_bytes_unit;

/* Whether elements of the type can be bytes; then where scales change, and whether there are minimums. */
typedef struct agk_code_traits {
    bool served : 1, minimum : 1;
    bool halves : 1; /* a scale for each 16, not 32 */
    bool wide : 1;   /* scales of columns are for 256 elements, which are a block of k */
} agk_code_traits;

agk_code_traits agk_code_traits_of(int type);

#endif
