/* Every variant of the kernels for mul_mat of many columns in lanes, as bytes and as sums of 16 bits, compared with
 * the scalar kernels. Packed bytes are equal, products differ by no more than sums in f32 do. Buffers have their
 * exact size, so that ASan sees any read or write beyond them. Not here: terms of bf16 (kernels_terms.c), matrix
 * tiles (kernels_tiles.c). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "check.h"
#include "terms.h"
#include "variants.h"
#include "table/kernel_types.h"
#include "formats/blocks.h"
#include "kernels/mul_mat_bytes.h"
#include "kernels/mul_mat_shorts.h"

/* Columns as mm_columns_q8 makes them; wide: all blocks have one scale. */
static agk_mm_col_q8 *columns(rng *r, int64_t n, bool wide)
{
    agk_mm_col_q8 *x = bytes((size_t)n * sizeof *x);
    const float one = 0.01f * (float)(1 + rng_below(r, 100));
    for (int64_t i = 0; i < n; ++i) {
        for (int h = 0; h < 2; ++h) x[i].d[h] = wide ? one : 0.01f * (float)(1 + rng_below(r, 100));
        for (size_t e = 0; e < sizeof x[i].q; ++e) x[i].q[e] = (int8_t)((int)rng_below(r, 255) - 127);
    }
    return x;
}

/* scaled: one scale for all k; halves have minimums of their own, or there is one, minus half the scale. Minimums are
 * multiples of a step of the row, whose factors stand in every second or fourth piece. */
static agk_bytes_row *byte_rows(rng *r, bool halves, bool minimum, bool scaled)
{
    enum { N = ROWS * K / 16, ROW = K / 16 };
    agk_bytes_row *x = bytes(N * sizeof *x);
    for (int i = 0; i < N; ++i) {
        agk_bytes_row *row = x + i - i % ROW;
        for (size_t e = 0; e < sizeof x[i].q; ++e) x[i].q[e] = (uint8_t)rng_below(r, 256);
        x[i].d = 0.01f * (float)(1 + rng_below(r, 100));
        x[i].step = row->step = i % ROW == 0 ? 0.01f * (float)(1 + rng_below(r, 100)) : row->step;
        const int16_t factor = (int16_t)rng_below(r, 64);
        x[i].minimum = -x[i].step * (float)factor;
        if (scaled) x[i].d = row->d;
        if (!halves && i % 2 == 1) x[i].d = x[i - 1].d, x[i].minimum = x[i - 1].minimum;
        if (halves || i % 2 == 0) {
            const int at = i % ROW / (halves ? 1 : 2);
            row[at / 2 * (halves ? 2 : 4)].times[at % 2] = factor;
        }
        if (scaled && minimum && !halves) x[i].minimum = -0.5f * x[i].d;
    }
    return x;
}

/* The function that packs columns for this tile: units for smmla have their own order, all others the scalar one's. */
static agk_mm_bytes_columns_fn *pack_of(const agk_variant *tile)
{
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_any_fn *pack = variant(i, "mm_bytes_columns");
        if (pack != NULL && strcmp(agk_variants[i].isa, tile->isa) == 0) return (agk_mm_bytes_columns_fn *)pack;
    }
    return agk_mm_bytes_columns_scalar;
}

/* Whether the instruction set of this tile has rows with one scale. */
static bool scales_rows(const agk_variant *tile)
{
    for (size_t i = 0; i < agk_n_variants; ++i) {
        if (variant(i, "mm_bytes_scaled_rows") != NULL && strcmp(agk_variants[i].isa, tile->isa) == 0) return true;
    }
    return false;
}

