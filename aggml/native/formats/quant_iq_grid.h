/* The codebooks of the IQ types: the values of their points, and, for quantizers, the points near any other code.
 *
 * Not here: the points in ggml's numbering (quant_iq_grid_*.def), the choice among near points (quant_iq_fit.c). */
#ifndef AGK_QUANT_IQ_GRID_H
#define AGK_QUANT_IQ_GRID_H

#include <stdint.h>

extern const uint8_t agk_iq2_xxs_grid[256][8]; /* 8, 25 or 43 */
extern const uint8_t agk_iq2_xs_grid[512][8];
extern const uint8_t agk_iq2_s_grid[1024][8];
extern const int8_t agk_iq1_grid[2048][8];     /* -1, 0 or 1 */
extern const uint8_t agk_iq3_xxs_grid[256][4]; /* 4, 12 to 52 in steps of 8, and 62 */
extern const uint8_t agk_iq3_s_grid[512][4];   /* 1 to 15, odd */

/* The eighth sign for 7 of them: it makes the number of negative values even. */
static inline uint8_t agk_iq_even_signs(unsigned seven)
{
    const unsigned folded = seven ^ (seven >> 4);
    return (uint8_t)(seven | (0x6996u >> (folded & 15) & 1) << 7);
}

/* A codebook as quantizers see it. Elements have levels 0..top; a code is the levels of a point, `bits` each. */
typedef struct agk_iq_book {
    int points, width, bits, top;
    const uint8_t *levels; /* [points][width] */
    const int32_t *where;  /* by code: the point, or minus one minus the place in `near` of a list */
    const uint16_t *near;  /* lists: a count, then the nearest points, those of the smallest distances first */
} agk_iq_book;

/* The first caller builds the tables on its own thread, and others wait: 26 ms for iq1, 3 to 9 ms for each of the
 * rest. Only quantize and quantize_async need them, the latter on a worker thread; reading needs no tables. */
const agk_iq_book *agk_iq2_xxs_book(void);
const agk_iq_book *agk_iq2_xs_book(void);
const agk_iq_book *agk_iq2_s_book(void);
const agk_iq_book *agk_iq1_book(void);
const agk_iq_book *agk_iq3_xxs_book(void);
const agk_iq_book *agk_iq3_s_book(void);

#endif
