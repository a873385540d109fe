/* One column of f32, f16 and bf16 on a Zen 4: rows are read one after the other, as one stream of memory.
 *
 * kernels/avx512/mul_mat_dots.c reads 4 rows at a time and prefetches each of their cache lines. That is as fast from
 * memory, but not from the L3: 8 MB took 1.28 times as long. The column of long rows does not stay in L1, so several
 * rows share it: 8 or 4 neighbours of f16, four streams of the others. Not here: products of two vectors
 * (mul_mat_dots.h), streams (mul_mat_dots_streams.h). */
#include "lines.h"
#include "mul_mat_dots_streams.h"

enum {
    CHAINS = 8, /* independent sums of one row: no FMA waits for the one before it */
    SHORT = 16, /* vectors; rows up to this length need only 2 sums: the next row starts meanwhile */
};

/* The sums of 4 rows become 4 results. */
AGK_INLINE void put_4(const agk_mm_block *block, const __m512 sum[4], float *c)
{
    const __m128 all = fours(sum);
    _mm_storeu_ps(c, block->add ? _mm_add_ps(_mm_loadu_ps(c), all) : all);
}

/* One row, in `chains` independent sums. */
AGK_INLINE __m512 one_row(int type, int chains, const agk_mm_block *block, const char *a)
{
    const int elements = elements_of(type), step = chains * elements, width = width_of(type);
    const char *b = block->b;
    __m512 sum[CHAINS];
    AGK_UNROLL for (int i = 0; i < chains; ++i) sum[i] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + step <= block->k; k += step) {
        AGK_UNROLL for (int i = 0; i < chains; ++i)
        {
            const int64_t at = k + i * elements;
            sum[i] = add_product(type, sum[i], a + at * width, b + at * column_width(type), elements);
        }
        const int64_t at = k * width;
        if (at % AGK_DOTS_ASKED != 0) continue;
        AGK_UNROLL for (int line = 0; line < step * width; line += AGK_DOTS_ASKED) ask(a + at + AGK_DOTS_AHEAD + line);
    }
    for (; k < block->k; k += elements) {
        sum[0] = add_product(type, sum[0], a + k * width, b + k * column_width(type), block->k - k);
    }
    AGK_UNROLL for (int half = chains / 2; half > 0; half /= 2)
    {
        AGK_UNROLL for (int i = 0; i < half; ++i) sum[i] = _mm512_add_ps(sum[i], sum[i + half]);
    }
    return sum[0];
}

/* Rows one after the other; the lanes of 4 sums are added up together. */
AGK_INLINE void rows_in_turn(int type, int chains, const agk_mm_block *block, const char *a, int64_t rows, float *c)
{
    for (; rows >= 4; rows -= 4, c += 4) {
        __m512 sum[4];
        AGK_UNROLL for (int r = 0; r < 4; ++r, a += block->lda) sum[r] = one_row(type, chains, block, a);
        put_4(block, sum, c);
    }
    for (; rows > 0; --rows, a += block->lda, ++c) {
        const float sum = _mm512_reduce_add_ps(one_row(type, chains, block, a));
        *c = block->add ? *c + sum : sum;
    }
}

/* 4 or 8 rows of f16 at once, 2 sums each; every cache line of the next rows is prefetched. */
AGK_INLINE void rows_at_once(int R, const agk_mm_block *block, const char *a, float *c)
{
    const int type = F16, elements = elements_of(type), width = width_of(type);
    const char *b = block->b;
    __m512 sum[2][8];
    AGK_UNROLL for (int r = 0; r < R; ++r) sum[0][r] = sum[1][r] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + 2 * elements <= block->k; k += 2 * elements) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *x = a + (size_t)r * block->lda + k * width, *y = b + k * column_width(type);
            sum[0][r] = add_product(type, sum[0][r], x, y, elements);
            x += elements * width;
            sum[1][r] = add_product(type, sum[1][r], x, y + elements * column_width(type), elements);
            ask(x + (size_t)R * block->lda);
        }
    }
    for (; k < block->k; k += elements) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *x = a + (size_t)r * block->lda + k * width;
            sum[0][r] = add_product(type, sum[0][r], x, b + k * column_width(type), block->k - k);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r) sum[0][r] = _mm512_add_ps(sum[0][r], sum[1][r]);
    put_4(block, sum[0], c);
    if (R == 8) put_4(block, sum[0] + 4, c + 4);
}

AGK_INLINE void one_column(int type, const agk_mm_block *block)
{
    const char *a = block->a;
    float *c = block->c;
    int64_t rows = block->rows;
    const bool is_long = block->k * column_width(type) > AGK_DOTS_LONG_COLUMN;
    /* Two threads, shares of a plain read of 33 GB/s, 8 neighbours and four streams: f32, k 14336 0.95 and 0.99, k 4096
     * 0.95 and 1.04, k 8192 0.84 and 0.98; bf16, k 14336 0.95 and 0.99, k 8192 0.92 and 0.98; f16, k 14336 0.90 and
     * 0.94, k 8192 0.92 and 0.87, so f16 keeps neighbours. From the L3 both are equally fast. Short rows are read as
     * one stream, which is faster there: f32, k 2048 0.91, as four streams 0.72. */
    if (is_long && type != F16) {
        in_streams(type, STREAM_CHAINS, block);
        return;
    }
    if (is_long) {
        for (; rows >= 8; rows -= 8, a += 8 * block->lda, c += 8) rows_at_once(8, block, a, c);
        for (; rows >= 4; rows -= 4, a += 4 * block->lda, c += 4) rows_at_once(4, block, a, c);
    }
    if (block->k <= SHORT * elements_of(type))
        rows_in_turn(type, 2, block, a, rows, c);
    else
        rows_in_turn(type, CHAINS, block, a, rows, c);
}

AGK_ONE_COLUMN(f32, F32)
AGK_ONE_COLUMN(f16, F16)
AGK_ONE_COLUMN(bf16_bf16, PAIRS)
