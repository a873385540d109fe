/* Every variant of the kernels that multiply quantized rows compared with the scalar one: it may differ by the error
 * of another order of sums. Each row has a buffer of its exact size, so that ASan sees a read beyond it. Not here:
 * rows that are unpacked (kernels_quantized_rows.c), products of many columns (kernels_terms.c). */
#include <math.h>
#include <string.h>

#include "quantized.h"
#include "variants.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "kernels/mul_mat_bytes.h"
#include "kernels/mul_mat_packed.h"

/* Multiplies n_rows rows of the type by n_cols columns into c, using `dot`. */
static void multiply(agk_mm_block_fn *dot, int type, int64_t k, int n_rows, int n_cols, const void *a, const void *b,
                     float *c)
{
    const agk_mm_block block = {.k = k,
                                .rows = n_rows,
                                .cols = n_cols,
                                .a = a,
                                .lda = agk_row_size(type, N),
                                .b = b,
                                .ldb = N / 64 * sizeof(agk_mm_col_q8),
                                .c = c,
                                .ldc = (size_t)n_rows * sizeof(float)};
    dot(&block);
}

/* The sum of squares of a row; below, of a column. */
static double length_of_row(int type, int64_t k, const void *row)
{
    float x[N];
    double sum = 0.0;
    agk_traits(type)->to_float(row, x, k);
    for (int64_t i = 0; i < k; ++i) sum += (double)x[i] * x[i];
    return sum;
}

static double length_of_column(int64_t k, const agk_mm_col_q8 *col)
{
    double sum = 0.0;
    for (int64_t i = 0; i < k; ++i) {
        const double x = (double)col[i / 64].d[i / 32 % 2] * col[i / 64].q[i % 64];
        sum += x * x;
    }
    return sum;
}

static void compare_dots(rng *r, int type, agk_mm_block_fn *scalar, agk_mm_block_fn *fast, int64_t k, int n_rows,
                         int n_cols)
{
    const size_t row_size = agk_row_size(type, N), n = (size_t)(n_rows * n_cols);
    float x[N];
    char *a = malloc((size_t)n_rows * row_size);
    agk_mm_col_q8 *b = malloc((size_t)n_cols * (N / 64) * sizeof *b);
    float *expected = malloc(n * sizeof(float)), *found = malloc(n * sizeof(float));
    for (int row = 0; row < n_rows; ++row) { /* groups of 16 elements differ in size */
        if (is_codebook(type)) {
            random_row(r, type, a + (size_t)row * row_size);
            continue;
        }
        for (int i = 0; i < N; ++i) x[i] = random_float(r) * (float)(1 + i / 16 % 5);
        agk_traits(type)->from_float(x, a + (size_t)row * row_size, N);
    }
    for (int col = 0; col < n_cols; ++col) {
        for (int i = 0; i < N; ++i) x[i] = random_float(r) * (float)(1 + i / 32 % 7);
        agk_mm_columns_q8_scalar(x, b + col * (N / 64), k);
        if (is_codebook(type)) continue;
        agk_mm_col_q8 *first = b + col * (N / 64); /* columns that come from a q8_0 tensor may hold -128 */
        first->start[1] += 128 * (first->q[7] + 128);
        first->q[7] = -128;
    }
    multiply(scalar, type, k, n_rows, n_cols, a, b, expected);
    multiply(fast, type, k, n_rows, n_cols, a, b, found);
    double error = 0.0, size = 0.0; /* size: the expected mean square, since a single product may be near 0 by chance */
    for (size_t i = 0; i < n; ++i) {
        const size_t row = i % (size_t)n_rows, col = i / (size_t)n_rows;
        error += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
        size += length_of_row(type, k, a + row * row_size) * length_of_column(k, b + col * (N / 64)) / (double)k;
    }
    CHECK(error <= 1e-12 * size);
    free(a);
    free(b);
    free(expected);
    free(found);
}

static int dots(rng *r, int type)
{
    const char *kernel = kernel_of("mm_dots_", type, "");
    agk_mm_block_fn *scalar = (agk_mm_block_fn *)agk_pick_any(kernel, 0);
    int n_variants = 0;
    for (size_t i = 0; scalar != NULL && i < agk_n_variants; ++i) {
        agk_mm_block_fn *fast = (agk_mm_block_fn *)variant(i, kernel);
        if (fast == NULL) continue;
        for (int n_rows = 1; n_rows <= 3; ++n_rows) {
            for (int n_cols = 1; n_cols <= 9; ++n_cols) {
                compare_dots(r, type, scalar, fast, N, n_rows, n_cols);
                if (agk_traits(type)->blck_size == 32) compare_dots(r, type, scalar, fast, N - 32, n_rows, n_cols);
            }
        }
        ++n_variants;
    }
    return n_variants;
}

