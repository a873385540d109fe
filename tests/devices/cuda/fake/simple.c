/* A few kernels that compute a whole node in one block, and a launcher for them: enough to test streams and plans.
 *
 * Not here: the package's own kernels, which are tested on the host in test_kernels.py. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct view {
    char *data;
    int64_t ne[4], nb[4];
} view;

typedef struct node {
    view dst, a, b;
    int64_t op; /* 0 add, 1 mul, 2 get_rows, 3 set_rows, 4 copy, 5 crash */
    int64_t *fault;
} node;

EXPORT const unsigned simple_size = sizeof(node);

static float *at(const view *v, int64_t i, int64_t j, int64_t k, int64_t l)
{
    return (float *)(v->data + i * v->nb[0] + j * v->nb[1] + k * v->nb[2] + l * v->nb[3]);
}

static int64_t index_of(const view *v, int64_t i)
{
    const char *p = v->data + i * v->nb[0];
    int32_t narrow;
    int64_t wide;
    if (v->nb[0] == 8) return memcpy(&wide, p, 8), wide;
    return memcpy(&narrow, p, 4), narrow;
}

static int rows_ok(const node *n, const view *indices, int64_t rows)
{
    for (int64_t i = 0; i < indices->ne[0]; ++i) {
        int64_t row = index_of(indices, i);
        if (row >= 0 && row < rows) continue;
        n->fault[0] = 1;
        n->fault[1] = row;
        n->fault[2] = i;
        n->fault[3] = rows;
        return 0;
    }
    return 1;
}

EXPORT void simple(const void *args);
EXPORT void simple(const void *args)
{
    const node *n = args;
    const view *d = &n->dst, *a = &n->a, *b = &n->b;
    if (n->op == 2) {
        if (!rows_ok(n, b, a->ne[1])) return;
        for (int64_t j = 0; j < b->ne[0]; ++j)
            for (int64_t i = 0; i < d->ne[0]; ++i) *at(d, i, j, 0, 0) = *at(a, i, index_of(b, j), 0, 0);
        return;
    }
    if (n->op == 3) {
        if (!rows_ok(n, b, d->ne[1])) return;
        for (int64_t j = 0; j < b->ne[0]; ++j)
            for (int64_t i = 0; i < d->ne[0]; ++i) *at(d, i, index_of(b, j), 0, 0) = *at(a, i, j, 0, 0);
        return;
    }
    for (int64_t l = 0; l < d->ne[3]; ++l)
        for (int64_t k = 0; k < d->ne[2]; ++k)
            for (int64_t j = 0; j < d->ne[1]; ++j)
                for (int64_t i = 0; i < d->ne[0]; ++i) {
                    float x = *at(a, i, j, k, l), y = 0;
                    if (n->op < 2) y = *at(b, i % b->ne[0], j % b->ne[1], k % b->ne[2], l % b->ne[3]);
                    *at(d, i, j, k, l) = n->op == 0 ? x + y : n->op == 1 ? x * y : x;
                }
}

typedef void kernel(const void *args);

EXPORT const char *shim_launch(kernel *run, const void *args, const unsigned grid[3], const unsigned block[3],
                               unsigned shared, int order);
EXPORT const char *shim_launch(kernel *run, const void *args, const unsigned grid[3], const unsigned block[3],
                               unsigned shared, int order)
{
    (void)grid, (void)block, (void)shared, (void)order;
    if (((const node *)args)->op == 5) return "the kernel was told to fail";
    run(args);
    return NULL;
}
