/* Every variant of the epilogue of sums in lanes (mm_panels_end), compared with the scalar one: columns of c with and
 * without gaps, of bf16, and the packed columns of the next product in each form. Buffers have their exact size, so
 * that ASan sees any read or write beyond them. Not here: the epilogue on matrix tiles (kernels_tiles.c). */
#include <math.h>
#include <string.h>

#include "check.h"
#include "terms.h"
#include "variants.h"

enum { LANES = 16, MOST_ROWS = 128 };

static const int acts[] = {-1, AGK_OP_gelu_erf, AGK_OP_relu, AGK_OP_silu, AGK_OP_gelu};

/* The same sums in the order of the scalar kernels, [pair of units][32 rows][32 columns], and of the vectors,
 * [unit][32 rows][16 columns]. */
typedef struct both_sums {
    float *scalar, *lanes;
    size_t panel;
} both_sums;

static both_sums sums_of(rng *r, int64_t rows, int64_t cols, bool odd)
{
    both_sums s = {.panel = (size_t)((cols + 31) / 32) * AGK_PANEL_SUMS};
    const size_t n = s.panel * (size_t)((rows + 31) / 32);
    s.scalar = bytes(n * 4);
    s.lanes = bytes(n * 4);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
            float x = ((float)rng_below(r, 2000001) / 1000000.0f - 1.0f) * 9.0f;
            if (odd && rng_below(r, 50) == 0) x = rng_below(r, 2) == 0 ? NAN : INFINITY;
            const size_t panel = (size_t)(row / 32) * s.panel;
            s.scalar[panel + (size_t)(col / 32 * AGK_PANEL_SUMS + row % 32 * 32 + col % 32)] = x;
            s.lanes[panel + (size_t)(col / LANES * (AGK_PANEL_SUMS / 2) + row % 32 * LANES + col % LANES)] = x;
        }
    }
    return s;
}

static void free_sums(both_sums s)
{
    free(s.scalar);
    free(s.lanes);
}

static bool near(float found, float expected, float relative)
{
    return memcmp(&found, &expected, 4) == 0 || (isnan(found) && isnan(expected)) ||
           fabsf(found - expected) <= fabsf(expected) * relative + 1e-6f;
}

static float widened(uint16_t half)
{
    const uint32_t whole = (uint32_t)half << 16;
    float x;
    memcpy(&x, &whole, sizeof x);
    return x;
}

/* Columns of c, or of bf16. */
static void columns(rng *r, agk_mm_panels_end_fn *variant_of, int round)
{
    const int64_t rows = 1 + round * 13 % MOST_ROWS, cols = 1 + round * 11 % 81, gap = round % 2 * 3;
    const int64_t ldc = rows + gap, n = ldc * cols - gap;
    const bool narrow = round % 5 == 0;
    const both_sums sums = sums_of(r, rows, cols, false);
    float *bias = numbers(r, rows), *other = numbers(r, rows * cols);
    const size_t item = narrow ? 2 : 4;
    char *found = malloc((size_t)n * item), *expected = malloc((size_t)n * item);
    CHECK(found != NULL && expected != NULL);
    memset(found, 0x55, (size_t)n * item);
    memset(expected, 0x55, (size_t)n * item);
    agk_mm_end e = {.ldc = (size_t)ldc * item,
                    .narrow = narrow,
                    .bias = round % 4 == 0 ? NULL : bias,
                    .act = acts[round % 7 % 5],
                    .other = round % 3 == 0 ? NULL : (char *)other,
                    .ld_other = (size_t)rows * 4};
    if (e.other != NULL && e.act >= 0) e.gated = round % 3 == 1;
    e.gates = e.gated && round % 2 == 0;
    e.c = (float *)(void *)expected;
    agk_mm_panels_end_scalar(&e, sums.scalar, sums.panel, rows, cols);
    e.c = (float *)(void *)found;
    variant_of(&e, sums.lanes, sums.panel, rows, cols);
    for (int64_t i = 0; i < n; ++i) {
        float x, y;
        uint16_t a, b;
        if (narrow) {
            memcpy(&a, found + 2 * i, 2);
            memcpy(&b, expected + 2 * i, 2);
            CHECK(i % ldc < rows || a == 0x5555);
            x = widened(a);
            y = widened(b);
        } else {
            memcpy(&x, found + 4 * i, 4);
            memcpy(&y, expected + 4 * i, 4);
            CHECK(i % ldc < rows || memcmp(&x, "UUUU", 4) == 0);
        }
        CHECK(near(x, y, narrow ? 0x1p-7f : 2e-6f));
    }
    free(found);
    free(expected);
    free(bias);
    free(other);
    free_sums(sums);
}

