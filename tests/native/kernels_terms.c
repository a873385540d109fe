/* Every variant of the kernels of mul_mat in bf16 terms against the scalar ones: packed bytes alike, products within what
 * sums in f32 cost, nothing read or written beyond. Memory has its exact size, so that ASan sees it. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "kernel_types.h"
#include "mul_mat_terms.h"

enum { K = 96, COLS = 49, ROWS = 32 };

static agk_any_fn *variant(size_t i, const char *kernel)
{
    const agk_variant *v = &agk_variants[i];
    return (v->needs & ~agk_cpu_features()) == 0 && strcmp(v->kernel, kernel) == 0 ? v->fn : NULL;
}

static void *bytes(size_t n)
{
    char *p = aligned_alloc(64, (n + 63) / 64 * 64);
    CHECK(p != NULL);
    memset(p, 0xa5, (n + 63) / 64 * 64);
    return p;
}

static float *numbers(rng *r, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    CHECK(x != NULL);
    for (int64_t i = 0; i < n; ++i) x[i] = ((float)rng_below(r, 2000001) / 1000000.0f - 1.0f) * 1.7f;
    return x;
}

static int packing(rng *r)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_terms_cols_fn *cols = (agk_mm_terms_cols_fn *)variant(i, "mm_terms_cols");
        agk_mm_terms_row_fn *row = (agk_mm_terms_row_fn *)variant(i, "mm_terms_row");
        for (int terms = 1; terms <= 3; ++terms) {
            for (int64_t k = K - 33; k <= K; ++k) {
                const size_t size = agk_terms_unit_bytes(terms, k);
                char *expected = bytes(2 * size), *found = bytes(2 * size);
                const int64_t n = 1 + k % 16;
                float *x = numbers(r, n * k);
                if (k % 3 == 0) x[n * k - 1] = k % 2 == 0 ? INFINITY : 1e-36f;
                const bool fine = terms == 1 || k % 3 != 0;
                if (cols != NULL) {
                    CHECK(agk_mm_terms_cols_scalar(terms, k, n, x, (size_t)k * 4, expected) == fine);
                    CHECK(cols(terms, k, n, x, (size_t)k * 4, found) == fine);
                    if (fine) CHECK(memcmp(expected, found, size) == 0);
                }
                if (row != NULL) {
                    float *last = numbers(r, k); /* of its exact size */
                    memcpy(last, x + (n - 1) * k, (size_t)k * 4);
                    memset(expected, 0, 2 * size);
                    memset(found, 0, 2 * size);
                    CHECK(agk_mm_terms_row_scalar(terms, k, last, expected) == fine);
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

/* Two blocks of k, and what was put. */
static void multiply(agk_mm_terms_tile_fn *tile, agk_mm_terms_put_fn *put, agk_terms_panel p, float *c)
{
    const size_t n = (size_t)((p.cols + 31) / 32) * AGK_TERMS_SUMS;
    float *sums = bytes(n * sizeof *sums);
    p.sums = sums;
    p.c = c;
    for (int block = 0; block < 2; ++block) {
        p.first = block == 0;
        p.last = block == 1;
        tile(&p);
    }
    put(sums, n, p.rows, p.cols, c, p.ldc);
    free(sums);
}

static int products(rng *r)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_terms_tile_fn *tile = (agk_mm_terms_tile_fn *)variant(i, "mm_terms_tile");
        if (tile == NULL) continue;
        const size_t at = strcmp(agk_variants[i].isa, "scalar") == 0 ? 0 : 1; /* its put: they share a layout */
        agk_mm_terms_put_fn *put = at == 0 ? agk_mm_terms_put_scalar : NULL;
        for (size_t j = 0; put == NULL && j < agk_n_variants; ++j) {
            if (strcmp(agk_variants[j].isa, agk_variants[i].isa) == 0) {
                put = (agk_mm_terms_put_fn *)variant(j, "mm_terms_put");
            }
        }
        CHECK(put != NULL);
        for (int round = 0; round < SCALED(60); ++round) {
            const int terms = 1 + round % 3;
            const int64_t rows = 1 + round * 7 % ROWS, cols = 1 + round * 11 % COLS, units = (cols + 15) / 16;
            const size_t unit = agk_terms_unit_bytes(terms, K);
            char *a = bytes(2 * unit), *b = bytes((size_t)units * unit);
            float *x = numbers(r, ROWS * K), *y = numbers(r, units * 16 * K);
            for (int64_t row = 0; row < ROWS; ++row) agk_mm_terms_row_scalar(terms, K, x + row * K, a + row * 64);
            for (int64_t u = 0; u < units; ++u) {
                agk_mm_terms_cols_scalar(terms, K, 16, y + u * 16 * K, K * 4, b + (size_t)u * unit);
            }
            const agk_terms_panel p = {.terms = terms,
                                       .k = K,
                                       .rows = rows,
                                       .cols = cols,
                                       .a = a,
                                       .b = b,
                                       .ldb = unit,
                                       .ldc = (size_t)rows * 4};
            float *expected = bytes((size_t)(rows * cols) * 4), *found = bytes((size_t)(rows * cols) * 4);
            multiply(agk_mm_terms_tile_scalar, agk_mm_terms_put_scalar, p, expected);
            multiply(tile, put, p, found);
            double error = 0.0, size = 0.0;
            for (int64_t e = 0; e < rows * cols; ++e) {
                error += ((double)found[e] - expected[e]) * ((double)found[e] - expected[e]);
                size += (double)expected[e] * expected[e];
            }
            CHECK(error <= 1e-12 * size);
            free(a);
            free(b);
            free(x);
            free(y);
            free(expected);
            free(found);
        }
        ++n_variants;
    }
    return n_variants;
}

int main(void)
{
    rng r = rng_new(0);
    CHECK(packing(&r) >= 2);
    CHECK(products(&r) >= 1);
    return 0;
}
