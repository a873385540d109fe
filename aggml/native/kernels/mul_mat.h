/* The interface between the lowering of products and their kernels: forms of rows and columns, the arguments of dots
 * and blocks.
 *
 * dst[m, n] = sum over k of a[k, m] * b[k, n]: a row of a times a column of b. lower/mul_mat/README.md explains the
 * schemes and the words. Dots (few columns): the lanes of a vector hold consecutive k of both operands as they lie,
 * with one sum for each row and column at the end. Blocks (more columns): b is packed in units of 16 columns, and
 * each column becomes a lane; rows of a are read as they lie, one element (or 4 bytes of k) at a time, and
 * broadcast, so weights need no packing at all. Not here: panels (mul_mat_panels.h, _bytes.h, _shorts.h), packed
 * weights (mul_mat_packed.h). */
#ifndef AGK_MUL_MAT_H
#define AGK_MUL_MAT_H

#include "formats/blocks.h"
#include "table/kernels.h"

enum {
    AGK_MM_UNIT = 16,     /* columns of b packed together */
    AGK_MM_MAX_UNITS = 3, /* units of one block: 3 x 8 sums, 3 vectors of b and a broadcast fill 32 registers */
    AGK_MM_BLOCK = 32,    /* elements of a block of q8_0 and q4_0 */
};

/* A unit of packed b; columns beyond the last are zero.
 * f32:  float [k][16]
 * bf16: pairs (k, k + 1) as 32 bits [(k + 1) / 2][16]; an odd k ends with a zero
 * q8:   per 32 k: float d[16], then [8][16] x 4 bytes of k, each value + 128 */
typedef struct agk_mm_unit_q8 {
    float d[AGK_MM_UNIT];
    uint8_t q[AGK_MM_BLOCK / 4][AGK_MM_UNIT][4];
} agk_mm_unit_q8;

/* A row of a as blocks_q8 reads it, per 32 k: from q8_0 and q4_0 blocks. */
typedef struct agk_mm_row_q8 {
    float d;
    int32_t start; /* -128 * sum(q): corrects for the 128 that is added to each value of b */
    int8_t q[AGK_MM_BLOCK];
} agk_mm_row_q8;

/* A column of b, quantized, for each 64 k; if k ends with half a block, the rest is zero. Dots of quantized rows
 * read it as it is; blocks_q8, bytes, shorts and packed weights pack it. */
typedef struct agk_mm_col_q8 {
    float d[2];
    /* -128 * the sums of 4 q: corrects, lane by lane, for weights that were made unsigned */
    int32_t start[AGK_MM_UNIT];
    int8_t q[2 * AGK_MM_BLOCK];
} agk_mm_col_q8;

/* Columns have scales as ggml's blocks of q8_0 have, rounded to f16, so that sums agree with ggml's to the last bits.
 * Not where an f16 has fewer bits (below the first limit) or is infinite (from the second on): there columns for rows
 * with blocks of 32 become inexact, zero or infinite in ggml. Those for blocks of 256 have scales of f32 in ggml. */
#define AGK_MM_ROUNDED_FROM 0x1p-14f
#define AGK_MM_ROUNDED_BELOW 65520.0f

/* `rounded`: d as f16. */
static inline float agk_mm_col_scale(float d, float rounded)
{
    return d >= AGK_MM_ROUNDED_FROM && d < AGK_MM_ROUNDED_BELOW ? rounded : d;
}

/* One call of a kernel of dots or blocks: c[row, column] = (add ? c : 0) + sum over k. Strides are in bytes. */
typedef struct agk_mm_block {
    int64_t k, rows, cols;
    const void *a; /* rows, lda apart */
    size_t lda;
    const void *b; /* blocks: units, ldb apart; dots: columns, ldb apart */
    size_t ldb;
    float *c; /* columns, ldc apart, rows contiguous */
    size_t ldc;
    bool add;
    const char *next; /* blocks: 8 rows of `next_width` bytes an element, to be prefetched meanwhile; NULL: none */
    size_t next_lda;
    int64_t next_width;
    bool a_far, c_far; /* probably not in L2, so a prefetch pays off; if it is in L2, the prefetch costs 3 to 6 % */
} agk_mm_block;

typedef void agk_mm_block_fn(const agk_mm_block *block);

/* Pack one unit: cols (1..16) columns of k elements, ldb bytes apart. */
typedef void agk_mm_pack_fn(int64_t k, int64_t cols, const void *b, size_t ldb, void *out);

/* Rows of a or columns of b into agk_mm_row_q8 or agk_mm_col_q8. */
typedef void agk_mm_convert_fn(const void *src, void *dst, int64_t n);

/* The codes of a quantized type, for products of bytes: an element is (code - offset) * scale + minimum. */
typedef struct agk_code_traits {
    bool served : 1;  /* whether elements of the type can be represented as bytes at all */
    bool minimum : 1; /* there are minimums */
    bool halves : 1;  /* a scale for each 16 elements, not 32 */
    bool wide : 1;    /* columns have one scale for each 256 elements, which are a block of k */
    bool scaled : 1;  /* of bytes: rows have one scale for 256 elements (agk_bytes_one_scale) */
} agk_code_traits;

agk_code_traits agk_code_traits_of(int type);

static inline size_t agk_mm_blocks(int64_t k, int64_t size)
{
    return (size_t)((k + size - 1) / size);
}

#endif
