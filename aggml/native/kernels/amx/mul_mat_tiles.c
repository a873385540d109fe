/* mul_mat in bf16 terms on AMX: panels of 32 rows x units of 16 columns, blocks of 32 x 32 in four tiles
 * (mul_mat_panels.h). Reached only through lines that need AGK_AMX_BF16. */
#include "kernels/mul_mat_panels.h"

#include "kernels/avx512/mul_mat_end.h"
#include "tiles.h"

enum { TILE = AGK_TERMS_TILE };

/* For mul_mat_terms.h: the lines of the sums are columns. */
#define AGK_DP(sum, rows, cols) _tile_dpbf16ps(sum, cols, rows)
#define TERM_OF_ROWS TILE

/* The prefetches that are interleaved with the products: a few lines after each four products. There are only 16
 * buffers for lines in flight, and the units themselves come through them. If all prefetches of 32 k are issued
 * together, f32 (34 lines for 24 products) is 7 % slower. */
typedef struct requests {
    /* rows of a that the next panel will be packed from; prefetched into L2 */
    const char *row;
    int64_t line, lines, row_lines, rows_each; /* _each: in 32 k */
    size_t lda;
    const char *units, *units_end; /* this panel's share of the units of the next block of k; prefetched into L2 */
    int64_t units_each;
    const float *sums; /* the sums of the next pair of units; prefetched into L1 */
    int64_t sums_lines, sums_each;
} requests;

/* Issues part i of n of the prefetches that belong to 32 k. */
AGK_INLINE void fetch(requests *x, int i, int n)
{
    for (int64_t m = x->rows_each * (i + 1) / n - x->rows_each * i / n; m > 0 && x->lines > 0; --m, --x->lines) {
        _mm_prefetch(x->row + 64 * x->line, _MM_HINT_T1);
        if (++x->line == x->row_lines) {
            x->line = 0;
            x->row += x->lda;
        }
    }
    for (int64_t m = x->units_each * (i + 1) / n - x->units_each * i / n; m > 0 && x->units < x->units_end; --m) {
        _mm_prefetch(x->units, _MM_HINT_T1);
        x->units += 64;
    }
    for (int64_t m = x->sums_each * (i + 1) / n - x->sums_each * i / n; m > 0 && x->sums_lines > 0; --m) {
        __builtin_prefetch(x->sums, 1, 3);
        x->sums += 16;
        --x->sums_lines;
    }
}

#include "mul_mat_terms.h"

/* Figures of one core of a Granite Rapids, in GFLOP/s, with random numbers. Products alone reach 3150; with tiles
 * loaded from L1 2550; with units from L2, loaded as a stream so that the panel stays in L1, 2430 at any k up to
 * 512. Moving sums in and out of the tiles every 256 k leaves 2060. Each line that comes into L2 meanwhile costs 1
 * to 2 ns: rows of a from memory and the next block of units from L3, six lines for four products if an item has 256
 * rows and 512 columns, leave 1150 of a long bf16 product. The epilogue of a sum (scale, add, store) behind the last
 * block of k is interleaved with the products of the next block, a part with each 32 k, because products wait for
 * each other and leave both vector ports free. */

/* Between two blocks of k: one sum leaves its tile, the next one enters. */
#define CHANGE(i) \
    do { \
        _tile_stored(i, done + 256 * (i), 64); \
        if (zero) \
            _tile_zero(i); \
        else \
            _tile_loadd(i, sums + 256 * (i), 64); \
    } while (0)

/* The same for the first 32 k of a block that follows another one whose sums are still in the tiles. A tile can be
 * stored 52 cycles after its last product; storing four together and loading four leaves 1580 of 2430 GFLOP/s for
 * blocks of 256 k. Here each sum leaves just before the product that needs its tile, while the other tiles multiply:
 * 2060, if the new sums are in L1. */
AGK_INLINE void step_changing(int terms, bool two_rows, bool zero, const char *a, size_t lda, const char *b, size_t ldb,
                              float *done, const float *sums, requests *ahead)
{
    const bool two_cols = true;
    const int first = terms - 1; /* term of b */
    _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b + first * TILE, 64);
    CHANGE(0);
    AGK_DP(0, 4, 6);
    if (two_rows) {
        _tile_loadd(5, a + lda, 64);
        CHANGE(1);
        AGK_DP(1, 5, 6);
    }
    _tile_stream_loadd(7, b + ldb + first * TILE, 64);
    CHANGE(2);
    AGK_DP(2, 4, 7);
    if (two_rows) {
        CHANGE(3);
        AGK_DP(3, 5, 7);
    }
    if (terms == 1)
        fetch(ahead, 0, 1);
    else
        others(terms, two_rows, two_cols, a, lda, b, ldb, ahead);
}

/* Prefetches lines of the result, and of the addend, that are needed with the next block: stores to lines that are
 * not in L2 would hold up the loads behind them. Without this a result of 36 MB takes 1.8 times as long at k = 384;
 * a result that is in L2 takes 0.98 times as long. */
