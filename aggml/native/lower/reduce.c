/* sum, sum_rows, mean, argmax, count_equal, cumsum, cross_entropy_loss: many elements become few, or a running sum.
 *
 * Totals take two steps: a partial result for each unit or row goes to the work area, then these are added in order.
 * Both depend on the shape alone, so the result does not depend on the threads. Sums are in double. Not here:
 * sorting (sort.c), gradients (backward.c). */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

enum { READ, WRITE }; /* slots of node->aux */

/* Elements i .. i+n-1 of a row that starts at `row`, `stride` bytes apart: in place, or gathered; n <= AGK_BLOCK. */
static inline const float *part_of(const char *row, int64_t stride, int64_t i, int64_t n, float *buffer)
{
    if (stride == 4) return (const float *)(const void *)row + i;
    for (int64_t k = 0; k < n; ++k) memcpy(&buffer[k], row + (i + k) * stride, sizeof *buffer);
    return buffer;
}

static double sum_of(int64_t n, const float *x)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int k = 0; k < 4; ++k) sum[k] += (double)x[i + k];
    }
    for (; i < n; ++i) sum[0] += (double)x[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* -- totals: partial results of units --------------------------------------------------------------------------- */

typedef struct totals {
    agk_port a, b;
    void *next; /* where the next unit's result goes */
} totals;

static void sum_unit(void *context, int64_t n, int64_t i, const int64_t *at)
{
    totals *t = context;
    float block[AGK_BLOCK];
    double sum = 0.0;
    for (const int64_t end = i + n; i < end; i += AGK_BLOCK) {
        n = end - i < AGK_BLOCK ? end - i : AGK_BLOCK;
        sum += sum_of(n, agk_port_read(&t->a, at[0], i, n, block));
    }
    double *next = t->next;
    *next = sum;
    t->next = next + 1;
}

static void count_unit(void *context, int64_t n, int64_t i, const int64_t *at)
{
    totals *t = context;
    const char *a = agk_port_at(&t->a, at[0], i), *b = agk_port_at(&t->b, at[1], i);
    int64_t *next = t->next, count = 0;
    if (t->a.stride == 4 && t->b.stride == 4) {
        const int32_t *x = (const int32_t *)(const void *)a, *y = (const int32_t *)(const void *)b;
        int32_t equal = 0; /* enough bits, since n is at most AGK_SEGMENT */
        for (int64_t k = 0; k < n; ++k) equal += x[k] == y[k];
        count = equal;
    } else {
        for (int64_t k = 0; k < n; ++k) {
            count += memcmp(a + k * t->a.stride, b + k * t->b.stride, sizeof(int32_t)) == 0;
        }
    }
    *next = count;
    t->next = next + 1;
}

static agk_loop operands_of(const agk_node *node)
{
    return agk_loop_pair(&node->src[0], &node->src[node->op == AGK_OP_count_equal ? 1 : 0]);
}

static agk_status run_units(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *b = &node->src[node->op == AGK_OP_count_equal ? 1 : 0];
    const agk_loop loop = operands_of(node);
    const agk_range units = agk_units_of(node, chunk);
    totals t = {.a = agk_port_of(agk_data(task, a), a->type, loop.stride[0][0]),
                .b = agk_port_of(agk_data(task, b), b->type, loop.stride[1][0]),
                .next = (double *)agk_work(task, node) + units.first}; /* a count takes as many bytes as a double */
    t.a.read = (agk_to_float_fn *)node->aux.fn[READ];
    agk_loop_run(&loop, units.first, units.last, node->op == AGK_OP_count_equal ? count_unit : sum_unit, &t);
    return AGK_OK;
}

/* Adds the sums that the units or rows left in the work area. */
static agk_status finish(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const int64_t units = node->aux.i[AGK_UNITS];
    if (node->op == AGK_OP_count_equal) {
        const int64_t *count = agk_work(task, node);
        int64_t total = 0;
        for (int64_t i = 0; i < units; ++i) total += count[i];
        memcpy(agk_data(task, &node->dst), &total, sizeof total);
        return AGK_OK;
    }
    const double *sum = agk_work(task, node);
    double total = 0.0;
    for (int64_t i = 0; i < units; ++i) total += sum[i];
    if (node->op == AGK_OP_cross_entropy_loss) total = -total / (double)agk_nrows(&node->src[0]);
    const float result = (float)total;
    ((agk_from_float_fn *)node->aux.fn[WRITE])(&result, agk_data(task, &node->dst), 1);
    return AGK_OK;
}

static agk_status lower_total(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const bool counts = node->op == AGK_OP_count_equal;
    if (counts && (a->type != AGK_I32 || b->type != AGK_I32 || node->dst.type != AGK_I64)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s and b is %s; both must be i32", agk_type_name(a->type),
                          agk_type_name(b->type));
    }
    if (counts && !agk_same_shape(a, b)) {
        return agk_refuse(lowering, AGK_INVALID, "a has %lld elements in rows of %lld, b %lld in rows of %lld",
                          (long long)agk_nelements(a), (long long)a->ne[0], (long long)agk_nelements(b),
                          (long long)b->ne[0]);
    }
    const bool floats = a->type == AGK_F32 || a->type == AGK_F16 || a->type == AGK_BF16;
    if (!counts && (!floats || node->dst.type != a->type)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, the sum %s", agk_type_name(a->type),
                          agk_type_name(node->dst.type));
    }
    const agk_loop loop = operands_of(node);
    const int64_t units = agk_nelements(a) > 0 ? agk_loop_units(&loop) : 0;
    node->aux.i[AGK_UNITS] = units;
    if (!counts) {
        node->aux.fn[READ] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
        node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(a->type, lowering->cpu);
    }
    lowering->work_size = (size_t)units * sizeof(double);
    if (units > 0) agk_add_units(lowering, run_units, units, 0.6 * (double)(agk_nelements(a) / units) + 5.0);
    agk_add_step(lowering, finish, 1);
    return AGK_OK;
}

