/* Every variant of the kernels of mul_mat on matrix tiles compared with the scalar ones. Packed bytes are equal,
 * products differ by no more than sums in f32 do. Buffers have their exact size, so that ASan sees any read or write
 * beyond them. Not here: the same products in lanes (kernels_terms.c, kernels_bytes.c). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "check.h"
#include "terms.h"
#include "variants.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_panels.h"

static int packing_for_tiles(rng *r)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_tiles_columns_fn *cols = (agk_mm_tiles_columns_fn *)variant(i, "mm_tiles_columns");
        agk_mm_tiles_rows_bf16_fn *rows = (agk_mm_tiles_rows_bf16_fn *)variant(i, "mm_tiles_rows_bf16");
        for (int terms = 1; terms <= 3; ++terms) {
            for (int64_t k = K - 33; k <= K; ++k) {
                const size_t size = agk_terms_unit_bytes(terms, k);
                char *expected = bytes(size), *found = bytes(size);
                const int64_t n = 1 + k % 16;
                float *x = numbers(r, n * k);
                if (k % 3 == 0) x[n * k - 1] = k % 2 == 0 ? INFINITY : 1e-36f;
                const bool fine = terms == 1 || k % 3 != 0;
                if (cols != NULL) {
                    CHECK(agk_mm_tiles_columns_scalar(terms, k, n, x, (size_t)k * 4, expected) == fine);
                    CHECK(cols(terms, k, n, x, (size_t)k * 4, found) == fine);
                    if (fine) CHECK(memcmp(expected, found, size) == 0);
                }
                if (rows != NULL && terms == 1) { /* rows of any 16 bits, in a buffer of their exact size */
                    uint16_t *y = malloc((size_t)(n * k) * 2);
                    CHECK(y != NULL);
                    memcpy(y, x, (size_t)(n * k) * 2);
                    agk_mm_tiles_rows_bf16_scalar(k, n, y, (size_t)k * 2, expected);
                    rows(k, n, y, (size_t)k * 2, found);
                    CHECK(memcmp(expected, found, size) == 0);
                    free(y);
                }
                free(x);
                free(expected);
                free(found);
            }
        }
        n_variants += (cols != NULL) + (rows != NULL);
    }
    return n_variants;
}

/* Multiplies two blocks of k and applies the fused operations `e`. The result has its exact size, its columns are
 * `gap` floats apart; or it goes to e.units. */
static float *ended(agk_mm_tiles_product_fn *tile, agk_mm_panel p, agk_mm_end e, int64_t gap)
{
    const size_t n = (size_t)((p.cols + 31) / 32) * AGK_PANEL_SUMS;
    const int64_t ldc = p.rows + gap, size = ldc * p.cols - gap;
    float *c = malloc((size_t)size * sizeof *c);
    CHECK(c != NULL);
    for (int64_t i = 0; i < size; ++i) c[i] = 7.0f; /* gaps between columns must keep this value */
    p.sums = bytes(n * sizeof *p.sums);
    p.first = true;
    tile(&p);
    p.first = false;
    e.c = c;
    e.ldc = (size_t)ldc * 4;
    p.end = &e;
    tile(&p);
    free(p.sums);
    for (int64_t i = 0; i < size; ++i) CHECK(i % ldc < p.rows || c[i] == 7.0f);
    return c;
}

static void same_ends(rng *r, agk_mm_tiles_product_fn *tile, agk_mm_panel p, int round)
{
    static const int acts[] = {-1, AGK_OP_gelu_erf, AGK_OP_relu, AGK_OP_silu, AGK_OP_gelu};
    float *bias = numbers(r, p.rows), *other = numbers(r, p.rows * p.cols);
    const agk_mm_end e = {.bias = round % 4 == 0 ? NULL : bias,
                          .act = acts[round % 5],
                          .other = round % 3 == 0 ? NULL : (char *)other,
                          .ld_other = (size_t)p.rows * 4};
    const int64_t gap = round % 2 * 3, n = (p.rows + gap) * p.cols - gap;
    float *expected = ended(agk_mm_tiles_product_scalar, p, e, gap), *found = ended(tile, p, e, gap);
    double error = 0.0, size = (double)n * SQUARE;
    for (int64_t i = 0; i < n; ++i) {
        error += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
    }
    CHECK(error <= 1e-13 * size);
    free(expected);
    free(found);
    free(bias);
    free(other);
}

static float widened(const char *at)
{
    uint16_t half;
    float x;
    memcpy(&half, at, sizeof half);
    const uint32_t whole = (uint32_t)half << 16;
    memcpy(&x, &whole, sizeof x);
    return x;
}

