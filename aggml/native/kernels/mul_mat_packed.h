/* Weights packed for few columns: 16 rows side by side, so that a row is a lane and no sums across lanes are needed.
 *
 * Columns are quantized as for the other kernels (agk_mm_col_q8) and then laid side by side. Not here: when weights
 * are packed and by which thread (lower/weights.h, runtime/packing.c), the products
 * (kernels/scalar/mul_mat_packed.c, kernels/avx512/mul_mat_packed.h). */
#ifndef AGK_PACKED_H
#define AGK_PACKED_H

#include "table/kernels.h"
#include "mul_mat.h"

/* A group is 16 rows of k elements (the last one of a matrix is filled up with zeros), block after block of the type's
 * 32 or 256 elements; a block holds the scales of its 16 rows, then 64-byte vectors, in which bytes 4 r .. 4 r + 3 are
 * 4 of row r in the order of the file. So a vector multiplies a broadcast of 4 elements of a column, and nibbles are
 * taken apart as in the file. The size is that of the file, plus 0 to 4 %; points of codebooks are looked up when they
 * are packed, so these types grow to 1.22 (iq3_s), 1.3 (iq2_s), 1.4 (iq3_xxs, iq2_xs, iq1) and 1.55 (iq2_xxs) times the
 * size, tq1_0 to 1.22.
 *
 * | type           | at the beginning of a block                                        | vectors                |
 * | q8_0           | f16 d[16]                                                          | 8 of q + 128           |
 * | q4_0, iq4_nl   | f16 d[16]                                                          | 4 of qs                |
 * | mxfp4          | u8 e[16], 16 bytes unused                                          | 4 of qs                |
 * | nvfp4 (32 of   | e4m3 d[2][16]                                                      | 4 of qs                |
 * | its 64)        |                                                                    |                        |
 * | q4_1           | f16 d[16], f16 m[16]                                               | 4 of qs                |
 * | q5_0           | f16 d[16]                                                          | 1 of qh, 4 of qs       |
 * | q5_1           | f16 d[16], f16 m[16]                                               | 1 of qh, 4 of qs       |
 * | q2_K           | f16 d[16], f16 m[16], u8 scales and minimums [16][16]              | 2 x 8 low              |
 * | q3_K           | f16 d[16], i8 scales - 32 [16][16]                                 | 2 x (4 high, 8 low)    |
 * | q4_K, q5_K     | f16 d[16], f16 m[16], u8 scales [8][16], u8 minimums [8][16]       | 2 x ((4 high,) 16 low) |
 * | q6_K           | f16 d[16], i8 scales [16][16]                                      | 2 x 8 x (2 low, 1 high)|
 * | iq4_xs         | f16 d[16], i8 scales - 32 [8][16]                                  | 32 of qs               |
 * | iq3_xxs, iq3_s | f16 d[16], nibbles s[8][16]                                        | 32 of level and sign   |
 * | iq2_xxs        | f16 d[16], nibbles s[8][16]                                        | as q3_K                |
 * | iq2_xs, iq2_s  | f16 d[16], nibbles s[16][16]                                       | as q3_K                |
 * | iq1_s          | f16 d[16], nibbles s[8][16], u16 third bits[8], 16 bytes unused    | as q2_K                |
 * | iq1_m          | f16 d[16], nibbles s[16][16], u16 third bits[32]                   | as q2_K                |
 * | tq1_0, tq2_0   | f16 d[16]                                                          | as q2_K                |
 * In qh of q5_0 and q5_1 bit v of byte i of a lane belongs to element 4 v + i. Low and high bits of q2_K to q6_K,
 * and the table that turns the bits of iq, mxfp4 and nvfp4 into codes: mul_mat_packed_types.h.
 *
 * f32, f16 and bf16 are packed for many columns on matrix tiles, as half a panel (mul_mat_panels.h): 1.5, 2 and 1 times
 * the size of the file. Before the first block there are 64 bytes, of which the first tells whether all numbers have
 * terms. */