static int bytes_in_lanes(const rng *start)
{
    enum { COL = (K + 63) / 64, UNIT = K / 32 * sizeof(agk_bytes_unit) };
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_bytes_columns_fn *pack = (agk_mm_bytes_columns_fn *)variant(i, "mm_bytes_columns");
        agk_mm_bytes_product_fn *tile = (agk_mm_bytes_product_fn *)variant(i, "mm_bytes_product");
        if (pack == NULL && tile == NULL) continue;
        rng own = *start, *r = &own;
        for (int round = 0; round < SCALED(80); ++round) {
            const bool halves = (round & 1) != 0, wide = (round & 2) != 0, minimum = (round & 4) != 0;
            if (halves && minimum && !wide) continue; /* no type is like this */
            const bool scaled = wide && (minimum || !halves) && (round & 8) != 0 && scales_rows(&agk_variants[i]);
            const int64_t rows = 1 + round * 7 % ROWS, cols = 1 + round * 11 % COLS, units = (cols + 15) / 16;
            char *b = bytes((size_t)units * UNIT), *other = bytes((size_t)units * UNIT);
            for (int64_t u = 0; u < units; ++u) {
                const int64_t n = cols - 16 * u < 16 ? cols - 16 * u : 16;
                agk_mm_col_q8 *x = columns(r, n * COL, wide);
                agk_mm_bytes_columns_scalar(halves, wide, K, n, x, COL * sizeof *x, b + u * UNIT);
                pack_of (&agk_variants[i])(halves, wide, K, n, x, COL * sizeof *x, other + u * UNIT);
                free(x);
            }
            for (int64_t u = 0; u < units * K / 32 && pack != NULL; ++u) {
                agk_bytes_unit *left = (agk_bytes_unit *)(void *)b + u, *right = (agk_bytes_unit *)(void *)other + u;
                if (!halves) { /* the second start and sum are not used */
                    memcpy(right->start[1], left->start[1], sizeof left->start[1]);
                    memcpy(right->sum[1], left->sum[1], sizeof left->sum[1]);
                }
                const bool own_order = strcmp(agk_variants[i].isa, "i8mm") == 0;
                CHECK(memcmp(left, right, own_order ? offsetof(agk_bytes_unit, q) : sizeof *left) == 0);
            }
            agk_bytes_row *a = byte_rows(r, halves, minimum, scaled);
            const agk_mm_panel p = {.k = K,
                                    .rows = rows,
                                    .cols = cols,
                                    .a = (char *)a,
                                    .lda = K / 16 * sizeof *a,
                                    .halves = halves,
                                    .minimum = minimum,
                                    .wide = wide,
                                    .scaled = scaled,
                                    .b = b,
                                    .ldb = UNIT};
            if (tile != NULL) same_of(tile, other, agk_mm_bytes_product_scalar, put_of(&agk_variants[i]), p, 0.0);
            free(a);
            free(b);
            free(other);
        }
        ++n_variants;
    }
    return n_variants;
}

/* Columns of floats become the same bytes as by way of agk_mm_col_q8; also those with numbers that are not finite. */
static int floats_as_bytes(const rng *start)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_bytes_floats_fn *pack = (agk_mm_bytes_floats_fn *)variant(i, "mm_bytes_floats");
        if (pack == NULL) continue;
        rng own = *start, *r = &own;
        for (int round = 0; round < SCALED(120); ++round) {
            const bool halves = (round & 1) != 0, wide = (round & 2) != 0;
            const int64_t k = wide ? 512 : K, n = 1 + round * 7 % 16, gap = round % 3;
            const size_t unit = (size_t)(k / 32) * sizeof(agk_bytes_unit), ldb = (size_t)(k + gap) * 4;
            float *x = numbers(r, n * (k + gap));
            if (round % 5 == 0) x[rng_below(r, (uint32_t)k)] = round % 2 == 0 ? NAN : INFINITY;
            if (round % 7 == 0) memset(x, 0, 32 * sizeof *x);
            agk_bytes_unit *expected = bytes(unit), *found = bytes(unit);
            agk_mm_bytes_floats_scalar(halves, wide, k, n, x, ldb, expected);
            pack(halves, wide, k, n, x, ldb, found);
            for (int64_t u = 0; u < k / 32; ++u) {
                if (!halves) { /* the second start and sum are not used */
                    memcpy(found[u].start[1], expected[u].start[1], sizeof found[u].start[1]);
                    memcpy(found[u].sum[1], expected[u].sum[1], sizeof found[u].sum[1]);
                }
                CHECK(memcmp(&expected[u], &found[u], sizeof found[u]) == 0);
            }
            free(x);
            free(expected);
            free(found);
        }
        ++n_variants;
    }
    return n_variants;
}

