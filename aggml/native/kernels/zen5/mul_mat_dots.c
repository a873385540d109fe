/* One column of f32, f16 and bf16 on a Zen 5: the rows of a block are read as 4 streams, each of which has neighbouring
 * rows from its first to its last.
 *
 * One stream does not keep enough lines under way when each line is also multiplied. Shares of a plain read with two
 * threads, one stream, 4 neighbouring rows at a time, 4 streams: f16, k 14336 0.79, 0.92, 0.97; k 2048 0.85, 0.88,
 * 0.97; bf16, k 14336 0.95, 0.97, 1.00; k 1536 0.90, 0.83, 0.97. With neighbouring rows, the processor's prefetcher
 * runs on from the end of each into one that was read already. Four rows also share each read of the column, which is
 * longer than L1 for f16 with k 14336: from L2 129 instead of 53 GB/s. Not here: products (zen4/mul_mat_dots.h). */
#include "lines.h"
#include "kernels/zen4/mul_mat_dots.h"

enum {
    STREAMS = 4,
    CHAINS = 4,         /* independent sums of a row */
    SHORT = 1024,       /* elements; rows up to this length have 2 sums, so that less is added up at their ends */
    SHORT_HALVES = 256, /* of 16 bits; one stream: f16, k 128, in the L3 183 instead of 160 GB/s */
};

/* R rows, `apart` bytes from each other. */
AGK_INLINE void rows_of(int type, int R, int chains, const agk_mm_block *block, const char *a, size_t apart,
                        __m512 *out)
{
    const int elements = elements_of(type), step = chains * elements, width = width_of(type);
    const char *b = block->b;
    __m512 sum[STREAMS][CHAINS];
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
                if (i * elements * width % 64 == 0) ask(x + AGK_DOTS_AHEAD);
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

AGK_INLINE void in_turn(int type, int chains, const agk_mm_block *block)
{
    const char *a = block->a;
    int64_t row = 0;
    for (; row + 4 <= block->rows; row += 4) {
        float *c = block->c + row;
        __m512 sum[4];
        AGK_UNROLL for (int r = 0; r < 4; ++r, a += block->lda) rows_of(type, 1, chains, block, a, 0, &sum[r]);
        const __m128 all = fours(sum);
        _mm_storeu_ps(c, block->add ? _mm_add_ps(_mm_loadu_ps(c), all) : all);
    }
    rest(type, chains, block, row);
}

AGK_INLINE void one_column(int type, const agk_mm_block *block)
{
    if (type != F32 && block->k <= SHORT_HALVES)
        in_turn(type, 2, block);
    else if (block->k <= SHORT)
        in_streams(type, 2, block);
    else
        in_streams(type, CHAINS, block);
}

AGK_ONE_COLUMN(f32, F32)
AGK_ONE_COLUMN(f16, F16)
AGK_ONE_COLUMN(bf16_bf16, PAIRS)
