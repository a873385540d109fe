/* One column of f32, f16 and bf16 on a Zen 5: the rows of a block are read as 4 streams
 * (amd512/mul_mat_dots_streams.h).
 *
 * Shares of a plain read with two threads, one stream, 4 neighbouring rows at a time, 4 streams: f16, k 14336 0.79,
 * 0.92, 0.97; k 2048 0.85, 0.88, 0.97; bf16, k 14336 0.95, 0.97, 1.00; k 1536 0.90, 0.83, 0.97. f16 with k 14336, whose
 * column is longer than L1, from L2: 129 instead of 53 GB/s. Not here: products (amd512/mul_mat_dots.h). */
#include "lines.h"
#include "kernels/amd512/mul_mat_dots_streams.h"

enum {
    SHORT = 1024,       /* elements; rows up to this length have 2 sums, so that less is added up at their ends */
    SHORT_HALVES = 256, /* of 16 bits; one stream: f16, k 128, in the L3 183 instead of 160 GB/s */
};

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
        in_streams(type, STREAM_CHAINS, block);
}

AGK_ONE_COLUMN(f32, F32)
AGK_ONE_COLUMN(f16, F16)
AGK_ONE_COLUMN(bf16_bf16, PAIRS)