/* The result written as packed columns of the next product equals the floats, packed afterwards. gelu_erf may differ
 * by its own rounding. */
static void same_units(rng *r, agk_mm_tiles_product_fn *tile, agk_mm_panel p, int round)
{
    static const int acts[] = {-1, AGK_OP_gelu_erf, AGK_OP_relu, AGK_OP_silu, AGK_OP_gelu};
    float *bias = numbers(r, p.rows);
    const size_t units = (size_t)((p.cols + 15) / 16), gap = 64, all = units * (AGK_TERMS_TILE + gap);
    agk_mm_end e = {.bias = bias, .act = acts[round % 5]};
    float *floats = ended(tile, p, e, 0);
    char *found = bytes(all), *expected = bytes(AGK_TERMS_TILE);
    memset(found, 0x55, all);
    e.units = found;
    e.ld_unit = AGK_TERMS_TILE + gap;
    free(ended(tile, p, e, 0)); /* these floats are not written */
    for (int64_t j = 0; j < p.cols; j += 16) {
        const int64_t n = p.cols - j < 16 ? p.cols - j : 16;
        const char *unit = found + (size_t)(j / 16) * e.ld_unit;
        agk_mm_tiles_columns_scalar(1, p.rows, n, floats + j * p.rows, (size_t)p.rows * 4, expected);
        for (int64_t i = 0; i < n * AGK_PANEL_K; ++i) {
            const float x = widened(expected + 2 * i), y = widened(unit + 2 * i);
            CHECK(memcmp(&x, &y, sizeof x) == 0 ||
                  (e.act == AGK_OP_gelu_erf && fabsf(x - y) <= fabsf(x) * 0x1p-7f + 1e-10f));
        }
        for (size_t i = 0; i < gap; ++i) CHECK(unit[AGK_TERMS_TILE + i] == 0x55);
    }
    uint16_t *narrow = malloc((size_t)(p.rows * p.cols) * sizeof *narrow);
    CHECK(narrow != NULL);
    e = (agk_mm_end){.bias = bias, .act = e.act, .narrow = true};
    e.c = (float *)(void *)narrow;
    e.ldc = (size_t)p.rows * 2;
    p.sums = bytes(units * AGK_PANEL_SUMS * sizeof *p.sums);
    p.first = true;
    tile(&p);
    p.first = false;
    p.end = &e;
    tile(&p);
    free(p.sums);
    for (int64_t i = 0; i < p.rows * p.cols; ++i) {
        const float x = floats[i], y = widened((const char *)(narrow + i));
        CHECK(fabsf(x - y) <= fabsf(x) * 0x1p-8f + 1e-37f);
    }
    free(narrow);
    free(floats);
    free(found);
    free(expected);
    free(bias);
}

static int products_on_tiles(const rng *start)
{
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_tiles_product_fn *tile = (agk_mm_tiles_product_fn *)variant(i, "mm_tiles_product");
        if (tile == NULL) continue;
        rng own = *start, *r = &own;
        for (int round = 0; round < SCALED(120); ++round) {
            const int terms = 1 + round % 3;
            const int64_t rows = 1 + round * 7 % ROWS, cols = 1 + round * 11 % 81, units = (cols + 15) / 16;
            /* 32 is one step: no other step can overlap the end of the sums */
            const int64_t k = round % 2 == 0 ? K : 32;
            const size_t unit = agk_terms_unit_bytes(terms, k), half = unit + 64;
            char *a = bytes(2 * half), *b = bytes((size_t)units * unit);
            float *x = numbers(r, ROWS * k), *y = numbers(r, units * 16 * k);
            for (int64_t h = 0; h < 2; ++h) {
                agk_mm_pairs_columns_scalar(terms, k, 16, x + h * 16 * k, (size_t)k * 4, a + (size_t)h * half);
            }
            for (int64_t u = 0; u < units; ++u) {
                agk_mm_tiles_columns_scalar(terms, k, 16, y + u * 16 * k, (size_t)k * 4, b + (size_t)u * unit);
            }
            const agk_mm_panel p = {
                .terms = terms, .k = k, .rows = rows, .cols = cols, .a = a, .lda = half, .b = b, .ldb = unit};
            same_ends(r, tile, p, round);
            same_units(r, tile, p, round);
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
    rng packing = rng_new(6), products = rng_new(7);
    CHECK(packing_for_tiles(&packing) >= 2);
    CHECK(products_on_tiles(&products) >= 1);
    return 0;
}
