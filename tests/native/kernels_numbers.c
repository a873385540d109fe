/* Kernels that must give the bits of plain C for all numbers: sums and products of 16-bit floats, blocks of q8_0 and
 * columns, fill, copies, conversion between f32 and i32, steps of optimizers; functions of 16-bit floats, which must
 * give those of f32, rounded; the indices of the first of a row.
 *
 * Not here: the results of nodes that use them (kernels_vectors.c, kernels_quantized_rows.c). */
#include "kernels/mul_mat.h"
#include "kernels/sort.h"
#include "lower/unary.h"
#include "nodes.h"
#include "variants.h"

/* Each variant: blocks of q8_0 and columns made of numbers of any size, infinities and NaN among them. */
static void extremes(rng *r)
{
    enum { N = 32 * 11 };
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        const bool block = strcmp(v->kernel, "f32_to_q8_0") == 0, column = strcmp(v->kernel, "mm_columns_q8") == 0;
        if ((v->needs & ~agk_cpu_features()) != 0 || (!block && !column)) continue;
        for (int round = 0; round < 300; ++round) {
            float *x = floats(r, N);
            const float by = ldexpf(1.0f, (int)(rng_next(r) % 280) - 150);
            for (int j = 0; j < N; ++j) x[j] *= by;
            static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, 1e-40f, 3e38f};
            for (int k = 0; k < round % 4; ++k) x[rng_next(r) % N] = odd[rng_next(r) % 6];
            if (round % 5 == 0) memset(x + 64, 0, 32 * sizeof *x);
            if (block) {
                agk_block_q8_0 expected[N / 32], found[N / 32];
                agk_f32_to_q8_0_scalar(x, expected, N);
                ((agk_f32_to_q8_0_fn *)v->fn)(x, found, N);
                CHECK(memcmp(expected, found, sizeof found) == 0);
            } else {
                agk_mm_col_q8 expected[N / 64 + 1], found[N / 64 + 1];
                agk_mm_columns_q8_scalar(x, expected, N);
                ((agk_mm_columns_q8_fn *)v->fn)(x, found, N);
                for (int j = 0; j < N / 32; ++j) {
                    CHECK(memcmp(&expected[j / 2].d[j % 2], &found[j / 2].d[j % 2], sizeof(float)) == 0);
                    CHECK(memcmp(expected[j / 2].q + 32 * (j % 2), found[j / 2].q + 32 * (j % 2), 32) == 0);
                }
            }
            free(x);
        }
    }
}

/* Each variant of sums and products of 16-bit floats, fill, conversion between f32 and i32: bit for bit. */
static void halves_and_numbers(rng *r)
{
    static const int ops[] = {AGK_OP_add, AGK_OP_sub, AGK_OP_mul, AGK_OP_div};
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if ((v->needs & ~agk_cpu_features()) != 0) continue;
        const bool f16 = strcmp(v->kernel, "binary_f16") == 0, bf16 = strcmp(v->kernel, "binary_bf16") == 0;
        for (int op = 0; op < 4 && (f16 || bf16); ++op) {
            enum { N = 113, ROWS = 3 };
            uint16_t *a = halves(r, f16 ? AGK_F16 : AGK_BF16, N * ROWS),
                     *b = halves(r, f16 ? AGK_F16 : AGK_BF16, N * ROWS);
            uint16_t *expected = filled(N * ROWS * 2), *found = filled(N * ROWS * 2);
            for (int n = N - 40; n <= N; ++n) {
                agk_binary_rows rows = {.y = (char *)expected,
                                        .a = (const char *)a,
                                        .b = (const char *)b,
                                        .step_y = 2 * N,
                                        .step_a = 2 * N,
                                        .step_b = 2 * N};
                (f16 ? agk_binary_f16_scalar : agk_binary_bf16_scalar)(ops[op], n, ROWS, &rows);
                rows.y = (char *)found;
                ((agk_binary_f16_fn *)v->fn)(ops[op], n, ROWS, &rows);
                CHECK(memcmp(expected, found, N * ROWS * 2) == 0);
            }
            free(a), free(b), free(expected), free(found);
        }
        if (strcmp(v->kernel, "cpy_fill_32") == 0) {
            uint32_t found[80];
            for (int n = 0; n < 70; ++n) {
                memset(found, 0xa5, sizeof found);
                ((agk_cpy_fill_32_fn *)v->fn)(n, found, 0x7fa12345); /* fill must copy the bits of a NaN */
                for (int j = 0; j < 80; ++j) CHECK(found[j] == (j < n ? 0x7fa12345 : 0xa5a5a5a5));
            }
        }
        const bool to = strcmp(v->kernel, "cpy_to_i32") == 0, from = strcmp(v->kernel, "cpy_from_i32") == 0;
        if (to || from) {
            float *x = floats(r, 160);
            x[3] = INFINITY, x[5] = NAN, x[7] = 3e9f, x[11] = -3e9f, x[13] = -0.0f;
            uint32_t expected[160], found[160];
            for (int n = 0; n < 160; ++n) {
                memset(expected, 0, sizeof expected), memset(found, 0, sizeof found);
                if (to) {
                    agk_cpy_to_i32_scalar(x, expected, n);
                    ((agk_cpy_to_i32_fn *)v->fn)(x, found, n);
                } else {
                    agk_cpy_from_i32_scalar(x, (float *)expected, n);
                    ((agk_cpy_from_i32_fn *)v->fn)(x, (float *)found, n);
                }
                CHECK(memcmp(expected, found, sizeof found) == 0);
            }
            free(x);
        }
    }
}

