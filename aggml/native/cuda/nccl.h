/* Sums over several GPUs by NCCL, as streams and the binding use them: groups (nccl.c) and sums (sum.c). */
#ifndef AG_CUDA_NCCL_H
#define AG_CUDA_NCCL_H

#include "runtime/runtime.h"

typedef struct ag_cuda_device ag_cuda_device;
typedef struct ag_cuda_group ag_cuda_group;
typedef struct ag_cuda_sum ag_cuda_sum;

/* -- groups (nccl.c): several GPUs, each with a communicator of NCCL */

/* Takes references to the devices, which are different GPUs; loads nothing. NULL: no memory. */
ag_cuda_group *ag_cuda_group_new(ag_cuda_device *const *devices, size_t n, const char *path);
ag_cuda_group *ag_cuda_group_ref(ag_cuda_group *group);
void ag_cuda_group_unref(ag_cuda_group *group); /* a thread that may wait destroys the communicators */

/* Loads the library and makes the communicators, once; takes up to seconds. An error (a reference), or NULL. Without
 * this call the first sum does it. */
ag_error *ag_cuda_group_open(ag_cuda_group *group);
ag_error *ag_cuda_group_error(ag_cuda_group *group); /* why the group makes no more sums (a reference), or NULL */

typedef struct ag_cuda_part { /* what one GPU contributes to a sum */
    uint64_t send, recv;      /* addresses on that GPU */
    void *stream;
} ag_cuda_part;

/* Enqueues one sum, for all GPUs together; `parts` are in the order of the devices. */
ag_error *ag_cuda_group_sum(ag_cuda_group *group, const ag_cuda_part *parts, size_t count, int type);
/* While a sum is under way: aborts all communicators if NCCL reports an error, or if one of the GPUs is lost, so that
 * no kernel waits for a GPU that never joins. */
void ag_cuda_group_check(ag_cuda_group *group);
size_t ag_cuda_group_size(const ag_cuda_group *group);

/* -- sums (sum.c): one place in the plans of all GPUs, where their issuing threads meet */

/* `type`: 0 f32, 1 f16, 2 bf16. */
ag_cuda_sum *ag_cuda_sum_new(ag_cuda_group *group, size_t count, int type);
ag_cuda_sum *ag_cuda_sum_ref(ag_cuda_sum *sum);
void ag_cuda_sum_unref(ag_cuda_sum *sum);

#endif
