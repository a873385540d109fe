/* Every variant of the kernels for mul_mat of many columns in lanes, as terms of bf16 and as f32, compared with the
 * scalar kernels. Packed bytes are equal, products differ by no more than sums in f32 do. Buffers have their exact
 * size, so that ASan sees any read or write beyond them. Not here: bytes (kernels_bytes.c), matrix tiles
 * (kernels_tiles.c). */
#include <math.h>
#include <string.h>

#include "check.h"
#include "terms.h"
#include "variants.h"
#include "table/kernel_types.h"

static int packing(rng *r)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_pairs_columns_fn *cols = (agk_mm_pairs_columns_fn *)variant(i, "mm_pairs_columns");
        agk_mm_pairs_rows_fn *row = (agk_mm_pairs_rows_fn *)variant(i, "mm_pairs_rows");
        for (int terms = 1; terms <= 3; ++terms) {
            for (int64_t k = K - 33; k <= K; ++k) {
                const size_t size = agk_terms_unit_bytes(terms, k);
                char *expected = bytes(2 * size), *found = bytes(2 * size);
                const int64_t n = 1 + k % 16;
                float *x = numbers(r, n * k);
                if (k % 3 == 0) x[n * k - 1] = k % 2 == 0 ? INFINITY : 1e-36f;
                const bool fine = terms == 1 || k % 3 != 0;
                if (cols != NULL) {
                    CHECK(agk_mm_pairs_columns_scalar(terms, k, n, x, (size_t)k * 4, expected) == fine);
                    CHECK(cols(terms, k, n, x, (size_t)k * 4, found) == fine);
                    if (fine) CHECK(memcmp(expected, found, size) == 0);
                }
                if (row != NULL) {
                    float *last = numbers(r, k); /* in a buffer of its exact size */
                    memcpy(last, x + (n - 1) * k, (size_t)k * 4);
                    memset(expected, 0, 2 * size);
                    memset(found, 0, 2 * size);
                    CHECK(agk_mm_pairs_rows_scalar(terms, k, last, expected) == fine);
                    CHECK(row(terms, k, last, found) == fine);
                    if (fine) CHECK(memcmp(expected, found, 2 * size) == 0);
                    free(last);
                }
                free(x);
                free(expected);
                free(found);
            }
        }
        n_variants += (cols != NULL) + (row != NULL);
    }
    return n_variants;
}

static int whole_numbers(const rng *start)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_floats_product_fn *tile = (agk_mm_floats_product_fn *)variant(i, "mm_floats_product");
        if (tile == NULL) continue;
        rng own = *start, *r = &own;
        for (int round = 0; round < SCALED(60); ++round) {
            const int64_t rows = 1 + round * 7 % ROWS, cols = 1 + round * 11 % COLS, units = (cols + 15) / 16;
            float *x = numbers(r, ROWS * K), *y = numbers(r, units * 16 * K);
            float *a = bytes(ROWS * K * 4), *b = bytes((size_t)(units * 16 * K) * 4); /* aligned copies */
            memcpy(a, x, ROWS * K * 4);
            memcpy(b, y, (size_t)(units * 16 * K) * 4);
            const agk_mm_panel p = {
                .k = K, .rows = rows, .cols = cols, .a = (char *)a, .b = (char *)b, .ldb = K * 16 * 4};
            same(tile, agk_mm_floats_product_scalar, put_of(&agk_variants[i]), p, SQUARE);
            free(a);
            free(b);
            free(x);
            free(y);
        }
        ++n_variants;
    }
    return n_variants;
}

static int products(const rng *start)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_pairs_product_fn *tile = (agk_mm_pairs_product_fn *)variant(i, "mm_pairs_product");
        if (tile == NULL) continue;
        rng own = *start, *r = &own;
        agk_mm_panels_put_fn *put = put_of(&agk_variants[i]);
        for (int round = 0; round < SCALED(60); ++round) {
            const int terms = 1 + round % 3;
            const int64_t rows = 1 + round * 7 % ROWS, cols = 1 + round * 11 % COLS, units = (cols + 15) / 16;
            const size_t unit = agk_terms_unit_bytes(terms, K);
            char *a = bytes(2 * unit), *b = bytes((size_t)units * unit);
            float *x = numbers(r, ROWS * K), *y = numbers(r, units * 16 * K);
            for (int64_t row = 0; row < ROWS; ++row) agk_mm_pairs_rows_scalar(terms, K, x + row * K, a + row * 64);
            for (int64_t u = 0; u < units; ++u) {
                agk_mm_pairs_columns_scalar(terms, K, 16, y + u * 16 * K, K * 4, b + (size_t)u * unit);
            }
            const agk_mm_panel p = {.terms = terms, .k = K, .rows = rows, .cols = cols, .a = a, .b = b, .ldb = unit};
            same(tile, agk_mm_pairs_product_scalar, put, p, SQUARE);
            free(a);
            free(b);
            free(x);
            free(y);
        }
        ++n_variants;
    }
    return n_variants;
}

int main(void)
{
    /* Each test has its own random numbers, and each variant begins with the same ones: whether an error comes near
     * its bound must not depend on other tests and variants. */
    rng r[3];
    for (uint64_t i = 0; i < 3; ++i) r[i] = rng_new(i);
    CHECK(packing(&r[0]) >= 2);
    CHECK(products(&r[1]) >= 1);
    CHECK(whole_numbers(&r[2]) >= 1);
    return 0;
}