/* -- rows --------------------------------------------------------------------------------------------------------- */

static double row_sum(const char *row, int64_t stride, int64_t n)
{
    float block[AGK_BLOCK];
    double sum = 0.0;
    for (int64_t i = 0; i < n; i += AGK_BLOCK) {
        const int64_t part = n - i < AGK_BLOCK ? n - i : AGK_BLOCK;
        sum += sum_of(part, part_of(row, stride, i, part, block));
    }
    return sum;
}

/* The largest of n contiguous elements, -inf if there is none, 16 lanes at a time. */
static float largest(int64_t n, const float *x)
{
    float most[16];
    for (int k = 0; k < 16; ++k) most[k] = -INFINITY;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int k = 0; k < 16; ++k) most[k] = x[i + k] > most[k] ? x[i + k] : most[k];
    }
    for (; i < n; ++i) most[0] = x[i] > most[0] ? x[i] : most[0];
    for (int k = 1; k < 16; ++k) most[0] = most[k] > most[0] ? most[k] : most[0];
    return most[0];
}

/* The index of the last of the largest elements; NaN is skipped. Only the block that has it is searched one by one. */
static int32_t dense_argmax(const float *x, int64_t n)
{
    float max = -INFINITY;
    int64_t block = -1;
    for (int64_t i = 0; i < n; i += AGK_BLOCK) {
        const float here = largest(n - i < AGK_BLOCK ? n - i : AGK_BLOCK, x + i);
        if (here > -INFINITY && here >= max) {
            max = here;
            block = i;
        }
    }
    if (!(max > -INFINITY)) return -1; /* only -inf and NaN: search one by one */
    const int64_t end = n - block < AGK_BLOCK ? n : block + AGK_BLOCK;
    for (int64_t i = end - 1; i >= block; --i) {
        if (x[i] >= max) return (int32_t)i;
    }
    return 0;
}

static int32_t row_argmax(const char *row, int64_t stride, int64_t n)
{
    float max = -INFINITY;
    int32_t at = stride == 4 ? dense_argmax((const float *)(const void *)row, n) : -1;
    if (at >= 0) return at;
    at = 0;
    for (int64_t i = 0; i < n; ++i) {
        float x;
        memcpy(&x, row + i * stride, sizeof x);
        if (x >= max) {
            max = x;
            at = (int32_t)i;
        }
    }
    return at;
}

