/* Strided copies by a kernel: one launch where the driver has a call for each row, or rows of a few bytes.
 *
 * The kernels are those that copy nodes (devices/cuda/kernels/cpy.cu), given to the device as a cubin when such a copy
 * first comes. They move words of 1 to 16 bytes within a device, or between it and the queue's ring of pinned memory,
 * which kernels reach at the address that the host has for it. Not here: which copies are staged (copy.c).
 * All but the setter is called by the issuing thread. */
#include <stdlib.h>

#include "state.h"

#define NARROW 512    /* from this many bytes per row on, the driver's two-dimensional copies are as good: a guess */
#define NARROW_ROWS 4 /* rows that may be narrow */
#define THREADS 256
#define MOST_Y 65535

/* struct Tensor and struct Node<1> of kernels/common.cuh. */
typedef struct operand {
    uint64_t data;
    int64_t ne[4], nb[4], type;
} operand;

typedef struct parameter {
    operand dst, src;
    int32_t p[16];
    int64_t aux[8];
    uint64_t scratch, fault;
    int64_t op;
} parameter;

enum { COPY_1, COPY_2, COPY_4, COPY_8, COPY_16, TURN_2, TURN_4, N_KERNELS = AG_CUDA_COPY_KERNELS };
static const char *const names[N_KERNELS] = {"copy_1",  "copy_2",      "copy_4",     "copy_8",
                                             "copy_16", "transpose_2", "transpose_4"};

/* Under its lock. */
static int load(ag_cuda_copier *copier)
{
    int code = ag_cu.cuLibraryLoadData(&copier->library, copier->image, NULL, NULL, 0, NULL, NULL, 0);
    for (int i = 0; i < N_KERNELS && code == AG_CU_OK; ++i) {
        size_t offset, size = 0;
        code = ag_cu.cuLibraryGetKernel(&copier->kernels[i], copier->library, names[i]);
        if (code == AG_CU_OK) code = ag_cu.cuKernelGetParamInfo(copier->kernels[i], 0, &offset, &size);
        if (code == AG_CU_OK && size != sizeof(parameter)) copier->useless = true;
    }
    if (code != AG_CU_OK) copier->useless = true;
    return code;
}

/* The kernel; NULL if there is none. */
static void *kernel_of(ag_cuda_queue *q, int which)
{
    ag_cuda_copier *copier = atomic_load(&q->device->copier);
    if (copier == NULL) return NULL;
    pthread_mutex_lock(&copier->lock);
    if (copier->library == NULL && !copier->useless) (void)load(copier);
    void *kernel = copier->useless ? NULL : copier->kernels[which];
    pthread_mutex_unlock(&copier->lock);
    return kernel;
}

static int dimensions(const ag_copy *c)
{
    int n = 4;
    while (n > 0 && c->ne[n - 1] == 1) --n;
    return n;
}

bool ag_cuda_is_scattered(const ag_copy *copy)
{
    ag_copy c = *copy;
    ag_copy_simplify(&c);
    int n = dimensions(&c);
    int64_t rows = c.ne[0] * c.ne[1] * c.ne[2] * c.ne[3], longest = 1, peer = 0;
    for (int d = 0; d < n; ++d) {
        if (c.ne[d] > longest) longest = c.ne[d];
        /* The driver's two-dimensional copy takes no step that is 0, negative or shorter than an item. */
        if (c.dst_nb[d] < (int64_t)c.item || c.src_nb[d] < (int64_t)c.item) peer = 1;
    }
    int64_t calls = peer ? rows : rows / longest;
    return rows > NARROW_ROWS && (calls > NARROW_ROWS || c.item < NARROW);
}

/* Whether the two sides do not overlap. */
static bool is_apart(const ag_copy *c)
{
    const uint8_t *first, *end, *from, *to;
    ag_cuda_extent(c->dst, c, c->dst_nb, &first, &end);
    ag_cuda_extent(c->src, c, c->src_nb, &from, &to);
    return end <= from || to <= first;
}

/* Of 1, 2, 4, 8 or 16 bytes: divides the item, addresses and steps. */
static size_t word_of(const ag_copy *c, int n)
{
    uint64_t all = (uint64_t)c->item | (uint64_t)(uintptr_t)c->dst | (uint64_t)(uintptr_t)c->src | 16u;
    for (int d = 0; d < n; ++d) all |= (uint64_t)c->dst_nb[d] | (uint64_t)c->src_nb[d];
    return (size_t)(all & (~all + 1));
}

