/* The CUDA driver as the runtime calls it: a table of entries, filled at run time; no header and no library of
 * NVIDIA's.
 *
 * Signatures are those of CUDA 13.0, which is the version that the addresses are asked for (devices/cuda/driver.py).
 * Handles are void *, addresses of device memory uint64_t, a CUresult is an int. */
#ifndef AG_CUDA_DRIVER_H
#define AG_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ag_cu_copy_2d { /* CUDA_MEMCPY2D */
    size_t src_x, src_y;
    int src_kind; /* AG_CU_HOST, AG_CU_DEVICE */
    const void *src_host;
    uint64_t src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_kind;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} ag_cu_copy_2d;

typedef struct ag_cu_location { /* CUmemLocation */
    int kind;                   /* AG_CU_LOCATION_DEVICE */
    int id;
} ag_cu_location;

typedef struct ag_cu_pool_props { /* CUmemPoolProps */
    int kind;                     /* AG_CU_ALLOCATION_PINNED */
    int handle_types;
    ag_cu_location location;
    void *security;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} ag_cu_pool_props;

typedef struct ag_cu_access { /* CUmemAccessDesc */
    ag_cu_location location;
    int flags;
} ag_cu_access;

typedef struct ag_cu_update_info { /* CUgraphExecUpdateResultInfo */
    int result;
    void *node, *from_node;
} ag_cu_update_info;

typedef struct ag_cu_launch_attribute { /* CUlaunchAttribute */
    int id;                             /* AG_CU_LAUNCH_PROGRAMMATIC */
    int padding;
    int value[16];
} ag_cu_launch_attribute;

typedef struct ag_cu_launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    ag_cu_launch_attribute *attributes;
    unsigned n_attributes;
} ag_cu_launch_config;

enum {
    AG_CU_OK = 0,
    AG_CU_OUT_OF_MEMORY = 2,
    AG_CU_NOT_INITIALIZED = 3,
    AG_CU_ALREADY_REGISTERED = 712,
    AG_CU_NOT_READY = 600,
    AG_CU_UPDATE_REFUSED = 910,
};
enum { AG_CU_HOST = 1, AG_CU_DEVICE = 2, AG_CU_UNIFIED = 4 };
enum { AG_CU_LOCATION_DEVICE = 1, AG_CU_ALLOCATION_PINNED = 1, AG_CU_ACCESS_READ_WRITE = 3 };
enum { AG_CU_STREAM_NON_BLOCKING = 1, AG_CU_EVENT_BLOCKING_NO_TIMING = 3, AG_CU_CAPTURE_THREAD_LOCAL = 1 };
enum { AG_CU_HOST_PORTABLE = 1, AG_CU_REGISTER_PORTABLE = 1, AG_CU_REGISTER_READ_ONLY = 8 };
enum {
    AG_CU_POOL_RELEASE_THRESHOLD = 4,
    AG_CU_POINTER_KIND = 2,
    AG_CU_POINTER_DEVICE = 9,
    AG_CU_MAX_DYNAMIC_SHARED = 8,
    AG_CU_LAUNCH_PROGRAMMATIC = 6
};

#define AG_CU_ENTRIES(X) \
    X(cuGetErrorName, (int code, const char **text)) \
    X(cuGetErrorString, (int code, const char **text)) \
    X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    X(cuDeviceCanAccessPeer, (int *can, int device, int peer)) \
    X(cuCtxSetCurrent, (void *context)) \
    X(cuCtxGetCurrent, (void **context)) \
    X(cuMemGetInfo, (size_t *free, size_t *total)) \
    X(cuMemPoolCreate, (void **pool, const ag_cu_pool_props *props)) \
    X(cuMemPoolDestroy, (void *pool)) \
    X(cuMemPoolSetAttribute, (void *pool, int attribute, void *value)) \
    X(cuMemPoolSetAccess, (void *pool, const ag_cu_access *access, size_t n)) \
    X(cuMemPoolTrimTo, (void *pool, size_t keep)) \
    X(cuMemAllocFromPoolAsync, (uint64_t *address, size_t size, void *pool, void *stream)) \
    X(cuMemFreeAsync, (uint64_t address, void *stream)) \
    X(cuMemHostAlloc, (void **address, size_t size, unsigned flags)) \
    X(cuMemFreeHost, (void *address)) \
    X(cuMemHostRegister, (void *address, size_t size, unsigned flags)) \
    X(cuMemHostUnregister, (void *address)) \
    X(cuPointerGetAttributes, (unsigned n, const int *attributes, void **values, uint64_t address)) \
    X(cuStreamCreate, (void **stream, unsigned flags)) \
    X(cuStreamDestroy, (void *stream)) \
    X(cuStreamSynchronize, (void *stream)) \
    X(cuStreamBeginCapture, (void *stream, int mode)) \
    X(cuStreamEndCapture, (void *stream, void **graph)) \
    X(cuEventCreate, (void **event, unsigned flags)) \
    X(cuEventDestroy, (void *event)) \
    X(cuEventRecord, (void *event, void *stream)) \
    X(cuEventQuery, (void *event)) \
    X(cuEventSynchronize, (void *event)) \
    X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
    X(cuMemcpyHtoDAsync, (uint64_t dst, const void *src, size_t size, void *stream)) \
    X(cuMemcpyDtoHAsync, (void *dst, uint64_t src, size_t size, void *stream)) \
    X(cuMemcpyDtoDAsync, (uint64_t dst, uint64_t src, size_t size, void *stream)) \
    X(cuMemcpyPeerAsync, \
      (uint64_t dst, void *dst_context, uint64_t src, void *src_context, size_t size, void *stream)) \
    X(cuMemcpy2DAsync, (const ag_cu_copy_2d *copy, void *stream)) \
    X(cuMemsetD8Async, (uint64_t dst, unsigned char value, size_t size, void *stream)) \
    X(cuLibraryLoadData, (void **library, const void *image, void *jit_options, void **jit_values, unsigned n_jit, \
                          void *options, void **values, unsigned n)) \
    X(cuLibraryUnload, (void *library)) \
    X(cuLibraryGetKernel, (void **kernel, void *library, const char *name)) \
    X(cuKernelGetParamInfo, (void *kernel, size_t index, size_t *offset, size_t *size)) \
    X(cuKernelSetAttribute, (int attribute, int value, void *kernel, int device)) \
    X(cuLaunchKernelEx, (const ag_cu_launch_config *config, void *kernel, void **params, void **extra)) \
    X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
    X(cuGraphExecUpdate, (void *exec, void *graph, ag_cu_update_info *info)) \
    X(cuGraphLaunch, (void *exec, void *stream)) \
    X(cuGraphDestroy, (void *graph)) \
    X(cuGraphExecDestroy, (void *exec))

typedef struct ag_cu_table {
#define X(name, arguments) int(*name) arguments;
    AG_CU_ENTRIES(X)
#undef X
} ag_cu_table;

extern ag_cu_table ag_cu; /* complete before the first device is made, and never changed again */

extern const char *const ag_cu_names[];
extern const size_t ag_cu_n_names;
void ag_cu_set(size_t index, uintptr_t address); /* of ag_cu_names[index] */
bool ag_cu_complete(void);                       /* nothing is missing */

#endif