/* Packed columns: equal bytes, but where a function rounds otherwise. */
static void packed(rng *r, agk_mm_panels_end_fn *variant_of, agk_columns_form form, int round)
{
    const int64_t cols = 1 + round * 11 % 81, units = (cols + LANES - 1) / LANES;
    const size_t gap = 64, unit = agk_columns_unit_32(form), all = (size_t)units * (unit + gap);
    const both_sums sums = sums_of(r, AGK_PANEL_K, cols, round % 3 == 0);
    float *bias = numbers(r, AGK_PANEL_K);
    char *found = bytes(all), *expected = bytes(all);
    memset(found, 0x55, all);
    memset(expected, 0x55, all);
    /* relu and no function are exact, so every byte has to be equal */
    agk_mm_end e = {.ld_unit = unit + gap,
                    .form = form,
                    .bias = round % 4 == 0 ? NULL : bias,
                    .act = round % 2 == 0 ? -1 : AGK_OP_relu};
    e.units = expected;
    agk_mm_panels_end_scalar(&e, sums.scalar, sums.panel, AGK_PANEL_K, cols);
    e.units = found;
    variant_of(&e, sums.lanes, sums.panel, AGK_PANEL_K, cols);
    for (int64_t u = 0; u < units; ++u) {
        const char *x = found + (size_t)u * e.ld_unit, *y = expected + (size_t)u * e.ld_unit;
        for (size_t i = 0; i < gap; ++i) CHECK(x[unit + i] == 0x55);
        if (form == AGK_COLUMNS_FLOATS || form == AGK_COLUMNS_PAIRS) {
            const size_t item = form == AGK_COLUMNS_FLOATS ? 4 : 2;
            for (size_t i = 0; i < unit; i += item) {
                uint16_t a = 0, b = 0;
                float p, q;
                memcpy(&p, x + i / 4 * 4, 4);
                memcpy(&q, y + i / 4 * 4, 4);
                memcpy(&a, x + i, item == 2 ? 2 : 0);
                memcpy(&b, y + i, item == 2 ? 2 : 0);
                if (item == 2) p = widened(a), q = widened(b);
                CHECK(memcmp(&p, &q, 4) == 0 || (isnan(p) && isnan(q)));
            }
            continue;
        }
        CHECK(memcmp(x, y, unit) == 0);
    }
    free(found);
    free(expected);
    free(bias);
    free_sums(sums);
}

int main(void)
{
    static const agk_columns_form forms[] = {AGK_COLUMNS_PAIRS, AGK_COLUMNS_FLOATS, AGK_COLUMNS_BYTES,
                                             AGK_COLUMNS_BYTES_HALVES};
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_panels_end_fn *end = (agk_mm_panels_end_fn *)variant(i, "mm_panels_end");
        if (end == NULL || strcmp(agk_variants[i].isa, "scalar") == 0) continue;
        rng r = rng_new(11);
        for (int round = 0; round < SCALED(240); ++round) {
            columns(&r, end, round);
            packed(&r, end, forms[round % 4], round);
        }
    }
    return 0;
}
