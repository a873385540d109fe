/* The portable kernels of attention in bf16 terms, with which the tiles of AMX are compared. No user gets them.
 *
 * Not here: the steps (flash_panels.c). */
#include <math.h>

#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_panels.h"

enum { LINE = 64, PLANE = 2 * AGK_TERMS_TILE };

bool agk_flash_terms_pack_scalar(int terms, int64_t n, int64_t d, const float *k, int64_t dv, const float *v,
                                 void *k_out, void *v_out, size_t v_step)
{
    bool fine = true;
    memset(k_out, 0, agk_terms_panel_bytes(terms, d));
    for (int64_t i = 0; i < n; ++i) {
        fine = agk_mm_pairs_rows_scalar(terms, d, k + i * d, (char *)k_out + i * LINE) && fine;
    }
    for (int64_t i = 0; i < n * d; ++i) fine = fine && isfinite(k[i]);
    for (int64_t i = 0; i < agk_flash_up(dv); ++i) {
        float column[AGK_FLASH_PANEL] = {0};
        for (int64_t j = 0; j < n && i < dv; ++j) column[j] = v[j * dv + i];
        for (int64_t j = 0; j < n; ++j) fine = fine && isfinite(column[j]);
        char *out = (char *)v_out + (size_t)(i / 32) * v_step + (size_t)(i % 32) * LINE;
        fine = agk_mm_pairs_rows_scalar(terms, AGK_FLASH_PANEL, column, out) && fine;
    }
    return fine;
}

/* Element i of a line, from its terms. */
static float join_terms(int terms, const char *line, int64_t i)
{
    float sum = 0.0f;
    for (int t = terms - 1; t >= 0; --t) {
        uint16_t bits;
        float term;
        memcpy(&bits, line + t * PLANE + 2 * i, sizeof bits);
        const uint32_t wide = (uint32_t)bits << 16;
        memcpy(&term, &wide, sizeof term);
        sum += term;
    }
    return sum;
}

bool agk_flash_terms_tile_scalar(const agk_flash_tile *t, const agk_flash_terms *x)
{
    const size_t d_steps = (size_t)agk_panel_steps(t->d), key_steps = (size_t)agk_panel_steps(x->n_keys);
    const size_t step = (size_t)x->terms * PLANE;
    float *k = t->state + agk_flash_state_floats(t->d, t->dv), *v = k + t->d;
    agk_flash_begin_scalar(t);
    for (int64_t key = x->begin; key < x->end; ++key) {
        const size_t panel = (size_t)(key / 32), line = (size_t)(key % 32) * LINE;
        for (int64_t i = 0; i < t->d; ++i) {
            k[i] = join_terms(x->terms, x->k + (panel * d_steps + (size_t)(i / 32)) * step + line, i % 32);
        }
        for (int64_t i = 0; i < t->dv; ++i) {
            const size_t at = (size_t)(i / 32) * key_steps + panel;
            v[i] = join_terms(x->terms, x->v + at * step + (size_t)(i % 32) * LINE, key % 32);
        }
        agk_flash_block_scalar(t, key, 1, k, v);
    }
    agk_flash_end_scalar(t);
    return true;
}
