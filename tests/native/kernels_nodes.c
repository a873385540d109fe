/* Whole operations, as plans lower them for each set of features of this machine, against the exact scalar ones; and bit for
 * bit alike in whatever order and by however many threads their chunks are run.
 *
 * What is compared is the length of the difference, relative to that of the result. Memory has its exact size. */
#include <math.h>

#include "../../aggml/native/runtime/runtime.h"
#include "check.h"
#include "kernel_types.h"
#include "packed.h"

static void *filled(size_t size)
{
    char *p = aligned_alloc(64, (size + 64) / 64 * 64);
    CHECK(p != NULL);
    memset(p, 0xa5, (size + 64) / 64 * 64);
    return p;
}

/* Runs a node for some features; order: 0 forwards, 1 backwards, from both ends otherwise. */
static void run(const agk_node *from, uint32_t cpu, ag_storage *weights, int order)
{
    agk_node *node = aligned_alloc(64, (sizeof *node + 63) / 64 * 64);
    CHECK(node != NULL);
    *node = *from;
    agk_lowering lowering = {.node = node, .cpu = cpu, .weights = weights};
    const agk_status status = agk_lower(&lowering);
    if (status != AGK_OK) fprintf(stderr, "%s\n", lowering.message);
    CHECK(status == AGK_OK);
    char message[AGK_MESSAGE];
    void *arena = filled(lowering.work_size);
    agk_task task = {.arena = (uintptr_t)arena, .message = message, .threads = 1 + order};
    for (int i = 0; i < lowering.n_steps; ++i) {
        const int64_t n = lowering.step[i].n_chunks;
        for (int64_t j = 0; j < n; ++j) {
            const int64_t chunk = order == 0 ? j : order == 1 || j % 2 == 1 ? n - 1 - (order == 1 ? j : j / 2) : j / 2;
            task.scratch = filled(lowering.scratch_size); /* a thread of its own */
            CHECK(lowering.step[i].run(&task, node, chunk) == AGK_OK);
            free(task.scratch);
        }
    }
    agk_packed_release(lowering.packed);
    free(arena);
    free(node);
}

static agk_view view_of(int type, void *data, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t row = (int64_t)agk_row_size(type, ne0);
    return (agk_view){.addr = (uintptr_t)data,
                      .type = type,
                      .ne = {ne0, ne1, ne2, 1},
                      .nb = {(int64_t)agk_traits(type)->type_size, row, row * ne1, row * ne1 * ne2}};
}

/* All that this machine has, then without the best of it, as older ones of its kind; 0 ends. */
static const uint32_t *masks(void)
{
    static uint32_t list[8];
    static const uint32_t without[] = {
        0,
        AGK_AMX_INT8 | AGK_AMX_BF16 | AGK_NEON_I8MM | AGK_NEON_BF16,
        AGK_AMX_INT8 | AGK_AMX_BF16 | AGK_NEON_I8MM | AGK_NEON_BF16 | AGK_NEON_DOTPROD | AGK_AVX512_BF16 |
            AGK_AVX512_VNNI,
        ~(uint32_t)(AGK_AVX2 | AGK_FMA | AGK_F16C | AGK_NEON),
    };
    int n = 0;
    for (size_t i = 0; i < sizeof without / sizeof *without; ++i) {
        const uint32_t mask = agk_cpu_features() & ~without[i];
        if (mask != 0 && (n == 0 || mask != list[n - 1])) list[n++] = mask;
    }
    return list;
}