static void row_cumsum(const char *row, int64_t stride, int64_t n, char *out, int64_t out_step)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        float x;
        memcpy(&x, row + i * stride, sizeof x);
        sum += (double)x;
        x = (float)sum;
        memcpy(out + i * out_step, &x, sizeof x);
    }
}

static agk_status run_rows(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1];
    const int64_t n = a->ne[0];
    char *out = agk_data(task, dst);
    const char *data = agk_data(task, a);
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t row = rows.first; row < rows.last; ++row) {
        const char *x = data + agk_row_at(a, row);
        switch (node->op) {
        case AGK_OP_argmax: {
            const int32_t at = row_argmax(x, a->nb[0], n);
            memcpy(out + row * dst->nb[0], &at, sizeof at);
            break;
        }
        case AGK_OP_cumsum: row_cumsum(x, a->nb[0], n, out + agk_row_at(dst, row), dst->nb[0]); break;
        case AGK_OP_cross_entropy_loss:
            ((double *)agk_work(task, node))[row] = ((agk_cross_entropy_loss_f32_fn *)node->aux.fn[READ])(
                n, (const float *)(const void *)x,
                (const float *)(const void *)((const char *)agk_data(task, b) + agk_row_at(b, row)));
            break;
        default: {
            double sum = row_sum(x, a->nb[0], n);
            if (node->op == AGK_OP_mean) sum /= (double)n;
            const float result = (float)sum;
            memcpy(out + agk_row_at(dst, row), &result, sizeof result);
        }
        }
    }
    return AGK_OK;
}

static agk_status check_rows(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1];
    if (a->type != AGK_F32) return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32", agk_type_name(a->type));
    bool fits = true;
    switch (node->op) {
    case AGK_OP_argmax:
        fits = dst->type == AGK_I32 && dst->ne[0] == a->ne[1] && agk_nrows(dst) == 1 && a->ne[2] == 1 && a->ne[3] == 1;
        break;
    case AGK_OP_cumsum: return agk_expect_like(lowering, dst, a);
    case AGK_OP_cross_entropy_loss:
        if (b->type != AGK_F32) {
            return agk_refuse(lowering, AGK_UNSUPPORTED, "b is %s, not f32", agk_type_name(b->type));
        }
        fits = dst->type == AGK_F32 && agk_nelements(dst) == 1 && agk_same_shape(a, b) &&
               (a->ne[0] < 2 || (a->nb[0] == 4 && b->nb[0] == 4));
        break;
    default:
        fits = dst->type == AGK_F32 && dst->ne[0] == 1 && dst->ne[1] == a->ne[1] && dst->ne[2] == a->ne[2] &&
               dst->ne[3] == a->ne[3];
    }
    if (fits) return AGK_OK;
    return agk_refuse(lowering, AGK_INVALID,
                      "a has rows of %lld elements, %lld of them; a result of %lld x %lld %s does not fit",
                      (long long)a->ne[0], (long long)agk_nrows(a), (long long)dst->ne[0], (long long)agk_nrows(dst),
                      agk_type_name(dst->type));
}

agk_status agk_lower_reduce(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    if (node->op == AGK_OP_sum || node->op == AGK_OP_count_equal) return lower_total(lowering);
    const agk_status status = check_rows(lowering);
    const agk_view *a = &node->src[0];
    const bool entropy = node->op == AGK_OP_cross_entropy_loss;
    if (status != AGK_OK || (!entropy && agk_nelements(&node->dst) == 0)) return status;
    agk_cross_entropy_loss_f32_fn *kernel = entropy ? AGK_PICK(cross_entropy_loss_f32, lowering->cpu) : NULL;
    const int64_t rows = agk_nrows(a);
    const double each = !entropy ? 0.5 : AGK_IS_PLAIN(cross_entropy_loss_f32, kernel) ? 12.0 : 1.5;
    node->aux.i[AGK_UNITS] = rows;
    agk_add_units(lowering, run_rows, rows, each * (double)a->ne[0] + 10.0);
    if (entropy) {
        node->aux.fn[READ] = (agk_any_fn *)kernel;
        node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(AGK_F32, lowering->cpu);
        lowering->work_size = (size_t)rows * sizeof(double);
        agk_add_step(lowering, finish, 1);
    }
    return AGK_OK;
}
