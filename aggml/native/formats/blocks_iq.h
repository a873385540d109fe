/* Block layouts of the codebook types (iq1, iq2, iq3), byte for byte ggml's.
 *
 * All hold 256 values. A point of a codebook (formats/quant_iq_grid.h) gives 8 values, of iq3 4; d is f16 bits.
 * Not here: the other types (blocks.h), conversions (formats/quant_iq*.c). */
#ifndef AGK_BLOCKS_IQ_H
#define AGK_BLOCKS_IQ_H

#include <stdint.h>

/* 8 groups of 32, two words each: 4 points of 8 bits; 4 signs of 7 bits (the eighth makes their number even), then
 * a scale of 4 bits. Values are d * (scale + 1/2) / 4 * magnitude. */
typedef struct agk_block_iq2_xxs {
    uint16_t d;
    uint16_t qs[32];
} agk_block_iq2_xxs;

/* qs: a point of 9 bits, signs of 7. scales: a nibble for each 16. Values as iq2_xxs. */
typedef struct agk_block_iq2_xs {
    uint16_t d;
    uint16_t qs[32];
    uint8_t scales[8];
} agk_block_iq2_xs;

/* 8 bits of each point in qs, two in qh; all 8 signs. scales: a nibble for each 16. Values as iq2_xxs. */
typedef struct agk_block_iq2_s {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
} agk_block_iq2_s;

/* 64 points; for each 32 values a word, signs and scale as iq2_xxs. Values are d * (scale + 1/2) / 2 * magnitude. */
typedef struct agk_block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64];
    uint8_t scales_and_signs[32];
} agk_block_iq3_xxs;

/* 8 bits of each point in qs, the ninth in qh; all 8 signs. scales: a nibble for each 32. Values are
 * d * (2 * scale + 1) * magnitude. */
typedef struct agk_block_iq3_s {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
} agk_block_iq3_s;

/* 8 groups of 32: 8 bits of each point in qs; in qh three more of each of the 4 points, then a scale of 3 bits, then
 * the sign of the shift. Values are d * (2 * scale + 1) * (-1, 0 or 1, +- 1/8). */
typedef struct agk_block_iq1_s {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
} agk_block_iq1_s;

/* 8 bits of each point in qs; in a nibble of qh three more and the sign of the shift. scales: four words, each four
 * scales of 3 bits (for 16 values), then 4 bits of d. Values as iq1_s. */
typedef struct agk_block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
} agk_block_iq1_m;

#endif
