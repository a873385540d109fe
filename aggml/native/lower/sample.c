/* sample: draws one of the best elements of each row. penalize: changes some elements of each row.
 *
 * All devices have to draw the same element. So a probability is an integer, and sums of integers do not depend on
 * their order. Each operation that computes a probability is one that IEEE 754 rounds in one way: products and sums
 * that nothing fuses (the package is compiled without contraction), and a quotient. devices/cuda/kernels/sample.cu
 * has the same operations. Not here: finding the best elements (sort.c). */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

enum { WHOLE = 42 };                             /* the best element has a weight of 2^WHOLE */
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, DRAW }; /* numbers in a row of `how` of sample */
enum { UP, DOWN, BIAS, FALL, STEP, EACH };       /* numbers in a row of `how` of penalize */

/* e^x for x below 0, in units of 2^-WHOLE: 2^f is sqrt(2) times e^((f - 1/2) log 2), computed by its series. */
static uint64_t weight_of(double x)
{
    static const double series[] = {
        1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0,
        1.0 / 120.0,       1.0 / 24.0,       1.0 / 6.0,       1.0 / 2.0,      1.0,           1.0};
    if (x >= 0.0) return (uint64_t)1 << WHOLE;
    if (!(x > -30.0)) return 0; /* less than half of the smallest weight, or NaN */
    const double t = x * 1.4426950408889634, whole = floor(t), z = (t - whole - 0.5) * 0.6931471805599453;
    double sum = 1.0 / 6227020800.0;
    for (int i = 0; i < 13; ++i) sum = sum * z + series[i];
    const uint64_t bits = (uint64_t)(1023 + WHOLE + (int)whole) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return (uint64_t)(sum * 1.4142135623730951 * scale + 0.5);
}

typedef struct row {
    const char *x, *ids;
    int64_t n, k, x_step, id_step;
    float best;
} row;

static int32_t id_of(const row *r, int64_t i)
{
    int32_t id;
    memcpy(&id, r->ids + i * r->id_step, sizeof id);
    return id;
}

static uint64_t weight_at(const row *r, int64_t i, double temperature)
{
    const int32_t id = id_of(r, i);
    if (id < 0 || id >= r->n) return 0;
    const float value = agk_load(AGK_F32, r->x + id * r->x_step);
    if (value == r->best) return (uint64_t)1 << WHOLE; /* also if both are infinite */
    return weight_of(((double)value - (double)r->best) / temperature);
}

/* How many of the first `most` sums, each of all weights so far, are below `bound`. */
static int64_t sums_below(const row *r, int64_t most, double temperature, uint64_t bound)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < most; ++i) {
        sum += weight_at(r, i, temperature);
        if (sum >= bound) return i;
    }
    return most;
}

static uint64_t sum_of(const row *r, int64_t most, double temperature)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < most; ++i) sum += weight_at(r, i, temperature);
    return sum;
}

static int32_t draw_id(const row *r, const double *how)
{
    const int32_t first = id_of(r, 0);
    if (!(how[TEMPERATURE] > 0.0)) return first;
    int64_t kept = how[TOP_K] >= 1.0 && how[TOP_K] < (double)r->k ? (int64_t)how[TOP_K] : r->k;
    if (how[TOP_P] < 1.0) {
        const double bound = ceil(how[TOP_P] * (double)sum_of(r, kept, 1.0));
        const int64_t below = sums_below(r, kept, 1.0, bound > 0.0 ? (uint64_t)bound : 0);
        kept = below + 1 < kept ? below + 1 : kept;
    }
    if (how[MIN_P] > 0.0) {
        const double least = how[MIN_P] * (double)((uint64_t)1 << WHOLE);
        int64_t enough = 0;
        while (enough < kept && (double)weight_at(r, enough, 1.0) >= least) ++enough;
        kept = enough > 1 ? enough : 1;
    }
    const uint64_t all = sum_of(r, kept, how[TEMPERATURE]);
    const double reached = how[DRAW] > 0.0 ? floor(how[DRAW] * (double)all) : 0.0;
    if (all == 0) return first;
    /* The first sum beyond the drawn number; as sums are integers, the first that is not below that number plus 1. */
    const int64_t place = sums_below(r, kept, how[TEMPERATURE], (uint64_t)reached + 1);
    return id_of(r, place < kept ? place : kept - 1);
}