/* As words: those of an item are a dimension of their own, the lowest, unless an item is one. */
static bool as_words(ag_copy *c)
{
    int n = dimensions(c);
    size_t word = word_of(c, n);
    if (word != c->item) {
        if (n == 4) return false;
        for (int d = n; d > 0; --d) {
            c->ne[d] = c->ne[d - 1];
            c->dst_nb[d] = c->dst_nb[d - 1];
            c->src_nb[d] = c->src_nb[d - 1];
        }
        c->ne[0] = (int64_t)(c->item / word);
        c->dst_nb[0] = c->src_nb[0] = (int64_t)word;
        c->item = word;
    }
    return true;
}

static void swap(int64_t *values)
{
    int64_t first = values[0];
    values[0] = values[1];
    values[1] = first;
}

/* One is dense along dimension 0, the other along 1: made such that it is the source that is turned. */
static bool turn_source(ag_copy *c)
{
    int64_t word = (int64_t)c->item;
    if ((word != 2 && word != 4) || c->ne[0] < 8 || c->ne[1] < 8) return false;
    if (c->dst_nb[0] == word && c->src_nb[1] == word) return true;
    if (c->dst_nb[1] != word || c->src_nb[0] != word) return false;
    swap(c->ne);
    swap(c->dst_nb);
    swap(c->src_nb);
    return true;
}

static operand operand_of(const uint8_t *data, const int64_t *ne, const int64_t *nb)
{
    operand o = {.data = (uint64_t)(uintptr_t)data};
    memcpy(o.ne, ne, sizeof o.ne);
    memcpy(o.nb, nb, sizeof o.nb);
    return o;
}

static unsigned ceiling(int64_t n, int64_t by)
{
    return (unsigned)((n + by - 1) / by);
}

/* As rows_by_columns of devices/cuda/pack.py, and the tiles of 32 x 32 of cpy.cu. */
static void shape(const ag_copy *c, bool turn, ag_cu_launch_config *config)
{
    int64_t rows = c->ne[1] * c->ne[2] * c->ne[3], planes = c->ne[2] * c->ne[3];
    unsigned x = 32;
    config->grid[2] = config->block[2] = 1;
    if (turn) {
        config->grid[0] = ceiling(c->ne[0], 32) * ceiling(c->ne[1], 32);
        config->grid[1] = (unsigned)(planes < MOST_Y ? planes : MOST_Y);
        config->block[0] = 32;
        config->block[1] = 8;
        return;
    }
    while (x < THREADS && 4 * (int64_t)x < c->ne[0]) x *= 2;
    config->block[0] = x;
    config->block[1] = THREADS / x;
    config->grid[0] = ceiling(c->ne[0], 4 * (int64_t)x);
    config->grid[1] = ceiling(rows < MOST_Y ? rows : MOST_Y, (int64_t)config->block[1]);
}

bool ag_cuda_copy_by_kernel(ag_cuda_issue *issue, const ag_copy *copy, int *code)
{
    if (!ag_cuda_device_has_copier(issue->queue->device) || !ag_cuda_is_scattered(copy) || !is_apart(copy))
        return false;
    ag_copy c = *copy;
    ag_copy_simplify(&c);
    if (!as_words(&c)) return false;
    bool turn = turn_source(&c);
    int which = COPY_1;
    while (c.item >> (which + 1) != 0) ++which;
    if (turn) which = c.item == 2 ? TURN_2 : TURN_4;
    void *kernel = kernel_of(issue->queue, which);
    if (kernel == NULL) return false;
    parameter given = {.dst = operand_of(c.dst, c.ne, c.dst_nb), .src = operand_of(c.src, c.ne, c.src_nb)};
    void *parameters[] = {&given};
    ag_cu_launch_config config = {.stream = issue->queue->cuda};
    shape(&c, turn, &config);
    *code = AG_CU(issue, cuLaunchKernelEx, &config, kernel, parameters, NULL);
    issue->ran = issue->ran || *code == AG_CU_OK;
    return true;
}