/* Results that are written past the caches: sums have the bits of plain C, gated units those of the kernel that stores
 * as usual, from any element of a line to any other; nothing beside them is touched. */
static void past_the_caches(rng *r)
{
    enum { N = 16 * 9, OPS = 4 };
    static const int ops[] = {AGK_OP_add, AGK_OP_sub, AGK_OP_mul, AGK_OP_div};
    static const int gates[] = {AGK_OP_relu, AGK_OP_silu, AGK_OP_gelu, AGK_OP_gelu_quick};
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_any_fn *binary = variant(i, "binary_past_f32"), *glu = variant(i, "glu_past_f32");
        for (int round = 0; round < 600 && (binary != NULL || glu != NULL); ++round) {
            float *a = floats(r, N), *b = floats(r, N), *expected = bytes(N * sizeof(float)),
                  *found = bytes(N * sizeof(float));
            const int first = (int)rng_below(r, 20), n = (int)rng_below(r, N - 20), op = round % OPS;
            if (binary != NULL) {
                const agk_binary_rows rows = {
                    .y = (char *)(expected + first), .a = (const char *)(a + 1), .b = (const char *)(b + 2)};
                agk_binary_f32_scalar(ops[op], n, 1, &rows);
                ((agk_binary_past_f32_fn *)binary)(ops[op], n, found + first, a + 1, b + 2);
            } else {
                AGK_PICK(glu_f32, agk_cpu_features())(gates[op], n, expected + first, a + 1, b + 2);
                ((agk_glu_past_f32_fn *)glu)(gates[op], n, found + first, a + 1, b + 2);
            }
            CHECK(memcmp(expected, found, N * sizeof(float)) == 0);
            free(a), free(b), free(expected), free(found);
        }
    }
}

/* Each variant of functions of 16-bit floats: as a conversion to f32, the function of the same instruction set, and a
 * conversion back. */
static void halves_of_functions(rng *r)
{
    enum { N = 113 };
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i], *of_f32 = NULL;
        const bool f16 = strcmp(v->kernel, "unary_f16") == 0;
        if ((v->needs & ~agk_cpu_features()) != 0 || (!f16 && strcmp(v->kernel, "unary_bf16") != 0)) continue;
        for (size_t j = 0; j < agk_n_variants; ++j) {
            const agk_variant *other = &agk_variants[j];
            if (strcmp(other->kernel, "unary_f32") == 0 && strcmp(other->isa, v->isa) == 0) of_f32 = other;
        }
        CHECK(of_f32 != NULL);
        for (int op = 0; op < AGK_OP_COUNT; ++op) {
            if (agk_ops[op].stage != AGK_STAGE_UNARY || agk_unary_ns(op, true) > AGK_UNARY_SHORT_NS) continue;
            for (int n = N - 40; n <= N; ++n) {
                uint16_t *x = halves(r, f16 ? AGK_F16 : AGK_BF16, (size_t)n), *expected = filled((size_t)n * 2),
                         *found = filled((size_t)n * 2);
                float wide[N];
                (f16 ? agk_f16_to_f32_scalar : agk_bf16_to_f32_scalar)(x, wide, n);
                ((agk_unary_f32_fn *)of_f32->fn)(op, n, wide, wide);
                (f16 ? agk_f32_to_f16_scalar : agk_f32_to_bf16_scalar)(wide, expected, n);
                ((agk_unary_f16_fn *)v->fn)(op, n, found, x);
                CHECK(((unsigned char *)found)[2 * n] == 0xa5); /* nothing beyond */
                for (int j = 0; j < n; ++j) CHECK(isnan(wide[j]) || expected[j] == found[j]);
                ((agk_unary_f16_fn *)v->fn)(op, n, x, x); /* in place */
                CHECK(memcmp(found, x, (size_t)n * 2) == 0);
                free(x), free(expected), free(found);
            }
        }
    }
}

