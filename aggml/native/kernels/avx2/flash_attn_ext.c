/* flash_attn_ext, AVX2, FMA, F16C: tiles of rows, and the few rows of decoding. Against lower/attention/flash_attn_ext.c: f32
 * sums in another order, within 2e-6 of the largest value that a row attends to. */
#include "table/kernel_types.h"
#include "math.h"

#include "kernels/vec/flash_attn_ext.h"
#include "kernels/vec/flash_narrow.h"

void agk_flash_begin_avx2(const agk_flash_tile *t)
{
    v_flash_begin(t);
}

void agk_flash_block_avx2(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    v_flash_block(t, first, n, k, v);
}

void agk_flash_end_avx2(const agk_flash_tile *t)
{
    v_flash_end(t);
}

void agk_flash_begin_narrow_avx2(const agk_flash_tile *t)
{
    v_flash_begin_narrow(t);
}

void agk_flash_block_narrow_avx2(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    v_flash_block_narrow(t, first, n, k, v);
}

void agk_flash_end_narrow_avx2(const agk_flash_tile *t)
{
    v_flash_end_narrow(t);
}