/* Rows of floats: whole vectors and remainders; some products are computed in two parts of k, as steps do. */
static int float_dots(rng *r, int type, const char *kernel)
{
    enum { ROWS = 7, COLS = 9, K = 203, CUT = 64 };
    agk_mm_block_fn *scalar = (agk_mm_block_fn *)agk_pick_any(kernel, 0);
    const size_t row_size = agk_row_size(type, K);
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_block_fn *fast = (agk_mm_block_fn *)variant(i, kernel);
        if (fast == NULL) continue;
        for (int n = 1; n <= COLS; ++n) {
            char *a = malloc(ROWS * row_size);
            float *b = malloc((size_t)n * K * sizeof *b), x[K], expected[ROWS * COLS], found[ROWS * COLS];
            for (int e = 0; e < n * K; ++e) b[e] = random_float(r);
            for (int row = 0; row < ROWS; ++row) {
                for (int e = 0; e < K; ++e) x[e] = random_float(r);
                if (type == AGK_F32)
                    memcpy(a + (size_t)row * row_size, x, row_size);
                else
                    agk_traits(type)->from_float(x, a + (size_t)row * row_size, K);
            }
            agk_mm_block block = {.k = K,
                                  .rows = ROWS,
                                  .cols = n,
                                  .a = a,
                                  .lda = row_size,
                                  .b = b,
                                  .ldb = sizeof x,
                                  .c = expected,
                                  .ldc = sizeof(float[ROWS])};
            scalar(&block);
            block.c = found;
            block.k = CUT;
            fast(&block);
            block.k = K - CUT;
            block.a = a + agk_row_size(type, CUT);
            block.b = b + CUT;
            block.add = true;
            fast(&block);
            for (int e = 0; e < n * ROWS; ++e) CHECK(fabsf(found[e] - expected[e]) < 1e-4f);
            free(a);
            free(b);
        }
        ++n_variants;
    }
    return n_variants;
}

/* A number for columns: mostly an ordinary one, some halfway between two codes, some that no block can represent. */
static float odd_float(rng *r, int block)
{
    const float x = random_float(r) * (float)(1 + block % 7);
    /* halves: the largest is 63.5, so the scale is 0.5 */
    if (block % 5 == 0) return (float)rng_below(r, 255) / 2.0f - 63.5f;
    if (block % 11 == 0) return 0.0f;
    if (block % 13 == 0) return x * 1e-39f;
    if (block % 17 == 0 && rng_below(r, 20) == 0) return rng_below(r, 2) == 0 ? NAN : INFINITY;
    return x;
}

/* Columns packed for tiles: every byte as in plain C. */
static int lays(rng *r)
{
    static const int types[] = {AGK_Q8_0, AGK_Q5_1, AGK_Q6_K, AGK_Q2_K}; /* one type for each of agk_packed_sums */
    enum { COLS = 16 };
    int n_variants = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_mm_packed_columns_fn *fast = (agk_mm_packed_columns_fn *)variant(i, "mm_packed_columns");
        if (fast == NULL) continue;
        float *x = malloc(COLS * N * sizeof *x);
        for (int n = 1; n <= COLS; ++n) {
            const agk_packed_layout *layout = agk_packed_layout_of(types[n % 4]);
            const int width = n <= COLS / 2 ? COLS / 2 : COLS, k = n % 8 >= 4 || layout->k == 256 ? N : N - 32;
            for (int e = 0; e < COLS * N; ++e) x[e] = odd_float(r, e / 32);
            const size_t size = agk_packed_tiles_bytes(layout, width, k);
            char *expected = malloc(size), *found = malloc(size);
            memset(found, 0x55, size);
            agk_mm_packed_columns_scalar(layout, n, width, k, (const char *)x, N * sizeof *x, expected);
            fast(layout, n, width, k, (const char *)x, N * sizeof *x, found);
            CHECK(memcmp(expected, found, size) == 0);
            free(expected);
            free(found);
        }
        free(x);
        ++n_variants;
    }
    return n_variants;
}

/* Packed weights times packed columns compared with unpacked rows times unpacked columns, computed in plain C:
 * packing must not change the result. All variants are compared with that. */
