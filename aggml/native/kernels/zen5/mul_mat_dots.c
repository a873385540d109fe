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
    CHAINS = 4,   /* independent sums of a row */
    SHORT = 1024, /* elements; rows up to this length have 2 sums, so that less is added up at their ends */
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

AGK_INLINE void put(const agk_mm_block *block, float *c, float sum)
{
    *c = block->add ? *c + sum : sum;
}

AGK_INLINE void all_rows(int type, int chains, const agk_mm_block *block)
{
    const char *a = block->a;
    float *c = block->c;
    const int64_t each = block->rows / STREAMS;
    for (int64_t row = 0; row < each; ++row, a += block->lda, ++c) {
        __m512 sum[STREAMS];
        rows_of(type, STREAMS, chains, block, a, (size_t)each * block->lda, sum);
        const __m128 all = fours(sum);
        put(block, c, all[0]);
        put(block, c + each, all[1]);
        put(block, c + 2 * each, all[2]);
        put(block, c + 3 * each, all[3]);
    }
    a = (const char *)block->a + (size_t)(STREAMS * each) * block->lda, c = block->c + STREAMS * each;
    for (int64_t row = STREAMS * each; row < block->rows; ++row, a += block->lda, ++c) {
        __m512 sum;
        rows_of(type, 1, chains, block, a, 0, &sum);
        put(block, c, _mm512_reduce_add_ps(sum));
    }
}

AGK_INLINE void one_column(int type, const agk_mm_block *block)
{
    if (block->k <= SHORT)
        all_rows(type, 2, block);
    else
        all_rows(type, CHAINS, block);
}

AGK_ONE_COLUMN(f32, F32)
AGK_ONE_COLUMN(f16, F16)
AGK_ONE_COLUMN(bf16_bf16, PAIRS)