/* The result of `node`, f32 and dense, for all features; `most`: the relative difference that is allowed. */
static void compare(agk_node *node, bool weights, double most)
{
    const size_t n = (size_t)agk_nelements(&node->dst);
    float *expected = filled(n * sizeof *expected), *found = filled(n * sizeof *found),
          *again = filled(n * sizeof *found);
    node->dst.addr = (uintptr_t)expected;
    run(node, 0, NULL, 0);
    for (const uint32_t *cpu = masks(); *cpu != 0; ++cpu) {
        ag_storage *storage = weights ? ag_storage_new("weights") : NULL;
        for (int order = 0; order < 3; ++order) {
            node->dst.addr = (uintptr_t)(order == 0 ? found : again);
            run(node, *cpu, storage, order);
            CHECK(order == 0 || memcmp(found, again, n * sizeof *found) == 0);
        }
        double error = 0.0, size = 0.0;
        for (size_t i = 0; i < n; ++i) {
            CHECK(isfinite(found[i]));
            error += ((double)found[i] - (double)expected[i]) * ((double)found[i] - (double)expected[i]);
            size += (double)expected[i] * (double)expected[i];
        }
        if (error > most * most * size) {
            fprintf(stderr, "%s of %s, [%d, %d] x %d, features %x: %g of 1\n", agk_op_name(node->op),
                    agk_traits(node->src[0].type)->name, (int)node->src[0].ne[0], (int)node->src[0].ne[1],
                    (int)node->src[1].ne[1], *cpu, sqrt(error / size));
            exit(1);
        }
        if (storage != NULL) ag_storage_unref(storage);
    }
    free(expected);
    free(found);
    free(again);
}

static float *floats(rng *r, size_t n)
{
    float *x = filled(n * sizeof *x);
    for (size_t i = 0; i < n; ++i) x[i] = (float)rng_below(r, 2001) / 1000.0f - 1.0f;
    return x;
}

/* Bytes of the type, from floats where it has a way, else any codes with moderate scales. */
static void *weights_of(rng *r, int type, int64_t k, int64_t rows)
{
    const agk_type_traits *t = agk_traits(type);
    float *x = floats(r, (size_t)(k * rows)), *imatrix = floats(r, (size_t)k);
    char *w = filled(agk_row_size(type, k) * (size_t)rows);
    for (int64_t i = 0; i < k; ++i) imatrix[i] = 1.0f + fabsf(imatrix[i]);
    if (type == AGK_F32)
        memcpy(w, x, (size_t)(k * rows) * 4);
    else if (t->from_float != NULL)
        for (int64_t i = 0; i < rows; ++i) t->from_float(x + i * k, w + (size_t)i * agk_row_size(type, k), k);
    else
        t->quantize(x, w, rows, k, imatrix);
    free(x);
    free(imatrix);
    return w;
}

static void mul_mat(rng *r, int type, int64_t k, int64_t m, int64_t n, bool packed)
{
    const bool quantized = agk_traits(type)->blck_size > 1;
    void *w = weights_of(r, type, k, m);
    float *x = floats(r, (size_t)(k * n));
    agk_node node = {.op = AGK_OP_mul_mat, .n_src = 2};
    node.src[0] = view_of(type, w, k, m, 1);
    node.src[1] = view_of(AGK_F32, x, k, n, 1);
    node.dst = view_of(AGK_F32, NULL, m, n, 1);
    /* columns of quantized rows are bytes: 1 / 127 of the largest at most, a third of that in the mean; of bf16 they may be bf16, of f16
     * two of them */
    compare(&node, packed, quantized ? 1e-2 : type == AGK_BF16 ? 3e-3 : type == AGK_F16 ? 2e-5 : 1e-6);
    free(w);
    free(x);
}

static void products(rng *r)
{
    static const int64_t columns[] = {1, 3, 9, 33, 70};
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
        const agk_type_traits *t = agk_traits(type);
        if (t->vec_dot_type == AGK_NONE || t->to_float == NULL || (t->from_float == NULL && t->quantize == NULL))
            continue;
        const int64_t k = t->blck_size == 256 ? 512 : t->blck_size == 32 ? 544 : 640;
        for (size_t i = 0; i < sizeof columns / sizeof *columns; ++i) {
            mul_mat(r, type, k, 37, columns[i], false);
            if (columns[i] <= 9) mul_mat(r, type, k, 37, columns[i], true);
        }
    }
    mul_mat(r, AGK_F32, 201, 99, 49, false);
    mul_mat(r, AGK_F16, 77, 99, 50, false);
    mul_mat(r, AGK_Q8_0, 1024, 150, 600, false);
}

int main(void)
{
    rng r = rng_new(0);
    products(&r);
    return 0;
}
