/* Whole nodes, as plans lower them, for each set of features of this machine, compared with the exact scalar
 * kernels.
 * The result must also be the same, bit for bit, for any order of the chunks.
 *
 * The measure is the length of the difference relative to that of the result. Buffers have their exact size. */
#ifndef TEST_NODES_H
#define TEST_NODES_H

#include <math.h>

#include "runtime/runtime.h"
#include "check.h"
#include "table/kernel_types.h"
#include "runtime/packing.h"

static inline void *filled(size_t size)
{
    char *p = aligned_alloc(64, (size + 64) / 64 * 64);
    CHECK(p != NULL);
    memset(p, 0xa5, (size + 64) / 64 * 64);
    return p;
}

/* Lowers and runs a node for the features `cpu`. The order of its chunks: 0 forwards, 1 backwards, 2 from both ends. */
static inline void run(const agk_node *from, uint32_t cpu, ag_storage *weights, int order)
{
    agk_node *node = aligned_alloc(64, (sizeof *node + 63) / 64 * 64);
    CHECK(node != NULL);
    *node = *from;
    agk_lowering lowering = {.node = node, .cpu = cpu, .weights = weights != NULL ? &weights->weights : NULL};
    const agk_status status = agk_lower(&lowering);
    if (status != AGK_OK) fprintf(stderr, "%s\n", lowering.message);
    CHECK(status == AGK_OK);
    char message[AGK_MESSAGE];
    void *arena = filled(lowering.work_size);
    agk_task task = {.arena = (uintptr_t)arena, .message = message};
    for (int i = 0; i < lowering.n_steps; ++i) {
        const int64_t n = lowering.step[i].n_chunks;
        for (int64_t j = 0; j < n; ++j) {
            const int64_t chunk = order == 0 ? j : order == 1 || j % 2 == 1 ? n - 1 - (order == 1 ? j : j / 2) : j / 2;
            /* new scratch for each chunk, as if each had a thread of its own */
            task.scratch = filled(lowering.scratch_size);
            CHECK(lowering.step[i].run(&task, node, chunk) == AGK_OK);
            free(task.scratch);
        }
    }
    ag_packed_release(lowering.packed);
    free(arena);
    free(node);
}

static inline agk_view view_of(int type, void *data, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t row = (int64_t)agk_row_size(type, ne0);
    return (agk_view){.addr = (uintptr_t)data,
                      .type = type,
                      .ne = {ne0, ne1, ne2, 1},
                      .nb = {(int64_t)agk_traits(type)->type_size, row, row * ne1, row * ne1 * ne2}};
}

/* Sets of features: all that this machine has, then without the newest ones, as older machines have them; 0 ends. */
static inline const uint32_t *masks(void)
{
    static uint32_t list[8];
    static const uint32_t without[] = {
        0,
        AGK_AMX_INT8 | AGK_AMX_BF16 | AGK_NEON_I8MM | AGK_NEON_BF16 | AGK_AMD512,
        AGK_AMX_INT8 | AGK_AMX_BF16 | AGK_NEON_I8MM | AGK_NEON_BF16 | AGK_NEON_DOTPROD | AGK_AVX512_BF16 |
            AGK_AVX512_VNNI | AGK_AMD512,
        ~(uint32_t)(AGK_AVX2 | AGK_FMA | AGK_F16C | AGK_NEON),
    };
    int n = 0;
    for (size_t i = 0; i < sizeof without / sizeof *without; ++i) {
        const uint32_t mask = agk_cpu_features() & ~without[i];
        if (mask != 0 && (n == 0 || mask != list[n - 1])) list[n++] = mask;
    }
    return list;
}

/* Compares the result of `node`, f32 and contiguous, for all features; `most`: the relative difference that is
 * allowed. */
static inline void compare(agk_node *node, bool weights, double most)
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

static inline float *floats(rng *r, size_t n)
{
    float *x = filled(n * sizeof *x);
    for (size_t i = 0; i < n; ++i) x[i] = (float)rng_below(r, 2001) / 1000.0f - 1.0f;
    return x;
}

/* Such numbers in a type of 16 bits. */
static inline void *halves(rng *r, int type, size_t n)
{
    float *x = floats(r, n);
    void *y = filled(2 * n);
    agk_traits(type)->from_float(x, y, (int64_t)n);
    free(x);
    return y;
}

#endif