/* Each variant of a copy of a row: from and to any byte, onto itself; nothing beyond its ends changes. */
static void rows(rng *r)
{
    enum { MOST = 9000, EDGE = 64 };
    static const int lengths[] = {0,   1,   31,  32,  33,  63,  64,  65,   100,  127,  128,  129,  200,  255,
                                  256, 257, 300, 511, 512, 513, 777, 1024, 2000, 4000, 4095, 4096, 4097, 8192};
    unsigned char *x = malloc(MOST), *found = malloc(MOST), *expected = malloc(MOST);
    for (int i = 0; i < MOST; ++i) x[i] = (unsigned char)rng_next(r);
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if (strcmp(v->kernel, "cpy_row") != 0 || (v->needs & ~agk_cpu_features()) != 0) continue;
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; ++k) {
            for (int offset = 0; offset < EDGE; offset += 1 + offset / 3) {
                const size_t n = (size_t)lengths[k], from = rng_next(r) % EDGE;
                memset(found, 0xa5, MOST), memset(expected, 0xa5, MOST);
                memcpy(expected + EDGE + offset, x + from, n);
                ((agk_cpy_row_fn *)v->fn)((int64_t)n, found + EDGE + offset, x + from);
                CHECK(memcmp(expected, found, MOST) == 0);
                ((agk_cpy_row_fn *)v->fn)((int64_t)n, found + EDGE + offset, found + EDGE + offset);
                CHECK(memcmp(expected, found, MOST) == 0);
            }
        }
    }
    free(x), free(found), free(expected);
}

/* Each variant of the optimizers' steps: the bits of plain C. */
static void optimizers(rng *r)
{
    enum { MOST = 70, ARRAYS = 4 };
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        const bool sgd = strcmp(v->kernel, "optimizers_sgd_f32") == 0;
        if ((v->needs & ~agk_cpu_features()) != 0 || (!sgd && strcmp(v->kernel, "optimizers_adamw_f32") != 0)) continue;
        for (int n = 0; n < MOST - 2; ++n) {
            float *x = floats(r, ARRAYS * MOST), expected[ARRAYS * MOST], found[ARRAYS * MOST];
            for (int j = 3 * MOST; j < 4 * MOST; ++j) x[j] = fabsf(x[j]); /* the mean of squares */
            memcpy(expected, x, sizeof expected), memcpy(found, x, sizeof found);
            if (sgd) {
                agk_optimizers_sgd_f32_scalar(n, expected, expected + MOST, 0.03f, 0.99f);
                ((agk_optimizers_sgd_f32_fn *)v->fn)(n, found, found + MOST, 0.03f, 0.99f);
            } else {
                agk_adamw step = {.alpha = 0.03f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .keep = 0.999f};
                step.of_m = 2.5f, step.of_v = 25.0f;
                for (int which = 0; which < 2; ++which) {
                    float *data = which == 0 ? expected : found;
                    step.w = data, step.g = data + MOST, step.m = data + 2 * MOST, step.v = data + 3 * MOST;
                    (which == 0 ? agk_optimizers_adamw_f32_scalar : (agk_optimizers_adamw_f32_fn *)v->fn)(n, &step);
                }
            }
            CHECK(memcmp(expected, found, sizeof found) == 0);
            free(x);
        }
    }
}

/* Each variant that finds the first of a row: rows of equal numbers, both zeros, infinities and NaN among them. */
static void first_of_rows(rng *r)
{
    enum { MOST = 300, K = AGK_SORT_MOST };
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1.0f};
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if ((v->needs & ~agk_cpu_features()) != 0 || strcmp(v->kernel, "sort_top_k") != 0) continue;
        int served = 0;
        for (int round = 0; round < 3000; ++round) {
            const int n = AGK_SORT_LEAST + (int)(rng_next(r) % (MOST - AGK_SORT_LEAST)), k = 1 + round % K;
            float *x = floats(r, MOST);
            for (int j = 0; j < n && round % 3 > 0; ++j) x[j] = rintf(x[j] * 64.0f);
            for (int j = 0; j < n && round % 4 == 3; j += 3) x[j] = odd[rng_next(r) % 6];
            int32_t expected[MOST], found[K];
            for (int j = 0; j < n; ++j) { /* insertion: stable, NaN at the end */
                int at = j;
                for (; at > 0 && (x[j] > x[expected[at - 1]] || (x[j] == x[j] && isnan(x[expected[at - 1]]))); --at)
                    expected[at] = expected[at - 1];
                expected[at] = j;
            }
            if (((agk_sort_top_k_fn *)v->fn)(n, k, x, found)) {
                ++served;
                CHECK(memcmp(expected, found, (size_t)k * sizeof *found) == 0);
            }
            free(x);
        }
        CHECK(served > 1000);
    }
}

int main(void)
{
    rng r = rng_new(0);
    extremes(&r);
    halves_and_numbers(&r);
    past_the_caches(&r);
    halves_of_functions(&r);
    rows(&r);
    optimizers(&r);
    first_of_rows(&r);
    return 0;
}
