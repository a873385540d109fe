/* Quantizers of any floats, and conversions of any bits: no undefined behaviour (under sanitizers), no access beyond
 * the rows, and the same bytes when repeated.
 *
 * Which bytes are right is checked by tests/ops/test_types.py. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "table/kernels.h"
#include "lower/strided.h"

enum { COLUMNS = 512, ROWS = 2, N = COLUMNS * ROWS };

static rng random_bits;

static float random_float(void)
{
    return (float)(int32_t)rng_next(&random_bits) * 0x1p-31f;
}

/* Values of each sort that may be a problem for a quantizer. */
static float odd_float(int kind)
{
    static const float odd[] = {0.0f,    -0.0f,  NAN,    INFINITY, -INFINITY, 1e-45f, -1e-40f, 1e-30f,
                                3.4e38f, -3e38f, 6.6e4f, 448.0f,   1e-15f,    1e10f,  127.5f,  -0.5f};
    float any;
    const uint32_t bits = rng_next(&random_bits);
    memcpy(&any, &bits, sizeof any);
    return kind % 17 == 16 ? any : odd[kind % 17];
}

static void fill(float *x, int round)
{
    for (int i = 0; i < N; ++i) {
        const int kind = round % 6;
        x[i] = kind == 0   ? random_float()
               : kind == 1 ? odd_float((int)rng_below(&random_bits, 17))
               : kind == 2 ? odd_float(round / 6)
               : kind == 3 ? (rng_below(&random_bits, 50) == 0 ? odd_float(round / 6) : random_float())
               : kind == 4 ? odd_float(i / 32)
                           : random_float() * 1e-38f;
    }
}

/* Arrays end where their malloc'd memory ends, so that the sanitizer sees any access beyond. */
static void quantize(int type, const float *x, const float *weights)
{
    const agk_type_traits *traits = agk_traits(type);
    const size_t size = agk_row_size(type, N);
    char *first = calloc(1, size), *second = calloc(1, size);
    float *back = malloc(N * sizeof *back);
    for (int twice = 0; twice < 2; ++twice) {
        char *to = twice ? second : first;
        if (traits->quantize != NULL && (weights != NULL || !traits->needs_imatrix))
            traits->quantize(x, to, ROWS, COLUMNS, weights);
        else if (traits->from_float != NULL)
            traits->from_float(x, to, N);
    }
    CHECK(memcmp(first, second, size) == 0);
    if (traits->to_float != NULL) traits->to_float(first, back, N);
    free(first);
    free(second);
    free(back);
}

static void convert_any_bits(int type)
{
    const agk_type_traits *traits = agk_traits(type);
    const size_t size = agk_row_size(type, N);
    uint8_t *blocks = malloc(size);
    float *expected = malloc(N * sizeof *expected), *found = malloc(N * sizeof *found);
    for (size_t i = 0; i < size; ++i) blocks[i] = (uint8_t)rng_next(&random_bits);
    traits->to_float(blocks, expected, N);
    agk_reader(type, agk_cpu_features())(blocks, found, N);
    for (int i = 0; i < N; ++i) {
        CHECK(memcmp(&expected[i], &found[i], sizeof *found) == 0 || (isnan(expected[i]) && isnan(found[i])));
    }
    free(blocks);
    free(expected);
    free(found);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    random_bits = rng_new(0);
    float *x = malloc(N * sizeof *x), *weights = malloc(COLUMNS * sizeof *weights);
    for (int i = 0; i < COLUMNS; ++i) weights[i] = fabsf(random_float());
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
        if (agk_traits(type)->name == NULL) continue;
        if (agk_traits(type)->to_float != NULL) convert_any_bits(type);
        for (int round = 0; round < 102; round += agk_traits(type)->needs_imatrix ? 5 : 1) {
            fill(x, round);
            quantize(type, x, NULL);
            quantize(type, x, weights);
        }
    }
    free(x);
    free(weights);
    return 0;
}
