/* Panels and units: the arguments of the kernels of products with many columns, and the contents of panels and units of
 * tiles, pairs and floats.
 *
 * A panel is 32 rows of a, a unit 16 columns of b, both for a block of k, in the order in which a kernel reads them.
 * All have zeros beyond k, rows and columns.
 *
 * Not here: bytes (mul_mat_bytes.h, mul_mat_shorts.h), fewer columns (mul_mat.h). */
#ifndef AGK_MUL_MAT_PANELS_H
#define AGK_MUL_MAT_PANELS_H

#include "mul_mat.h"

/* Terms: a bf16 has 8 bits of an f32's 24, and a product of two is exact in f32. So x = x0 + x1 + x2, each term the
 * next 8 bits, and a * b = a0 b0 + (a0 b1 + a1 b0) + (a0 b2 + a1 b1 + a2 b0) up to 2^-24: an f32 product is six
 * products of bf16. Where tiles have 16 times the rate of f32 lanes that is 2.6 times faster, at the accuracy of f32.
 * Two terms each, three products: f16, whose 11 bits they hold. One: bf16, and quantized types, whose elements round to
 * bf16 within 2^-9.
 *
 * scheme | unit                                          | panel
 * pairs  | [k / 32][terms][16 pairs of k][16 columns][2] | [k / 32][terms][32 rows][32 k]
 * floats | [k][16 columns], f32                          | [k / 16][32 rows][16], f32
 * tiles  | [k / 32][terms][16 columns][32 k]             | twice [k / 32][terms][16 pairs of k][16 rows][2], lda apart
 *
 * On tiles columns are the lines of a matrix tile and rows of weights its columns, so that a line of sums is 16 rows of
 * one column, as they lie in the result. */
enum {
    AGK_PANEL_K = 32,           /* of a tile */
    AGK_PANEL_ROWS = 32,        /* of a panel */
    AGK_TERMS_TILE = 1024,      /* bytes: 16 x 32 bf16 */
    AGK_BYTES_UNIT = 832,       /* bytes: sizeof(agk_bytes_unit) */
    AGK_PANEL_SUMS = 4 * 256,   /* floats: four tiles of 16 x 16 */
    AGK_PANEL_MIN_COLUMNS = 32, /* with fewer columns, packing a panel costs more than it saves */
};

/* The forms in which a product can write its result as the columns of the product that follows: units of 16 columns in
 * blocks of k, as the scheme of that name packs them. Bytes have a scale for each 32 k. */
typedef enum agk_columns_form {
    AGK_COLUMNS_TILES = 1,
    AGK_COLUMNS_PAIRS,
    AGK_COLUMNS_FLOATS,
    AGK_COLUMNS_BYTES,
    AGK_COLUMNS_BYTES_HALVES,
} agk_columns_form;

/* The epilogue of sums: c = act(sums + bias) + other. On tiles it is carried out while the sums of a panel are in L1
 * (mm_tiles_product), in lanes when all sums of an item are complete (mm_panels_end). */
typedef struct agk_mm_end {
    float *c; /* address of the first row of the panel (in lanes: of the item) in the first column */
    size_t ldc;
    bool narrow; /* c is bf16 */
    /* instead of c: the columns of the product that follows, in one term, from these 32 k on; NULL: none */
    char *units;
    size_t ld_unit;
    agk_columns_form form;
    const float *bias; /* of the rows; NULL: none */
    int act;           /* agk_op of a function, one of agk_mm_end_takes; -1: none */
    const char *other; /* as c; NULL: none */
    size_t ld_other;
    /* other is a factor, not a summand: c = act(sums + bias) * other, or, if `gates`, act(other) * (sums + bias) */
    bool gated, gates;
} agk_mm_end;

/* Multiplies one panel by some units, for one block of k: sums += a * b. */
typedef struct agk_mm_panel {
    int terms;
    int fours; /* for shorts: how many fours of a row are added in one sum of 16 bits */
    int64_t k; /* a multiple of 32 */
    int64_t rows, cols;
    const char *a, *b;
    /* for bytes (mul_mat_bytes.h): distance between rows; on tiles: between the halves of the panel */
    size_t lda;
    bool halves, minimum, wide; /* of bytes */
    bool scaled;                /* of bytes: rows have one scale for 256 k; `halves`: minimums for 16 k */
    size_t ldb;                 /* bytes between units */
    size_t next_b;              /* bytes from one block of k of a unit to the next */
    /* AGK_PANEL_SUMS for each pair of units; the kernel chooses their order; kept between blocks */
    float *sums;
    bool first;         /* the first block of k: sums begin at zero */
    int share, shares;  /* the part of b's next block of k to prefetch with this panel; shares 0: nothing */
    const char *next_a; /* the rows that the next panel will be packed from, to be prefetched: next_rows rows */
    size_t next_lda, next_bytes;
    int64_t next_rows;
    const agk_mm_end *end; /* on tiles, for the last block of k; NULL: sums are kept */
} agk_mm_panel;

typedef void agk_mm_panel_fn(const agk_mm_panel *panel);

/* Bytes of 32 k of a unit of columns in this form. */
static inline size_t agk_columns_unit_32(agk_columns_form form)
{
    return form == AGK_COLUMNS_FLOATS                                      ? AGK_PANEL_K * 16 * sizeof(float)
           : form == AGK_COLUMNS_BYTES || form == AGK_COLUMNS_BYTES_HALVES ? AGK_BYTES_UNIT
                                                                           : AGK_TERMS_TILE;
}

/* The functions that an epilogue can have. */
static inline bool agk_mm_end_takes(int op)
{
    return op == AGK_OP_gelu_erf || op == AGK_OP_gelu || op == AGK_OP_silu || op == AGK_OP_relu;
}

static inline int64_t agk_panel_steps(int64_t k)
{
    return (k + AGK_PANEL_K - 1) / AGK_PANEL_K;
}

static inline size_t agk_terms_unit_bytes(int terms, int64_t k)
{
    return (size_t)(agk_panel_steps(k) * terms) * AGK_TERMS_TILE;
}

static inline size_t agk_terms_panel_bytes(int terms, int64_t k)
{
    return 2 * agk_terms_unit_bytes(terms, k);
}

/* Whether a number can be split into terms. Of a smaller number some term would be subnormal; an infinity would give
 * 0 * inf. */
static inline bool agk_terms_can_split(uint32_t bits)
{
    const uint32_t magnitude = bits & 0x7fffffffu;
    return magnitude == 0 || (magnitude >= 0x08800000u && magnitude < 0x7f800000u); /* 2^-110, infinity */
}

#endif
