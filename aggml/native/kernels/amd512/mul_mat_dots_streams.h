/* One column of f32, f16 and bf16 read as 4 streams of memory, for AMD's processors: the rows of a block are divided
 * into four parts, and the first rows of all parts are multiplied together, then the second ones.
 *
 * One stream does not keep enough lines under way when each line is also multiplied. With 4 neighbouring rows the
 * processor's prefetcher runs on from the end of each into one that was read already. Four rows also share each read of
 * the column, which may be longer than L1. Not here: when rows are read like this (mul_mat_dots.c of a core). */
#ifndef AGK_AMD_STREAMS_H
#define AGK_AMD_STREAMS_H

#include "mul_mat_dots.h"

enum {
    STREAMS = 4,
    STREAM_CHAINS = 4, /* most independent sums of a row */
};

/* R rows, `apart` bytes from each other. */
AGK_INLINE void rows_of(int type, int R, int chains, const agk_mm_block *block, const char *a, size_t apart,
                        __m512 *out)
{
    const int elements = elements_of(type), step = chains * elements, width = width_of(type);
    const char *b = block->b;
    __m512 sum[STREAMS][STREAM_CHAINS];
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        AGK_UNROLL for (int i = 0; i < chains; ++i) sum[r][i] = _mm512_setzero_ps();
    }
    int64_t k = 0;
    for (; k + step <= block->k; k += step) {
        AGK_UNROLL for (int i = 0; i < chains; ++i)
        {
            const int64_t at = k + i * elements;
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                const char *x = a + (size_t)r * apart + at * width;
                sum[r][i] = add_product(type, sum[r][i], x, b + at * column_width(type), elements);
                if (i * elements * width % 64 == 0) ask(x + AGK_STREAMS_AHEAD);
            }
        }
    }
    for (; k < block->k; k += elements) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *x = a + (size_t)r * apart + k * width;
            sum[r][0] = add_product(type, sum[r][0], x, b + k * column_width(type), block->k - k);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        if (chains == 4)
            for (int i = 0; i < 2; ++i) sum[r][i] = _mm512_add_ps(sum[r][i], sum[r][i + 2]);
        out[r] = _mm512_add_ps(sum[r][0], sum[r][1]);
    }
}

/* The rows from `first` on, one by one. */
AGK_INLINE void rest(int type, int chains, const agk_mm_block *block, int64_t first)
{
    const char *a = (const char *)block->a + (size_t)first * block->lda;
    for (float *c = block->c + first; c < block->c + block->rows; ++c, a += block->lda) {
        __m512 lanes;
        rows_of(type, 1, chains, block, a, 0, &lanes);
        const float sum = _mm512_reduce_add_ps(lanes);
        *c = block->add ? *c + sum : sum;
    }
}

AGK_INLINE void in_streams(int type, int chains, const agk_mm_block *block)
{
    const char *a = block->a;
    float *c = block->c;
    const int64_t each = block->rows / STREAMS;
    for (int64_t row = 0; row < each; ++row, a += block->lda, ++c) {
        __m512 sum[STREAMS];
        rows_of(type, STREAMS, chains, block, a, (size_t)each * block->lda, sum);
        __m128 all = fours(sum);
        if (block->add) all = _mm_add_ps(all, _mm_setr_ps(c[0], c[each], c[2 * each], c[3 * each]));
        AGK_UNROLL for (int r = 0; r < STREAMS; ++r) c[r * each] = all[r];
    }
    rest(type, chains, block, STREAMS * each);
}

#endif
