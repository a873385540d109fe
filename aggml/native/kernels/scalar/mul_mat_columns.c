/* Columns of b as bytes with scales (agk_mm_col_q8), in plain C. */
#include <math.h>

#include "formats/quant.h"
#include "kernels/mul_mat.h"
#include "table/kernel_types.h"

enum { BLOCK = AGK_MM_BLOCK };

void agk_mm_columns_q8_scalar(const void *src, void *dst, int64_t n)
{
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 2 * BLOCK, ++y) {
        memset(y, 0, sizeof *y);
        for (int half = 0; half < 2 && i + half * BLOCK < n; ++half, x += BLOCK) {
            agk_block_q8_0 block;
            float most = 0.0f;
            for (int e = 0; e < BLOCK; ++e) most = fmaxf(most, fabsf(x[e])); /* NaN does not count */
            agk_f32_to_q8_0_scalar(x, &block, BLOCK);
            y->d[half] = agk_mm_col_scale(most / 127.0f, agk_f16_to_float(block.d));
            for (int e = 0; e < BLOCK; ++e) {
                y->q[half * BLOCK + e] = block.qs[e];
                y->start[half * 8 + e / 4] -= 128 * block.qs[e];
            }
        }
    }
}

void agk_mm_columns_q8_wide_scalar(const void *src, void *dst, int64_t n)
{
    enum { WIDE = 256, PER_COL = 2 * BLOCK };
    const float *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += WIDE, x += WIDE) {
        float most = 0.0f;
        for (int e = 0; e < WIDE; ++e) most = fmaxf(most, fabsf(x[e]));
        const float d = most / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        for (int e = 0; e < WIDE; e += PER_COL, ++y) {
            memset(y, 0, sizeof *y);
            y->d[0] = y->d[1] = d;
            for (int j = 0; j < PER_COL; ++j) {
                const float q = x[e + j] * inverse;
                y->q[j] = fabsf(q) < 127.5f ? (int8_t)lrintf(q) : (int8_t)0;
                y->start[j / 4] -= 128 * y->q[j];
            }
        }
    }
}
