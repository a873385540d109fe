/* mul_mat of quantized rows and many columns in byte lanes, AVX-512 VNNI (mul_mat_bytes.h): 4 rows x 48 columns.
 *
 * Lanes are columns; 4 bytes of a row are broadcast. For each 16 sums, 32 k take 8 products, a conversion, a
 * multiplication and an fma: at most 80 % of the peak where conversions have pipes of their own, 73 % where they have
 * not (and 73, 67 % with minimums). Rows whose scales are all equal need no multiplication: 89, 80 %. The 12 sums of a
 * block advance together: one after the other, their chains of 8 fill the scheduler of a Granite Rapids, 54 instead of
 * 69 % of its peak. 6 x 32 are as fast, 3 x 64, 10 x 16 slower.
 * Not here: sums of 256 k (mul_mat_bytes_wide.h), packing (mul_mat_bytes_rows.c, mul_mat_bytes_columns.c). */
#include "kernels/mul_mat_bytes.h"
#include "mul_mat_blocks.h"
#include "mul_mat_bytes_wide.h"
#include "kernels/vec/mul_mat_panels.h"

enum { ROWS = 4, UNIT_SUMS = AGK_PANEL_SUMS / 2 };

/* How many k of a row share a scale; 256: its codes were multiplied by scales, or the type has no others; OF_ROW: the
 * type has a scale for each 32, but all of the row in this block of k are equal (one_scale). */
typedef enum scaling { OF_32, OF_16, OF_256, OF_ROW } scaling;

AGK_INLINE const agk_bytes_row *row_at(const char *a, size_t lda, int64_t r)
{
    return (const agk_bytes_row *)(const void *)(a + (size_t)r * lda);
}

/* Bytes first .. last - 1 of a block in fours, and their scale: those of row half h. */
AGK_INLINE void part(scaling of, bool minimum, bool wide, int W, int h, int first, int last,
                     const agk_bytes_row *const a[ROWS], const char *b, size_t ldb, __m512 acc[ROWS][3])
{
    __m512i s[ROWS][3];
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        const agk_bytes_unit *unit = (const agk_bytes_unit *)(const void *)(b + (size_t)w * ldb);
        s[0][w] = _mm512_load_si512(unit->start[h]);
        AGK_UNROLL for (int r = 1; r < ROWS; ++r) s[r][w] = s[0][w];
    }
    AGK_UNROLL for (int v = first; v < last; ++v)
    {
        __m512i y[3];
        AGK_UNROLL for (int w = 0; w < W; ++w)
        {
            y[w] = _mm512_load_si512(((const agk_bytes_unit *)(const void *)(b + (size_t)w * ldb))->q[v]);
        }
        AGK_UNROLL for (int r = 0; r < ROWS; ++r)
        {
            int32_t four;
            memcpy(&four, a[r][v / 4].q + 4 * (v % 4), sizeof four);
            __m512i x = _mm512_set1_epi32(four);
            if (W > 1) __asm__("" : "+v"(x)); /* one load for all products */
            AGK_UNROLL for (int w = 0; w < W; ++w) s[r][w] = add_fours(s[r][w], x, y[w]);
        }
    }
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        const agk_bytes_unit *unit = (const agk_bytes_unit *)(const void *)(b + (size_t)w * ldb);
        const __m512 d = _mm512_load_ps(unit->d);
        AGK_UNROLL for (int r = 0; r < ROWS; ++r)
        {
            const __m512 of_row = _mm512_set1_ps(a[r][h].d);
            const __m512 scale = of == OF_ROW ? d : wide ? of_row : _mm512_mul_ps(d, of_row);
            acc[r][w] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r][w]), scale, acc[r][w]);
            if (!minimum || wide) continue;
            acc[r][w] = _mm512_fmadd_ps(_mm512_set1_ps(a[r][h].minimum), _mm512_load_ps(unit->sum[h]), acc[r][w]);
        }
    }
}

/* The sums of a tile, but for the scales of wide columns. */
AGK_INLINE void of_parts(scaling of, bool minimum, bool wide, int W, const agk_mm_panel *p, const char *a,
                         const char *b, __m512 acc[ROWS][3])
{
    for (int64_t k = 0; k < p->k; k += AGK_MM_BLOCK, a += 2 * sizeof(agk_bytes_row), b += sizeof(agk_bytes_unit)) {
        const agk_bytes_row *row[ROWS];
        AGK_UNROLL for (int r = 0; r < ROWS; ++r) row[r] = row_at(a, p->lda, r);
        part(of, minimum, wide, W, 0, 0, of == OF_16 ? 4 : 8, row, b, p->ldb, acc);
        if (of == OF_16) part(of, minimum, wide, W, 1, 4, 8, row, b, p->ldb, acc);
    }
}

