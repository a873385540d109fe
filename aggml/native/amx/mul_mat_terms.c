/* mul_mat in bf16 terms on AMX: panels of 32 rows x units of 16 columns, blocks of 32 x 32 in four tiles.
 *
 * Figures of one core of a Sapphire Rapids. A tile product takes 16 cycles, 3480 GFLOP/s with zeros; numbers, loaded from L1 a
 * tile for each product, leave 2500. A block of 32 x 32 would take 64 bytes a cycle from L2, which gives 46: so a panel of one
 * term stays in L1 and only the units come from L2, loaded as a stream so that the panel stays in: 2510 -> 3230 with zeros, 2000 with
 * numbers. Sums in and out of the tiles cost 290 cycles a block; they stay in the layout of tiles until the last block of k, since
 * turning them each time, behind stores to c that wait for L3, took as long as the products. With more terms a tile is loaded for
 * every second product. Reached only through lines that need AGK_AMX_BF16. */
#include "terms.h"

/* -- products ------------------------------------------------------------------------------------------------- */

/* Lines first .. last - 1 of what lies at `from`, into L2. */
AGK_INLINE void fetch(const char *from, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; ++i) _mm_prefetch(from + 64 * i, _MM_HINT_T1);
}

AGK_INLINE void block(int terms, bool two_rows, bool two_cols, const agk_terms_panel *p, int64_t unit)
{
    float *sums = p->sums + unit / 2 * AGK_TERMS_SUMS;
    const size_t ldb = p->ldb;
    const char *a = p->a, *b = p->b + (size_t)unit * ldb;
    const int64_t lines = 16 * terms; /* of a unit, for each 32 k */
    const int64_t from = p->shares > 0 ? lines * p->share / p->shares : 0;
    const int64_t to = p->shares > 0 ? lines * (p->share + 1) / p->shares : 0;
    if (p->first)
        EACH(ZERO);
    else
        EACH(RESUME);
    int64_t col = 16 * unit;
    const int64_t end = p->last ? (col + 32 < p->cols ? col + 32 : p->cols) : col,
                  each = end - col > 16 * p->k / 32 ? 32 : 2;
    for (int64_t k = 0; k < p->k; k += 32, a += terms * PAIR, b += terms * TILE) {
        step(terms, two_rows, two_cols, a, b, ldb);
        for (int64_t n = 0; n < each && col < end; ++n, ++col) { /* lines that `put` will store to */
            const char *line = (const char *)p->c + (size_t)col * p->ldc;
            __builtin_prefetch(line, 1, 2);
            if (two_rows) __builtin_prefetch(line + 64, 1, 2);
        }
        fetch(b + p->next_b, from, to);
        if (two_cols) fetch(b + p->next_b + ldb, from, to);
    }
    EACH(KEEP);
}

AGK_INLINE void all_units(int terms, bool two_rows, const agk_terms_panel *p)
{
    const int64_t units = (p->cols + 15) / 16, pairs = (units + 1) / 2;
    int64_t unit = 0, row = 0;
    for (; unit < units; unit += 2) {
        for (; row < p->next_rows * (unit / 2 + 1) / pairs; ++row) {
            fetch(p->next_a + (size_t)row * p->next_lda, 0, (int64_t)(p->next_bytes + 63) / 64);
        }
        if (unit + 1 < units)
            block(terms, two_rows, true, p, unit);
        else
            block(terms, two_rows, false, p, unit);
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