/* Random rows in the layout into which rows of a type are converted for sums of 16 bits. */
static void *short_rows(rng *r, agk_code_traits t, int fours, int64_t k)
{
    const size_t size = agk_short_row_bytes(fours == 0);
    const int most = fours == 0 ? 128 : 64 / fours;
    char *rows = bytes((size_t)(ROWS * k / 32) * size);
    for (int64_t i = 0; i < ROWS * k / 32; ++i) {
        agk_short_row *x = (agk_short_row *)(void *)(rows + (size_t)i * size);
        agk_short_row *first = (agk_short_row *)(void *)(rows + (size_t)(i - i % (k / 32)) * size);
        x->unit = first->unit = x == first ? 0.01f * (float)(1 + rng_below(r, 100)) : first->unit;
        x->total = 0;
        for (int h = 0; h < 2; ++h) {
            const int factor = (int)rng_below(r, 1017) - 508; /* of q6_K up to 1016 */
            x->d[h] = t.wide ? x->unit * (float)factor : 0.01f * (float)(1 + rng_below(r, 100));
            x->minimum[h] = -0.1f * (float)rng_below(r, 100);
            x->factor[h] = agk_short_twice(factor);
            x->start[h] = 0;
        }
        if (!t.halves) x->d[1] = x->d[0], x->minimum[1] = x->minimum[0], x->factor[1] = x->factor[0];
        for (int e = 0; e < 32; ++e) {
            const int q = i % 3 == 0                ? -most
                          : i % 3 == 1 && fours > 0 ? most
                                                    : (int)rng_below(r, (uint32_t)(2 * most)) - most;
            /* words: the order within a four does not matter here, since each half of 16 has the same elements */
            if (fours == 0)
                x->words[e] = (int16_t)q;
            else
                x->q[e] = (int8_t)q;
            x->start[t.halves ? e / 16 : 0] -= 128 * q;
        }
        for (int h = 0; h < (t.halves ? 2 : 1); ++h) first->total += x->start[h] * (int16_t)(x->factor[h] & 0xffff);
    }
    return rows;
}

/* The mean square of an element of the product: the mean square of scaled codes plus that of minimums, which may
 * cancel each other, times that of columns. */
static double square_of(const agk_mm_panel *p)
{
    double rows = 0.0, cols = 0.0;
    for (int64_t i = 0; i < p->rows * p->k; ++i) {
        const char *row = p->a + (size_t)(i / p->k) * p->lda;
        const agk_short_row *x =
            (const agk_short_row *)(const void *)(row + (size_t)(i % p->k / 32) * agk_short_row_bytes(p->fours == 0));
        const double q = p->fours == 0 ? x->words[i % 32] : x->q[i % 32], d = x->d[i % 32 / 16];
        const double minimum = p->minimum ? x->minimum[i % 32 / 16] : 0.0;
        rows += (q * d * q * d + minimum * minimum) / (double)p->rows;
    }
    for (int64_t i = 0; i < p->cols * p->k; ++i) {
        const int64_t col = i / p->k, k = i % p->k;
        const agk_short_unit *y = (const agk_short_unit *)(const void *)(p->b + (size_t)(col / 16) * p->ldb) + k / 32;
        const double x = (double)y->d[col % 16] * (y->q[k % 32 / 4][col % 16][k % 4] - 128);
        cols += x * x / (double)(p->cols * p->k);
    }
    return 2.0 * rows * cols;
}

static int sums_of_16_bits(const rng *start)
{
    enum { LONG = 256, COL = LONG / 64, UNIT = LONG / 32 * sizeof(agk_short_unit) };
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_shorts_columns_fn *pack = (agk_mm_shorts_columns_fn *)variant(i, "mm_shorts_columns");
        agk_mm_shorts_product_fn *tile = (agk_mm_shorts_product_fn *)variant(i, "mm_shorts_product");
        if (pack == NULL && tile == NULL) continue;
        rng own = *start, *r = &own;
        for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
            const agk_code_traits t = agk_code_traits_of(type);
            if (!t.served) continue;
            const bool whole = tile != NULL && strcmp(agk_variants[i].isa, "avxvnni") == 0;
            /* avxvnni sums in 32 bits, so that rows of all types are bytes */
            const int fours = whole ? 8 : agk_short_fours(type);
            for (int round = 0; round < SCALED(8); ++round) {
                const int64_t rows = 1 + (round * 7 + type) % ROWS, cols = 1 + (round * 11 + type) % COLS;
                const int64_t units = (cols + 15) / 16;
                char *b = bytes((size_t)units * UNIT), *other = bytes((size_t)units * UNIT);
                for (int64_t u = 0; u < units; ++u) {
                    const int64_t n = cols - 16 * u < 16 ? cols - 16 * u : 16;
                    agk_mm_col_q8 *x = columns(r, n * COL, t.wide);
                    for (int64_t j = 0; j < n * COL; j += 2) { /* columns that give the largest sums */
                        memset(x[j].q, j % 4 == 0 ? 127 : -128, sizeof x[j].q);
                    }
                    agk_mm_shorts_columns_scalar(t.halves, t.wide, LONG, n, x, COL * sizeof *x, b + u * UNIT);
                    if (pack != NULL) pack(t.halves, t.wide, LONG, n, x, COL * sizeof *x, other + u * UNIT);
                    free(x);
                }
                for (int64_t u = 0; u < units * LONG / 32 && pack != NULL; ++u) {
                    agk_short_unit *left = (agk_short_unit *)(void *)b + u,
                                   *right = (agk_short_unit *)(void *)other + u;
                    /* the second sum is not used */
                    if (!t.halves) memcpy(right->sum[1], left->sum[1], sizeof left->sum[1]);
                    CHECK(memcmp(left, right, sizeof *left) == 0);
                }
                void *a = short_rows(r, t, fours, LONG);
                const agk_mm_panel p = {.k = LONG,
                                        .rows = rows,
                                        .cols = cols,
                                        .fours = fours,
                                        .a = a,
                                        .lda = LONG / 32 * agk_short_row_bytes(fours == 0),
                                        .halves = t.halves,
                                        .minimum = t.minimum,
                                        .wide = t.wide,
                                        .b = b,
                                        .ldb = UNIT};
                if (tile != NULL) same(tile, agk_mm_shorts_product_scalar, put_of(&agk_variants[i]), p, square_of(&p));
                free(a);
                free(b);
                free(other);
            }
        }
        ++n_variants;
    }
    return n_variants;
}

