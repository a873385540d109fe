/* Prefetches of products of panels and units in lanes (mul_mat_panels.h), into L2, a few lines with each block of
 * rows: the rows that the next panel will be packed from, from memory, and this panel's share of the next block of k
 * of the units, from L3. In bursts they would hold up the loads of the block itself. */
#ifndef AGK_VEC_PANELS_H
#define AGK_VEC_PANELS_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_panels.h"

typedef struct agk_ahead {
    int64_t row, line; /* the next row and line of the next panel to prefetch */
} agk_ahead;

/* `done` of `all` pieces of the panel were multiplied or are under way; the current one is piece `piece` of `pieces`
 * of W units from `unit` on. */
AGK_INLINE void agk_fetch_ahead(const agk_mm_panel *p, agk_ahead *at, int64_t done, int64_t all, int64_t unit, int W,
                                int64_t piece, int64_t pieces)
{
    const int64_t per_row = (int64_t)(p->next_bytes + 63) / 64, to = p->next_rows * per_row * done / all;
    while (at->row * per_row + at->line < to) {
        _mm_prefetch(p->next_a + (size_t)at->row * p->next_lda + 64 * at->line, _MM_HINT_T1);
        if (++at->line == per_row) ++at->row, at->line = 0;
    }
    if (p->shares == 0) return;
    const int64_t lines = (int64_t)p->ldb / 64, n = pieces * p->shares, mine = p->share * pieces + piece;
    for (int64_t i = lines * mine / n; i < lines * (mine + 1) / n; ++i) {
        const char *line = p->b + (size_t)unit * p->ldb + p->next_b + 64 * i;
        for (int w = 0; w < W; ++w) _mm_prefetch(line + (size_t)w * p->ldb, _MM_HINT_T1);
    }
}

#endif