enum {
    AGK_PACKED_ROWS = 16,
    /* columns of one product in lanes: their sums, 8 vectors of weights and scales fill 32 registers */
    AGK_PACKED_COLUMNS = 8,
    AGK_PACKED_MOST = 16, /* columns of one product on tiles, which multiply 8 or 16 */
    AGK_PACKED_HEAD = 64,
    AGK_PACKED_WORDS_AT = 12 + 32,               /* bytes of 32 k of a column before its words */
    AGK_PACKED_COLUMN = AGK_PACKED_WORDS_AT + 8, /* all of them */
};

/* Columns, up to 16 of them: per 32 k of n columns float d[n], two sums of each, int8_t q[n][32], uint16_t
 * words[2][n][2].
 *
 * What the two sums are: what an offset of the codes adds too much as integers, or the factors of a minimum as floats;
 * of 32 elements (the second is unused) or of the first and the last 16. The words are, of the first and the last 16,
 * the offset times the sums of elements 0, 1, 4, 5, ... and 2, 3, 6, 7, ..., modulo 2^16: what sums of 16 bits begin
 * with (AVX2). They are zero where sums are not offsets of 16 elements. */
typedef enum agk_packed_sums {
    AGK_OFFSET_32,
    AGK_OFFSET_16,
    AGK_MINIMUM_32,
    AGK_MINIMUM_16,
    AGK_NO_SUMS
} agk_packed_sums;

typedef struct agk_packed_layout {
    int64_t k;    /* elements of a block */
    size_t bytes; /* of 16 rows of a block */
    size_t data;  /* offset of its vectors */
    agk_packed_sums sums;
    int32_t offset; /* the value of a code is (code - offset) * scale */
    bool points;    /* packing looks up points of codebooks: 0.3 to 0.5 ns an element, of other types 0.1 to 0.2 */
} agk_packed_layout;

/* For matrix tiles columns come in units of 64 k, the last one filled up with zeros, for 8 or 16 columns: float
 * d[2][width], the sums [2][2][width], then tiles of 16 lines x 64 k. There is a line for each of 8 columns and both
 * scales of 32 k, or of 4 columns and all four of 16, in which the k of one scale are those of the column and the
 * others are zero. So one product of tiles keeps the sums of all scales apart. */
enum { AGK_PACKED_UNIT = 64, AGK_PACKED_TILE = 16 * AGK_PACKED_UNIT };

const agk_packed_layout *agk_packed_layout_of(int type); /* NULL: the type has no packed layout */

/* Lays n quantized columns of k elements, `stride` bytes apart, side by side as if there were `width` columns: the
 * others are zeros. */
void agk_packed_columns(const agk_packed_layout *layout, int64_t n, int64_t width, int64_t k, const char *columns,
                        size_t stride, char *out);
void agk_packed_tiles(const agk_packed_layout *layout, int64_t n, int64_t width, int64_t k, const char *columns,
                      size_t stride, char *out);

static inline size_t agk_packed_group_bytes(const agk_packed_layout *layout, int64_t k)
{
    return agk_mm_blocks(k, layout->k) * layout->bytes + (layout->sums == AGK_NO_SUMS ? AGK_PACKED_HEAD : 0);
}

static inline size_t agk_packed_columns_bytes(int64_t n, int64_t k)
{
    return agk_mm_blocks(k, AGK_MM_BLOCK) * (size_t)n * AGK_PACKED_COLUMN;
}

static inline bool agk_packed_halves(const agk_packed_layout *layout) /* a scale for 16 k */
{
    return layout->sums == AGK_OFFSET_16 || layout->sums == AGK_MINIMUM_16;
}

static inline size_t agk_packed_unit_bytes(const agk_packed_layout *layout, int64_t width)
{
    return (size_t)width * 6 * sizeof(float) + (size_t)(width / (agk_packed_halves(layout) ? 4 : 8)) * AGK_PACKED_TILE;
}

static inline size_t agk_packed_tiles_bytes(const agk_packed_layout *layout, int64_t width, int64_t k)
{
    return agk_mm_blocks(k, AGK_PACKED_UNIT) * agk_packed_unit_bytes(layout, width);
}

#endif
