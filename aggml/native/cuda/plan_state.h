/* The parts of a plan of launches, for plan.c, which builds it, and plan_run.c, which runs it. */
#ifndef AG_CUDA_PLAN_STATE_H
#define AG_CUDA_PLAN_STATE_H

#include "state.h"

/* A cubin, loaded by the issuing thread when a kernel of it is first needed. */
struct ag_cuda_module {
    atomic_int refs;
    ag_cuda_device *device;
    char name[AG_NAME];
    pthread_mutex_t lock;
    _Atomic(void *) image; /* set once */
    void *library;
};

typedef struct relative {
    size_t at;      /* in the plan's argument bytes */
    uint64_t value; /* bytes from the arena's begin */
} relative;

typedef struct launch {
    ag_cuda_module *module;
    char name[AG_NAME];
    void *kernel; /* NULL: not looked up yet */
    unsigned grid[3], block[3], shared;
    size_t args, size; /* the kernel's one parameter */
    size_t node;
    int when;
    bool gemm; /* a product by cuBLASLt, not a kernel: args is an ag_cuda_gemm */
    const ag_cuda_blas_shape *shape;
} launch;

typedef struct node {
    char name[AG_NAME], op[32];
    int64_t fault;      /* from the arena's begin, or -1 */
    bool gemm, kernels; /* the node has products for cuBLASLt; kernels compute them instead */
} node;

struct ag_cuda_plan {
    ag_cuda_device *device;
    node *nodes;
    size_t n_nodes, cap_nodes;
    launch *launches;
    size_t n_launches, cap_launches;
    uint8_t *args;
    size_t n_args, cap_args;
    relative *relatives;
    size_t n_relatives, cap_relatives;
    size_t *partial_nodes; /* for each partial storage, the latest node that writes it */
    size_t n_partial;
    int64_t first_fault;
    size_t n_faults;
    uint64_t zeroes; /* bytes from the arena's begin that are to be zeros, before those of the faults */
    size_t n_zeroes;
    size_t scratch;
    ag_cuda_sum *sum; /* the plan is this sum over several GPUs, and nothing else; NULL: launches */
    size_t rank;      /* of the device in it */
    ag_cuda_part part;
    bool overlaps; /* a kernel may begin before its predecessor has ended: every kernel waits by itself */
    /* the issuing thread's */
    bool looked_up;
    uintptr_t arena; /* that args hold; graph: that it was captured with */
    void *graph;
    uintptr_t graph_arena;
    bool ran;
};

#endif