static agk_status run_sample(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0], *ids = &node->src[1], *how = &node->src[2];
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t i = rows.first; i < rows.last; ++i) {
        row r = {(const char *)agk_data(task, a) + agk_row_at(a, i),
                 (const char *)agk_data(task, ids) + agk_row_at(ids, i),
                 a->ne[0],
                 ids->ne[0],
                 a->nb[0],
                 ids->nb[0],
                 NAN};
        const int32_t first = id_of(&r, 0);
        if (first >= 0 && first < r.n) r.best = agk_load(AGK_F32, r.x + first * r.x_step);
        double numbers[5];
        memcpy(numbers, (const char *)agk_data(task, how) + agk_row_at(how, i), sizeof numbers);
        const int32_t id = draw_id(&r, numbers);
        memcpy((char *)agk_data(task, dst) + i * dst->nb[0], &id, sizeof id);
    }
    return AGK_OK;
}

static agk_status run_penalize(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0], *ids = &node->src[1], *how = &node->src[2];
    const int64_t n = a->ne[0], m = ids->ne[0];
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t i = rows.first; i < rows.last; ++i) {
        const char *x = (const char *)agk_data(task, a) + agk_row_at(a, i);
        char *y = (char *)agk_data(task, dst) + agk_row_at(dst, i);
        agk_gather_32(y, x, a->nb[0], n);
        for (int64_t j = 0; j < m; ++j) {
            int32_t id;
            memcpy(&id, (const char *)agk_data(task, ids) + agk_row_at(ids, i) + j * ids->nb[0], sizeof id);
            if (id < 0 || id >= n) continue;
            float by[EACH];
            for (int e = 0; e < EACH; ++e) {
                by[e] = agk_load(AGK_F32, (const char *)agk_data(task, how) + e * how->nb[1] + i * how->nb[2] + 4 * j);
            }
            const float value = agk_load(AGK_F32, x + id * a->nb[0]);
            const float changed = value * (value > 0.0f ? by[UP] : by[DOWN]) + by[BIAS] - by[FALL] - by[STEP];
            memcpy(y + 4 * (int64_t)id, &changed, sizeof changed);
        }
    }
    return AGK_OK;
}

agk_status agk_lower_sample(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *ids = &node->src[1], *how = &node->src[2];
    const int64_t rows = a->ne[1];
    const bool draws = node->op == AGK_OP_sample;
    agk_status status = agk_expect(lowering, "a", a, AGK_F32, -1, -1, 1, 1);
    if (status == AGK_OK) status = agk_expect(lowering, "ids", ids, AGK_I32, -1, rows, 1, 1);
    if (status == AGK_OK) {
        status = draws ? agk_expect(lowering, "how", how, AGK_F64, 5, rows, 1, 1)
                       : agk_expect(lowering, "how", how, AGK_F32, ids->ne[0], 5, rows, 1);
    }
    if (status == AGK_OK) {
        status = draws ? agk_expect(lowering, "the result", dst, AGK_I32, rows, 1, 1, 1)
                       : agk_expect(lowering, "the result", dst, AGK_F32, a->ne[0], rows, 1, 1);
    }
    if (status != AGK_OK) return status;
    const int64_t size = draws ? 8 : 4;
    if ((how->ne[0] > 1 && how->nb[0] != size) || (!draws && a->ne[0] > 1 && dst->nb[0] != 4)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows of numbers or of the result have gaps");
    }
    if (draws && (ids->ne[0] < 1 || ids->ne[0] > 1 << 20)) {
        return agk_refuse(lowering, AGK_INVALID, "a row of ids has %lld elements, not 1 to 2^20",
                          (long long)ids->ne[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (draws) {
        agk_add_units(lowering, run_sample, rows, 60.0 * (double)ids->ne[0] + 50.0);
    } else {
        agk_add_units(lowering, run_penalize, rows, 0.2 * (double)a->ne[0] + 5.0 * (double)ids->ne[0] + 20.0);
    }
    return AGK_OK;
}
