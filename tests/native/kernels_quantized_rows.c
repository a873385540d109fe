/* Every variant of the kernels that unpack quantized rows compared with the scalar one: to f32 and bytes bit for
 * bit, to bf16 equal to the rounded floats. Each row has a buffer of its exact size, so that ASan sees a read beyond
 * it. Not here: products of such rows (kernels_quantized.c). */
#include <math.h>

#include "quantized.h"
#include "variants.h"
#include "kernels/mul_mat_packed.h"

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static int rows(rng *r, int type)
{
    const char *kernel = kernel_of("", type, "_to_f32");
    agk_to_float_fn *scalar = (agk_to_float_fn *)agk_pick_any(kernel, 0);
    int n_variants = 0;
    for (size_t i = 0; scalar != NULL && i < agk_n_variants; ++i) {
        agk_to_float_fn *fast = (agk_to_float_fn *)variant(i, kernel);
        if (fast == NULL) continue;
        for (int round = 0; round < SCALED(200); ++round) {
            uint8_t *x = random_bytes(r, agk_row_size(type, N));
            float expected[N], found[N];
            scalar(x, expected, N);
            fast(x, found, N);
            for (int j = 0; j < N; ++j) CHECK(same(expected[j], found[j]));
            free(x);
        }
        ++n_variants;
    }
    return n_variants;
}

/* Rows as bytes: each element is (q - 128) * d + minimum. Not for the scalar kernel, which rounds. */
static int byte_rows(rng *r, int type)
{
    const agk_code_traits traits = agk_code_traits_of(type);
    int n_variants = 0;
    for (size_t i = 0; traits.served && i < agk_n_variants; ++i) {
        agk_mm_bytes_rows_fn *fast = (agk_mm_bytes_rows_fn *)variant(i, "mm_bytes_rows");
        if (fast == NULL || strcmp(agk_variants[i].isa, "scalar") == 0) continue;
        for (int round = 0; round < SCALED(100); ++round) {
            uint8_t *x = random_bytes(r, agk_row_size(type, N));
            agk_bytes_row found[N / 16];
            float expected[N];
            agk_traits(type)->to_float(x, expected, N);
            fast(type, false, x, found, N);
            for (int j = 0; j < N; ++j) {
                const agk_bytes_row *y = &found[j / 16 & (traits.halves ? ~0 : ~1)];
                const double value = (double)(found[j / 16].q[j % 16] - 128) * (double)y->d + (double)y->minimum;
                const double size = 128.0 * fabs((double)y->d) + fabs((double)y->minimum);
                if (isfinite(size) && isfinite(expected[j])) CHECK(fabs(value - (double)expected[j]) <= 1e-6 * size);
                if (!traits.minimum) CHECK(y->minimum == 0.0f);
            }
            free(x);
        }
        ++n_variants;
    }
    return n_variants;
}

/* Rows as bytes with one scale for 256: mul_mat_bytes.h says what an element is. Integers are exact, so only the
 * floats' own rounding remains. */
static int scaled_rows(rng *r, int type)
{
    int n_variants = 0;
    for (size_t i = 0; agk_bytes_one_scale(type) && i < agk_n_variants; ++i) {
        agk_mm_bytes_rows_fn *fast = (agk_mm_bytes_rows_fn *)variant(i, "mm_bytes_scaled_rows");
        if (fast == NULL || strcmp(agk_variants[i].isa, "scalar") == 0) continue;
        for (int round = 0; round < SCALED(100); ++round) {
            uint8_t *x = random_bytes(r, agk_row_size(type, N));
            agk_bytes_row found[N / 16];
            float expected[N];
            agk_traits(type)->to_float(x, expected, N);
            fast(type, false, x, found, N);
            for (int j = 0; j < N; ++j) {
                const agk_bytes_row *first = &found[j / 256 * 16];
                const double d = (double)first->d, step = type == AGK_Q2_K ? (double)first->step : 0.0;
                const double less = agk_bytes_odd(type) ? 0.5 * d : step * found[j / 32 * 2].times[j / 16 % 2];
                const double value = (found[j / 16].q[j % 16] - 128) * d - less, size = fabs(128 * d) + fabs(less);
                if (isfinite(size) && isfinite(expected[j])) CHECK(fabs(value - (double)expected[j]) <= 1e-6 * size);
            }
            free(x);
        }
        ++n_variants;
    }
    return n_variants;
}

/* The minimums of q4_K and q5_K as integers, beside the floats. */
static int integer_minimums(rng *r, int type)
{
    int n_variants = 0;
    for (size_t i = 0; (type == AGK_Q4_K || type == AGK_Q5_K) && i < agk_n_variants; ++i) {
        agk_mm_bytes_rows_fn *fast = (agk_mm_bytes_rows_fn *)variant(i, "mm_bytes_rows");
        if (fast == NULL || strcmp(agk_variants[i].isa, "avx512") != 0) continue;
        for (int round = 0; round < SCALED(100); ++round) {
            uint8_t *x = random_bytes(r, agk_row_size(type, N));
            agk_bytes_row found[N / 16];
            fast(type, false, x, found, N);
            for (int j = 0; j < N / 32; ++j) {
                const double step = (double)found[j / 8 * 16].step, minimum = (double)found[2 * j].minimum;
                const double value = -step * found[j / 2 * 4].times[j % 2];
                if (isfinite(step)) CHECK(fabs(value - minimum) <= 1e-6 * fabs(minimum));
            }
            free(x);
        }
        ++n_variants;
    }
    return n_variants;
}

/* An f32 as the only term of a product on tiles: rounded to bf16; a subnormal number becomes zero with its sign. */
static uint16_t as_term(float x)
{
    uint16_t bits;
    const float kept = fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
    agk_f32_to_bf16_scalar(&kept, &bits, 1);
    return bits;
}

/* Rows of codebook types as bf16 equal their floats rounded to bf16. Rows have any bits, or ordinary scales. */
static int bf16_rows(rng *r, int type)
{
    const bool points = is_codebook(type) && agk_code_traits_of(type).served && type != AGK_TQ1_0 && type != AGK_TQ2_0;
    int n_variants = 0;
    for (size_t i = 0; points && i < agk_n_variants; ++i) {
        agk_mm_tiles_rows_iq_fn *fast = (agk_mm_tiles_rows_iq_fn *)variant(i, "mm_tiles_rows_iq");
        if (fast == NULL) continue;
        const bool scalar = strcmp(agk_variants[i].isa, "scalar") == 0;
        for (int round = 0; round < SCALED(200); ++round) {
            char *x = (char *)random_bytes(r, agk_row_size(type, N));
            if (scalar || round % 2 == 0) random_row(r, type, x);
            float expected[N];
            uint16_t found[N];
            agk_traits(type)->to_float(x, expected, N);
            fast(type, x, found, N);
            for (int j = 0; j < N; ++j) {
                const bool nan = (found[j] & 0x7fff) > 0x7f80;
                CHECK(isnan(expected[j]) ? nan : found[j] == as_term(expected[j]));
            }
            free(x);
        }
        ++n_variants;
    }
    return n_variants;
}

int main(void)
{
    rng r = rng_new(0);
    int n = 0;
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
        if (agk_traits(type)->blck_size == 1) continue;
        n += rows(&r, type) + byte_rows(&r, type) + bf16_rows(&r, type);
        n += scaled_rows(&r, type) + integer_minimums(&r, type);
    }
    CHECK(n >= 24); /* even without any vector kernel there are the scalar ones */
    return 0;
}
