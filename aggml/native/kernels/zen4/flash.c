/* flash_attn_ext on a Zen 4: a block of keys in floats for a tile of rows. Against plain C: f32 sums in another order,
 * within 2e-6 of the largest value that a row attends to. Not here: the loops (flash_tiles.h), the beginning and the
 * end of a tile (avx512/flash.c). */
enum { PAIRS = 0 };
#include "flash_tiles.h"

void agk_flash_block_zen4(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    lanes w = {.t = t, .f = v_flash_state(t), .to = n};
    v_flash_mask(t, &w.f, first, n);
    for (; w.lane < t->n_rows; w.lane += 2 * VF) {
        w.p = w.s = w.f.s + w.lane;
        w.o = w.f.o + w.lane;
        if (t->n_rows - w.lane > VF)
            block(2, &w, k, v);
        else
            block(1, &w, k, v);
    }
}
