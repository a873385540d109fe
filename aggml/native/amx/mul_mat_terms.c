/* mul_mat in bf16 terms on AMX: panels of 32 rows x units of 16 columns, blocks of 32 x 32 in four tiles.
 *
 * Figures of one core of a Granite Rapids, GFLOP/s with numbers. Products alone 3150, of tiles from L1 2550, with units from L2,
 * loaded as a stream so that the panel stays in L1, 2430 at any k up to 512; sums in and out of the tiles every 256 k leave 2060
 * (terms.h). Lines that come into L2 meanwhile cost 1 to 2 ns each: rows of a from memory and the next block of units from L3,
 * six for four products if an item has 256 rows and 512 columns, leave 1150 of a long bf16 product; so lines of c are not asked
 * for here, but when sums are put there. Sums stay in the layout of tiles. Reached only through lines that need AGK_AMX_BF16. */
#include "terms.h"

/* -- products ------------------------------------------------------------------------------------------------- */

/* What to prefetch into L2 beside the products, a few lines with each 32 k: in bursts they would take the buffers through which
 * the units themselves come into L1. */
typedef struct requests {
    const char *row; /* of what the next panel is made of */
    int64_t line, lines, row_lines, each;
    size_t lda;
    const char *units, *units_end; /* of the next block of k: this panel's share */
    int64_t units_each;
} requests;

AGK_INLINE void fetch_rows(requests *x)
{
    for (int64_t n = x->each; n > 0 && x->lines > 0; --n, --x->lines) {
        _mm_prefetch(x->row + 64 * x->line, _MM_HINT_T1);
        if (++x->line == x->row_lines) {
            x->line = 0;
            x->row += x->lda;
        }
    }
}

AGK_INLINE void fetch_units(requests *x)
{
    for (int64_t n = x->units_each; n > 0 && x->units < x->units_end; --n, x->units += 64) {
        _mm_prefetch(x->units, _MM_HINT_T1);
    }
}

/* A pair of units, or one. `done`: sums of the pair before, which are still in the tiles; NULL: there are none. */
AGK_INLINE void block(int terms, bool two_rows, bool two_cols, const agk_terms_panel *p, int64_t unit, float *done,
                      requests *ahead)
{
    float *sums = p->sums + unit / 2 * AGK_TERMS_SUMS;
    const size_t ldb = p->ldb;
    const char *a = p->a, *b = p->b + (size_t)unit * ldb;
    const bool zero = p->first;
    const int64_t steps = p->k / 32, each = (64 + steps - 1) / steps; /* lines of the next sums, into L1 */
    int64_t next = 0;
    const int64_t last = unit + 2 < (p->cols + 15) / 16 ? 64 : 0;
    for (int64_t k = 0; k < steps; ++k, a += terms * PAIR, b += terms * TILE) {
        if (k == 0 && done != NULL) {
            if (zero)
                step_changing(terms, two_rows, true, a, b, ldb, done, sums);
            else
                step_changing(terms, two_rows, false, a, b, ldb, done, sums);
        } else {
            if (k == 0 && zero) EACH(ZERO);
            if (k == 0 && !zero) EACH(RESUME);
            step(terms, two_rows, two_cols, a, b, ldb);
        }
        for (int64_t n = 0; n < each && next < last; ++n, ++next) {
            __builtin_prefetch(sums + AGK_TERMS_SUMS + 16 * next, 1, 3);
        }
        fetch_rows(ahead);
        fetch_units(ahead);
    }
}

AGK_INLINE void all_units(int terms, bool two_rows, const agk_terms_panel *p)
{
    const int64_t units = (p->cols + 15) / 16, steps = (units + 1) / 2 * (p->k / 32);
    requests ahead = {.row = p->next_a, .row_lines = (int64_t)(p->next_bytes + 63) / 64, .lda = p->next_lda};
    ahead.lines = ahead.row_lines * p->next_rows;
    ahead.each = steps == 0 ? 0 : (ahead.lines + steps - 1) / steps;
    if (p->shares > 0) {
        const int64_t lines = units * (int64_t)p->ldb / 64;
        ahead.units = p->b + p->next_b + 64 * (lines * p->share / p->shares);
        ahead.units_end = p->b + p->next_b + 64 * (lines * (p->share + 1) / p->shares);
        ahead.units_each = steps == 0 ? 0 : (lines / p->shares + steps) / steps;
    }
    float *sums = NULL;
    int64_t unit = 0;
    for (; unit + 1 < units; unit += 2) {
        block(terms, two_rows, true, p, unit, sums, &ahead);
        sums = p->sums + unit / 2 * AGK_TERMS_SUMS;
    }
    if (sums != NULL) {
        const bool two_cols = true;
        EACH(KEEP);
    }
    if (unit < units) {
        const bool two_cols = false;
        sums = p->sums + unit / 2 * AGK_TERMS_SUMS;
        block(terms, two_rows, false, p, unit, NULL, &ahead);
        EACH(KEEP);
    }
}

void agk_mm_terms_tile_amx(const agk_terms_panel *p)
{
    agk_tiles_configure(
        (const agk_tile_shape[8]){{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});
    if (p->terms == 1 && p->rows > 16)
        all_units(1, true, p);
    else if (p->terms == 1)
        all_units(1, false, p);
    else if (p->terms == 2 && p->rows > 16)
        all_units(2, true, p);
    else if (p->terms == 2)
        all_units(2, false, p);
    else if (p->rows > 16)
        all_units(3, true, p);
    else
        all_units(3, false, p);
    _tile_release();
}