/* Rows of any bits, converted for sums of 16 bits, compared with the same rows as floats. Values that are stored
 * twice must agree. */
static int short_rows_of_types(rng *r)
{
    enum { N = 512 };
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_shorts_rows_fn *row = (agk_mm_shorts_rows_fn *)variant(i, "mm_shorts_rows");
        if (row == NULL || strcmp(agk_variants[i].isa, "scalar") == 0) continue; /* the scalar kernel rounds */
        for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
            const agk_code_traits t = agk_code_traits_of(type);
            const int fours = t.served ? agk_short_fours(type) : 8, most = fours == 0 ? 128 : 64 / fours;
            for (int round = 0; t.served && round < SCALED(60); ++round) {
                const bool words = fours == 0 && round % 2 == 0;
                const size_t size = agk_row_size(type, N), each = agk_short_row_bytes(words);
                uint8_t *src = malloc(size);
                char *rows = bytes(N / 32 * each);
                float x[N];
                for (size_t e = 0; e < size; ++e) src[e] = (uint8_t)rng_next(r);
                agk_traits(type)->to_float(src, x, N);
                row(type, words, src, rows, N);
                int64_t total = 0;
                for (int e = 0; e < N; ++e) {
                    static const int at[4] = {0, 2, 1, 3};
                    const agk_short_row *y = (const agk_short_row *)(const void *)(rows + (size_t)(e / 32) * each);
                    const int j = e % 32, h = j / 16, q = words ? y->words[j / 4 * 4 + at[j % 4]] : y->q[j];
                    const agk_short_row *first =
                        (const agk_short_row *)(const void *)(rows + (size_t)(e / 256 * 8) * each);
                    const int factor = (int16_t)(y->factor[h] & 0xffff);
                    CHECK(q >= -most && q <= most && (words || fours != 0 || q < 128));
                    CHECK(t.halves || (y->d[0] == y->d[1] || isnan(y->d[0])));
                    if (isfinite(x[e]) && isfinite(y->d[h]) && isfinite(y->minimum[h])) {
                        const double product = (double)y->d[h] * q, minimum = t.minimum ? (double)y->minimum[h] : 0.0;
                        const double room = 1e-6 * (fabs(product) + fabs(minimum)) + 1e-30;
                        CHECK(fabs(product + minimum - (double)x[e]) <= room);
                        if (t.wide)
                            CHECK(fabs((double)first->unit * factor - (double)y->d[h]) <= fabs((double)y->d[h]) * 1e-6);
                    }
                    if (t.wide) CHECK(y->factor[h] == agk_short_twice(factor));
                    total -= 128 * q * (t.wide ? factor : 0);
                    if (t.wide && e % 256 == 255) {
                        CHECK(first->total == total);
                        total = 0;
                    }
                    if (j != 31) continue;
                    int64_t sum[2] = {0, 0};
                    for (int c = 0; c < 32; ++c) sum[t.halves ? c / 16 : 0] += words ? y->words[c] : y->q[c];
                    CHECK(y->start[0] == -128 * sum[0] && (!t.halves || y->start[1] == -128 * sum[1]));
                }
                free(src);
                free(rows);
            }
        }
        ++n_variants;
    }
    return n_variants;
}

int main(void)
{
    /* Each test has its own random numbers, and each variant begins with the same ones: whether an error comes near
     * its bound must not depend on other tests and variants. */
    rng r[4];
    for (uint64_t i = 0; i < 4; ++i) r[i] = rng_new(3 + i);
    CHECK(bytes_in_lanes(&r[0]) >= 1);
    CHECK(floats_as_bytes(&r[3]) >= 1);
    CHECK(sums_of_16_bits(&r[1]) >= 1);
    short_rows_of_types(&r[2]); /* only AVX2 has these kernels */
    return 0;
}
