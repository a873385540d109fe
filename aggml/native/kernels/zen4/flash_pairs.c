/* flash_attn_ext of bf16 keys and values on a Zen 4: a block of keys. Beside plain C: P is rounded to bf16, as in
 * avx512/flash_pairs.c, which begins a tile and makes pairs of values. Not here: the loops (flash_tiles.h), the end of
 * a tile (kernels/vec/flash.h). */
enum { PAIRS = 1 };
#include "flash_tiles.h"

/* Without a mask a block may have twice as many keys: P is half as large as S, and S of the 16 keys on their way lies
 * where the mask would be; else behind P. */
void agk_flash_pairs_block_zen4(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    lanes w = {.t = t, .f = v_flash_state(t), .from = first & 1};
    w.to = w.from + n;
    v_flash_mask(t, &w.f, first, n);
    for (; w.lane < t->n_rows; w.lane += 2 * VF) {
        w.p = w.f.s + w.lane;
        w.s = (t->mask_form == AGK_FLASH_NO_MASK ? w.f.m : w.f.s + AGK_FLASH_KEYS / 2 * V_T) + w.lane;
        w.o = w.f.o + w.lane;
        if (t->n_rows - w.lane > VF)
            block(2, &w, k, v);
        else
            block(1, &w, k, v);
    }
}
