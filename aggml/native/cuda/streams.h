/* CUDA devices, their streams and plans, as the binding sees them. Entries of the driver are in driver.h.
 *
 * A device has one context (the primary one), one memory pool, and any number of queues. A queue is what carries out an
 * ag_stream: a thread that issues its operations (the only one to make driver calls that can block), and one that waits
 * for recorded events and settles them. Nothing here takes the GIL, and no host function is ever enqueued. */
#ifndef AG_CUDA_STREAMS_H
#define AG_CUDA_STREAMS_H

#include "nccl.h"
#include "runtime/runtime.h"

typedef struct ag_cuda_module ag_cuda_module;
typedef struct ag_cuda_plan ag_cuda_plan;

/* -- devices (device.c) */

ag_cuda_device *ag_cuda_device_new(int ordinal, const char *name); /* touches no driver */
ag_cuda_device *ag_cuda_device_ref(ag_cuda_device *device);
void ag_cuda_device_unref(ag_cuda_device *device);
bool ag_cuda_device_set_blas(ag_cuda_device *device, const char *path); /* once; loads nothing. False: no memory */
/* As ag_cuda_blas_problem; false without a library as well. */
bool ag_cuda_device_blas_problem(ag_cuda_device *device, char *text, size_t size);
/* The cubin of kernels/cpy.cu, by which strided copies go from then on; the first one counts. False: no memory. */
bool ag_cuda_device_set_copier(ag_cuda_device *device, const void *image, size_t size);
bool ag_cuda_device_has_copier(ag_cuda_device *device);
bool ag_cuda_device_is_ready(ag_cuda_device *device);  /* it has a context: no call has to make one any more */
ag_error *ag_cuda_device_lost(ag_cuda_device *device); /* a reference, or NULL */

/* Calls that may block, for threads that may: each makes the context if there is none yet, and leaves the thread's own
 * context as it was. They return an error (a reference), or NULL. */
ag_error *ag_cuda_alloc(ag_cuda_device *device, size_t size, uint64_t *address);
ag_error *ag_cuda_trim(ag_cuda_device *device); /* free memory goes back to the driver */
ag_error *ag_cuda_memory(ag_cuda_device *device, size_t *free, size_t *total);
ag_error *ag_cuda_host_alloc(ag_cuda_device *device, size_t size, void **address);
ag_error *ag_cuda_host_register(ag_cuda_device *device, void *address, size_t size, bool read_only);
void ag_cuda_host_unregister(ag_cuda_device *device, void *address);
/* These never block, nor call the driver: a thread that may wait frees the memory. No work may be using it. */
void ag_cuda_free(ag_cuda_device *device, uint64_t address);
void ag_cuda_host_free(ag_cuda_device *device, void *address);
int ag_cuda_hands(void); /* how many threads of this process help the issuing threads to gather pageable memory */

/* -- streams (queue.c) */

ag_stream *ag_cuda_stream(ag_cuda_device *device, const char *name); /* NULL: no memory, or no thread */
void ag_cuda_stop(uint64_t timeout_ns); /* all threads end once the device has finished the operations issued */

/* -- modules and plans (plan.c) */

ag_cuda_module *ag_cuda_module_new(ag_cuda_device *device, const char *name);
void ag_cuda_module_unref(ag_cuda_module *module);
bool ag_cuda_module_has_image(ag_cuda_module *module);
bool ag_cuda_module_set_image(ag_cuda_module *module, const void *image, size_t size); /* the first one counts */

/* `overlaps`: a kernel of it may be launched while the one before runs; each waits by itself. */
ag_cuda_plan *ag_cuda_plan_new(ag_cuda_device *device, bool overlaps);
void ag_cuda_plan_free(ag_cuda_plan *plan);
/* A node's name and op, for messages; `fault`: where its 32 bytes lie in the arena, -1 without. */
bool ag_cuda_plan_node(ag_cuda_plan *plan, const char *name, const char *op, int64_t fault);
/* One more launch of the latest node. `relative`: where in `args` addresses stand that count from the arena. */
bool ag_cuda_plan_launch(ag_cuda_plan *plan, ag_cuda_module *module, const char *kernel, const unsigned grid[3],
                         const unsigned block[3], unsigned shared, const void *args, size_t size,
                         const uint32_t *relative, size_t n_relative);
/* When the last launch added is executed: AG_CUDA_ALWAYS, or only where the node's products can, or cannot, be left
 * to cuBLASLt. */
enum { AG_CUDA_ALWAYS, AG_CUDA_WITH_BLAS, AG_CUDA_WITHOUT_BLAS };
void ag_cuda_plan_when(ag_cuda_plan *plan, int when);
/* A product by cuBLASLt, as one more launch of the latest node; false: no memory, or `args` is no ag_cuda_gemm. */
bool ag_cuda_plan_gemm(ag_cuda_plan *plan, const void *args, size_t size, const uint32_t *relative, size_t n_relative);
/* Bytes of the arena that are to be zeros when a run begins; those of all faults follow them. */
void ag_cuda_plan_zeroes(ag_cuda_plan *plan, uint64_t offset, size_t size);
/* Makes the plan one sum over several GPUs, of whose plans the one of `rank` this is; it has no launches. */
void ag_cuda_plan_sum(ag_cuda_plan *plan, ag_cuda_sum *sum, size_t rank, uint64_t send, uint64_t recv);
/* The plan's partial storage `index` (in the order of the seal) is written by the latest node. */
bool ag_cuda_plan_writes_partial(ag_cuda_plan *plan, size_t index);
/* Takes ownership of the plan. `scratch`: bytes that it needs; the queue that runs it provides them. */
void ag_cuda_plan_attach(ag_plan *plan, ag_cuda_plan *mine, size_t scratch);

#endif