AGK_INLINE void fetch_ends(const agk_mm_panel *p, int64_t unit, int64_t from, int64_t to)
{
    const agk_mm_end *e = p->end;
    const int64_t left = p->cols - 16 * unit;
    for (int64_t j = from; j < to && j < left; ++j) {
        if (e->units != NULL) {
            _mm_prefetch(e->units + (size_t)(unit + j / 16) * e->ld_unit + j % 16 * 64, _MM_HINT_T1);
            continue;
        }
        const char *c = (const char *)e->c + (size_t)(16 * unit + j) * e->ldc;
        _mm_prefetch(c, _MM_HINT_T1);
        if (!e->narrow) _mm_prefetch(c + 64, _MM_HINT_T1);
        if (e->other == NULL) continue;
        const char *other = e->other + (size_t)(16 * unit + j) * e->ld_other;
        _mm_prefetch(other, _MM_HINT_T1);
        _mm_prefetch(other + 64, _MM_HINT_T1);
    }
}

/* A pair of units, or one. `done`: where to store the sums of the pair before, which are still in the tiles; NULL:
 * there are none. */
AGK_INLINE void block(int terms, bool two_rows, bool two_cols, const agk_mm_panel *p, int64_t unit, float *done,
                      requests *ahead)
{
    float *sums = p->sums + unit / 2 * AGK_PANEL_SUMS;
    const size_t lda = p->lda, ldb = p->ldb;
    const char *a = p->a, *b = p->b + (size_t)unit * ldb;
    const bool zero = p->first;
    const int64_t steps = p->k / 32;
    ahead->sums = sums + AGK_PANEL_SUMS;
    ahead->sums_lines = unit + 2 < (p->cols + 15) / 16 && (p->end == NULL || !zero) ? 64 : 0;
    ahead->sums_each = (64 + steps - 1) / steps;
    const bool ends = p->end != NULL && done != NULL;
    int part = 0;
    for (int64_t k = 0; k < steps; ++k, a += terms * TILE, b += terms * TILE) {
        if (k == 0 && done != NULL) {
            if (zero)
                step_changing(terms, two_rows, true, a, lda, b, ldb, done, sums, ahead);
            else
                step_changing(terms, two_rows, false, a, lda, b, ldb, done, sums, ahead);
        } else {
            if (k == 0 && zero) EACH(ZERO);
            if (k == 0 && !zero) EACH(RESUME);
            step(terms, two_rows, two_cols, a, lda, b, ldb, ahead);
        }
        if (p->end != NULL) fetch_ends(p, unit, 32 * k / steps, 32 * (k + 1) / steps);
        if (ends && k > 0) {
            const int to = (int)(PARTS * k / (steps - 1));
            agk_end_parts(p, done, unit - 2, part, to);
            part = to;
        }
    }
    if (ends && part < PARTS) agk_end_parts(p, done, unit - 2, part, PARTS);
}

AGK_INLINE void all_units(int terms, bool two_rows, const agk_mm_panel *p)
{
    const int64_t units = (p->cols + 15) / 16, steps = (units + 1) / 2 * (p->k / 32);
    requests ahead = {.row = p->next_a, .row_lines = (int64_t)(p->next_bytes + 63) / 64, .lda = p->next_lda};
    ahead.lines = ahead.row_lines * p->next_rows;
    ahead.rows_each = steps == 0 ? 0 : (ahead.lines + steps - 1) / steps;
    if (p->shares > 0) {
        const int64_t lines = units * (int64_t)p->ldb / 64;
        ahead.units = p->b + p->next_b + 64 * (lines * p->share / p->shares);
        ahead.units_end = p->b + p->next_b + 64 * (lines * (p->share + 1) / p->shares);
        ahead.units_each = steps == 0 ? 0 : (lines / p->shares + steps) / steps;
    }
    _Alignas(64) float last[AGK_PANEL_SUMS];
    float *sums = NULL;
    int64_t unit = 0;
    for (; unit + 1 < units; unit += 2) {
        block(terms, two_rows, true, p, unit, sums, &ahead);
        sums = p->end != NULL ? last : p->sums + unit / 2 * AGK_PANEL_SUMS;
    }
    if (sums != NULL) {
        const bool two_cols = true;
        EACH(KEEP);
        if (p->end != NULL) agk_end_parts(p, sums, unit - 2, 0, PARTS);
    }
    if (unit < units) {
        const bool two_cols = false;
        block(terms, two_rows, false, p, unit, NULL, &ahead);
        sums = p->end != NULL ? last : p->sums + unit / 2 * AGK_PANEL_SUMS;
        EACH(KEEP);
        if (p->end != NULL) agk_end_parts(p, sums, unit, 0, PARTS / 2);
    }
}

void agk_mm_tiles_product_amx(const agk_mm_panel *p)
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
