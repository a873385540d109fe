/* Block layouts of the quantized types, byte for byte ggml's.
 *
 * Floats d are f16 bits unless said otherwise. Not here: conversions (formats/quant_*.c). */
#ifndef AGK_BLOCKS_H
#define AGK_BLOCKS_H

#include <stdint.h>

/* --- 32 values: element i in the low nibble of qs[i], element 16 + i in its high nibble ------------------------ */

/* (q - 8) * d */
typedef struct agk_block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
} agk_block_q4_0;

/* q * d + m */
typedef struct agk_block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
} agk_block_q4_1;

/* (q - 16) * d; bit i of qh is the fifth bit of element i */
typedef struct agk_block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
} agk_block_q5_0;

/* q * d + m */
typedef struct agk_block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
} agk_block_q5_1;

/* qs[i] * d */
typedef struct agk_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} agk_block_q8_0;

/* qs[i] * d; s = d * sum(qs) */
typedef struct agk_block_q8_1 {
    uint16_t d, s;
    int8_t qs[32];
} agk_block_q8_1;

/* iq4_values[q] * d */
typedef struct agk_block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
} agk_block_iq4_nl;

/* e2m1 of q, times 2^(e - 127) */
typedef struct agk_block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
} agk_block_mxfp4;

/* --- other small blocks ---------------------------------------------------------------------------------------- */

/* 64 values, e2m1 of q times the scale of its 16, d an unsigned e4m3; nibbles as above within each 16 */
typedef struct agk_block_nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
} agk_block_nvfp4;

/* 128 values +d (bit set) or -d, the first in the lowest bit */
typedef struct agk_block_q1_0 {
    uint16_t d;
    uint8_t qs[16];
} agk_block_q1_0;

/* 64 values (q - 1) * d, q of two bits, the first in the lowest */
typedef struct agk_block_q2_0 {
    uint16_t d;
    uint8_t qs[16];
} agk_block_q2_0;

/* --- 256 values ------------------------------------------------------------------------------------------------ */

/* 16 groups of 16: q * d * low nibble of scales - m * high nibble */
typedef struct agk_block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, m;
} agk_block_q2_k;

/* 16 groups of 16: (q - 4) * d * (scale - 32), scales of 6 bits */
typedef struct agk_block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
} agk_block_q3_k;

/* 8 groups of 32: q * d * scale - m * min, both of 6 bits */
typedef struct agk_block_q4_k {
    uint16_t d, m;
    uint8_t scales[12];
    uint8_t qs[128];
} agk_block_q4_k;

/* as q4_k, with a fifth bit of q */
typedef struct agk_block_q5_k {
    uint16_t d, m;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} agk_block_q5_k;

/* 16 groups of 16: (q - 32) * d * scale */
typedef struct agk_block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
} agk_block_q6_k;

/* qs[i] * d; sums of each 16 */
typedef struct agk_block_q8_k {
    float d;
    int8_t qs[256];
    int16_t sums[16];
} agk_block_q8_k;

/* (q - 1) * d: five digits of base 3 in a byte of qs, four in one of qh */
typedef struct agk_block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
} agk_block_tq1_0;

/* (q - 1) * d: two bits each */
typedef struct agk_block_tq2_0 {
    uint8_t qs[64];
    uint16_t d;
} agk_block_tq2_0;

/* 8 groups of 32: iq4_values[q] * d * (scale - 32), scales of 6 bits */
typedef struct agk_block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
} agk_block_iq4_xs;

#endif