AGK_INLINE void tile(scaling of, bool halves, bool minimum, bool wide, int W, const agk_mm_panel *p, const char *a,
                     const char *b, const of_units *units, float *sums)
{
    __m512 acc[ROWS][3];
    AGK_UNROLL for (int r = 0; r < ROWS; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        acc[r][w] = _mm512_setzero_ps();
        if (!p->first) _mm_prefetch((const char *)(sums + UNIT_SUMS * w + 16 * r), _MM_HINT_T0);
    }
    if (minimum && wide && (halves || of != OF_256)) add_minimums(halves, ROWS, W, p, a, units, acc);
    if (of == OF_256)
        of_whole(halves, minimum, ROWS, W, p, a, b, units, acc);
    else
        of_parts(of, minimum, wide, W, p, a, b, acc);
    AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        const __m512 d = _mm512_load_ps(((const agk_bytes_unit *)(const void *)(b + (size_t)w * p->ldb))->d);
        AGK_UNROLL for (int r = 0; r < ROWS; ++r)
        {
            float *sum = sums + UNIT_SUMS * w + 16 * r;
            const __m512 before = p->first ? _mm512_setzero_ps() : _mm512_load_ps(sum);
            const __m512 scale = of == OF_ROW ? _mm512_set1_ps(row_at(a, p->lda, r)->d) : d; /* left out so far */
            _mm512_store_ps(sum, of == OF_ROW || wide ? _mm512_fmadd_ps(acc[r][w], scale, before)
                                                      : _mm512_add_ps(acc[r][w], before));
        }
    }
}

AGK_INLINE void rows(scaling of, bool halves, bool minimum, bool wide, int W, const agk_mm_panel *p, int64_t unit,
                     agk_ahead *ahead)
{
    const char *b = p->b + (size_t)unit * p->ldb;
    const int64_t units = (p->cols + 15) / 16, pieces = (p->rows + ROWS - 1) / ROWS;
    of_units prepared;
    if (of == OF_256 || (minimum && wide)) prepare(halves, minimum, W, p, b, &prepared);
    for (int64_t i = 0; i < pieces; ++i) {
        agk_fetch_ahead(p, ahead, unit * pieces + W * (i + 1), units * pieces, unit, W, i, pieces);
        tile(of, halves, minimum, wide, W, p, p->a + (size_t)(ROWS * i) * p->lda, b, &prepared,
             p->sums + unit * UNIT_SUMS + 16 * ROWS * i);
    }
}

AGK_INLINE void all_units(scaling of, bool halves, bool minimum, bool wide, const agk_mm_panel *p)
{
    const int64_t units = (p->cols + 15) / 16;
    agk_ahead ahead = {0};
    for (int64_t unit = 0; unit < units;) {
        const int64_t left = units - unit;
        if (left == 1) {
            rows(of, halves, minimum, wide, 1, p, unit, &ahead);
            unit += 1;
        } else if (left == 2 || left == 4) {
            rows(of, halves, minimum, wide, 2, p, unit, &ahead);
            unit += 2;
        } else {
            rows(of, halves, minimum, wide, 3, p, unit, &ahead);
            unit += 3;
        }
    }
}

/* Whether in each row of the panel all scales are equal. Weights that were quantized with one scale for each row are
 * like that; of others the first row tells that they are not. */
static bool one_scale(const agk_mm_panel *p)
{
    for (int64_t r = 0; r < p->rows; ++r) {
        const agk_bytes_row *row = row_at(p->a, p->lda, r);
        bool same = true;
        for (int64_t i = 1; i < p->k / AGK_MM_BLOCK; ++i) same &= row[2 * i].d == row[0].d;
        if (!same) return false;
    }
    return true;
}

void agk_mm_bytes_product_avx512(const agk_mm_panel *p)
{
    if (p->scaled) {
        if (p->halves)
            all_units(OF_256, true, true, true, p); /* q2_K */
        else if (p->minimum)
            all_units(OF_256, false, true, true, p); /* iq1 */
        else
            all_units(OF_256, false, false, true, p);
        return;
    }
    switch ((p->wide ? 4 : 0) + (p->halves ? 2 : 0) + (p->minimum ? 1 : 0)) {
    case 0: one_scale(p) ? all_units(OF_ROW, false, false, false, p) : all_units(OF_32, false, false, false, p); break;
    case 1: all_units(OF_32, false, true, false, p); break;
    case 2: all_units(OF_16, true, false, false, p); break;
    case 4: all_units(OF_32, false, false, true, p); break;
    case 5: all_units(OF_32, false, true, true, p); break;
    case 6: all_units(OF_16, true, false, true, p); break;
    default: all_units(OF_16, true, true, true, p); /* no type has 3 */
    }
}