static int packed(rng *r, int type, bool tiles)
{
    enum { ROWS = 21, GROUPS = 2, COLS = 16 };
    const agk_packed_layout *layout = agk_packed_layout_of(type);
    if (layout == NULL || layout->sums == AGK_NO_SUMS) return 0; /* the other types are in kernels_bytes.c */
    const char *kernel = kernel_of(tiles ? "mm_packed_tiles_" : "mm_packed_", type, "");
    agk_mm_block_fn *scalar = (agk_mm_block_fn *)agk_pick_any(kernel, 0);
    CHECK(scalar != NULL);
    const size_t row_size = agk_row_size(type, N), group = agk_packed_group_bytes(layout, N);
    const size_t column = N / 64 * sizeof(agk_mm_col_q8);
    char *rows = malloc(ROWS * row_size), *a = calloc(GROUPS, group), *columns = malloc(COLS * column);
    float x[N], values[N], expected[COLS * ROWS], found[COLS * ROWS];
    for (int row = 0; row < ROWS; ++row) {
        for (int i = 0; i < N; ++i) x[i] = random_float(r) * (float)(1 + i / 16 % 5);
        if (is_codebook(type))
            random_row(r, type, rows + (size_t)row * row_size);
        else
            agk_traits(type)->from_float(x, rows + (size_t)row * row_size, N);
    }
    agk_mm_packed_group_scalar(type, rows, row_size, 16, N, a);
    agk_mm_packed_group_scalar(type, rows + 16 * row_size, row_size, ROWS - 16, N, a + group);
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if ((v->needs & ~agk_cpu_features()) != 0 || strcmp(v->kernel, "mm_packed_group") != 0) continue;
        char *again = calloc(GROUPS, group);
        ((agk_mm_packed_group_fn *)v->fn)(type, rows, row_size, 16, N, again);
        ((agk_mm_packed_group_fn *)v->fn)(type, rows + 16 * row_size, row_size, ROWS - 16, N, again + group);
        CHECK(memcmp(a, again, GROUPS * group) == 0);
        free(again);
    }
    for (int n = 1; n <= (tiles ? COLS : AGK_PACKED_COLUMNS); ++n) {
        const int width = !tiles ? n : n <= COLS / 2 ? COLS / 2 : COLS;
        for (int col = 0; col < n; ++col) {
            for (int i = 0; i < N; ++i) x[i] = random_float(r) * (float)(1 + i / 32 % 7);
            agk_mm_columns_q8_scalar(x, columns + (size_t)col * column, N);
        }
        for (int row = 0; row < ROWS; ++row) {
            agk_traits(type)->to_float(rows + (size_t)row * row_size, values, N);
            for (int col = 0; col < n; ++col) {
                const agk_mm_col_q8 *q = (const agk_mm_col_q8 *)(const void *)(columns + (size_t)col * column);
                double sum = 0.0;
                for (int i = 0; i < N; ++i)
                    sum += (double)values[i] * (double)q[i / 64].d[i / 32 % 2] * q[i / 64].q[i % 64];
                expected[col * ROWS + row] = (float)sum;
            }
        }
        char *b = malloc(tiles ? agk_packed_tiles_bytes(layout, width, N) : agk_packed_columns_bytes(width, N));
        (tiles ? agk_packed_tiles : agk_packed_columns)(layout, n, width, N, columns, column, b);
        const agk_mm_block block = {
            .k = N, .rows = ROWS, .cols = n, .a = a, .lda = group, .b = b, .c = found, .ldc = sizeof(float[ROWS])};
        for (size_t i = 0; i < agk_n_variants; ++i) {
            agk_mm_block_fn *fn = (agk_mm_block_fn *)variant(i, kernel);
            if (fn == NULL) continue;
            memset(found, 0xff, sizeof found);
            fn(&block);
            double error = 0.0, size = 0.0;
            for (int e = 0; e < n * ROWS; ++e) {
                error += ((double)found[e] - (double)expected[e]) * ((double)found[e] - (double)expected[e]);
                size += (double)expected[e] * (double)expected[e];
            }
            CHECK(error <= 1e-11 * size);
        }
        free(b);
    }
    free(rows);
    free(a);
    free(columns);
    return 1;
}

int main(void)
{
    rng r = rng_new(0);
    int n_dots = 0, n_packed = 0;
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
        if (agk_traits(type)->blck_size != 1) n_dots += dots(&r, type);
    }
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) n_packed += packed(&r, type, false) + packed(&r, type, true);
    n_dots += float_dots(&r, AGK_F32, "mm_dots_f32") + float_dots(&r, AGK_F16, "mm_dots_f16") +
              float_dots(&r, AGK_BF16, "mm_dots_bf16");
    /* even without any vector kernel there are the scalar ones */
    CHECK(n_dots >= 25 && n_packed == 46 && lays(&r) >= 1);
    return 0;
}
