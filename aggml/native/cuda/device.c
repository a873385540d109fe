/* CUDA devices: errors, context, memory, access to each other's memory, the end of a device. Not here: streams
 * (queue.c). */
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_CUDA];
static ag_cuda_device *all;

/* -- errors --------------------------------------------------------------------------------------------------- */

bool ag_cuda_sticky(int code)
{
    switch (code) {
    case 4:   /* the driver is shutting down */
    case 46:  /* device unavailable */
    case 214: /* uncorrectable memory or link errors */
    case 220:
    case 226:
    case 700: /* illegal address */
    case 702: /* launch timed out */
    case 709: /* context destroyed */
    case 710: /* assert */
    case 714: /* stack, instruction, alignment, address space, program counter */
    case 715:
    case 716:
    case 717:
    case 718:
    case 719: /* launch failed */
    case 721: /* memory of tensor cores was not given back */
    case 999: return true;
    default: return false;
    }
}

ag_error *ag_cuda_error(ag_cuda_device *device, int code, const char *call, const char *operation, const char *tensor)
{
    const char *name = NULL, *what = NULL;
    if (ag_cu.cuGetErrorName(code, &name) != AG_CU_OK || name == NULL) name = "an unknown error";
    if (ag_cu.cuGetErrorString(code, &what) != AG_CU_OK || what == NULL) what = "";
    char text[256];
    snprintf(text, sizeof text, "%s: %s (%d) %.150s", call, name, code, what);
    ag_error *error = ag_error_new(code == AG_CU_OUT_OF_MEMORY ? AG_NO_MEMORY : AG_DEVICE_ERROR, device->name,
                                   operation, tensor, text);
    if (ag_cuda_sticky(code)) ag_cuda_lose(device, error);
    return error;
}

void ag_cuda_lose(ag_cuda_device *device, ag_error *error)
{
    ag_error *none = NULL, *mine = ag_error_ref(error);
    if (!atomic_compare_exchange_strong(&device->lost, &none, mine)) ag_error_unref(mine);
    pthread_mutex_lock(&device->lock);
    for (ag_cuda_queue *q = device->queues; q != NULL; q = q->next)
        ag_stream_lose(q->stream, atomic_load(&device->lost));
    pthread_mutex_unlock(&device->lock);
}

bool ag_cuda_device_set_blas(ag_cuda_device *device, const char *path)
{
    if (device->blas == NULL) device->blas = ag_cuda_blas_new(path);
    return device->blas != NULL;
}

bool ag_cuda_device_blas_problem(ag_cuda_device *device, char *text, size_t size)
{
    return device->blas != NULL && ag_cuda_here(device) && ag_cuda_blas_problem(device->blas, text, size);
}

/* The library is never unloaded, nor are those of modules. */
static void free_copier(ag_cuda_copier *copier)
{
    if (copier == NULL) return;
    pthread_mutex_destroy(&copier->lock);
    free(copier->image);
    free(copier);
}

bool ag_cuda_device_set_copier(ag_cuda_device *device, const void *image, size_t size)
{
    ag_cuda_copier *copier = calloc(1, sizeof *copier), *none = NULL;
    if (copier == NULL) return false;
    copier->image = malloc(size ? size : 1);
    if (copier->image == NULL) {
        free(copier);
        return false;
    }
    memcpy(copier->image, image, size);
    pthread_mutex_init(&copier->lock, NULL);
    if (!atomic_compare_exchange_strong(&device->copier, &none, copier)) free_copier(copier);
    return true;
}

bool ag_cuda_device_has_copier(ag_cuda_device *device)
{
    return atomic_load(&device->copier) != NULL;
}

bool ag_cuda_device_is_ready(ag_cuda_device *device)
{
    return atomic_load(&device->made);
}

ag_error *ag_cuda_device_lost(ag_cuda_device *device)
{
    return ag_error_ref(atomic_load(&device->lost));
}

static void forget(void) /* in the child of a fork: the devices are the parent's */
{
    all = NULL;
}

static void enlist(ag_cuda_device *device)
{
    ag_at_fork(AG_FORK_CUDA_DEVICES, forget);
    pthread_mutex_lock(all_lock);
    device->next = all;
    device->link = &all;
    if (all != NULL) all->link = &device->next;
    all = device;
    pthread_mutex_unlock(all_lock);
}

static void delist(ag_cuda_device *device)
{
    pthread_mutex_lock(all_lock);
    *device->link = device->next;
    if (device->next != NULL) device->next->link = device->link;
    pthread_mutex_unlock(all_lock);
}

/* -- life ----------------------------------------------------------------------------------------------------- */

ag_cuda_device *ag_cuda_device_new(int ordinal, const char *name)
{
    ag_runtime_init();
    ag_cuda_device *device = calloc(1, sizeof *device);
    if (device == NULL) return NULL;
    atomic_init(&device->refs, 1);
    device->generation = atomic_load(&ag_generation);
    device->ordinal = ordinal;
    snprintf(device->name, sizeof device->name, "%s", name);
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->making, NULL);
    enlist(device);
    return device;
}

ag_cuda_device *ag_cuda_device_ref(ag_cuda_device *device)
{
    atomic_fetch_add_explicit(&device->refs, 1, memory_order_relaxed);
    return device;
}

static void free_device(ag_cuda_device *device)
{
    ag_error_unref(atomic_load(&device->lost));
    ag_cuda_blas_free(device->blas);
    free_copier(atomic_load(&device->copier));
    free(device->trash);
    free(device->memory_trash);
    pthread_mutex_destroy(&device->lock);
    pthread_mutex_destroy(&device->making);
    free(device);
}

/* A chore. The context is not destroyed: it belongs to the process, and other libraries may use it. */
static void end_device(void *object, void *none)
{
    ag_cuda_device *device = object;
    (void)none;
    if (atomic_load(&device->lost) == NULL && ag_cuda_context(device) == AG_CU_OK) {
        ag_cuda_sweep(device);
        (void)ag_cu.cuStreamSynchronize(device->memory_stream); /* freed memory belongs to the pool again */
        (void)ag_cu.cuMemPoolDestroy(device->pool);
        (void)ag_cu.cuStreamDestroy(device->memory_stream);
    }
    free_device(device);
}

void ag_cuda_device_unref(ag_cuda_device *device)
{
    if (device == NULL || atomic_fetch_sub_explicit(&device->refs, 1, memory_order_acq_rel) != 1) return;
    if (!ag_cuda_here(device)) return;
    delist(device);
    if (atomic_load(&device->made)) {
        if (!ag_cuda_chores_post(end_device, device, NULL)) free_device(device);
    } else {
        free_device(device);
    }
}

static int make_pool(ag_cuda_device *device)
{
    ag_cu_pool_props props = {.kind = AG_CU_ALLOCATION_PINNED,
                              .location = {.kind = AG_CU_LOCATION_DEVICE, .id = device->ordinal}};
    uint64_t keep = UINT64_MAX; /* else the driver returns free memory to the system at each synchronisation */
    int code = ag_cu.cuMemPoolCreate(&device->pool, &props);
    if (code == AG_CU_OK) code = ag_cu.cuMemPoolSetAttribute(device->pool, AG_CU_POOL_RELEASE_THRESHOLD, &keep);
    return code;
}

int ag_cuda_context(ag_cuda_device *device)
{
    if (atomic_load(&device->made)) return ag_cu.cuCtxSetCurrent(device->context);
    int code = AG_CU_OK;
    pthread_mutex_lock(&device->making);
    if (device->context == NULL) code = ag_cu.cuDevicePrimaryCtxRetain(&device->context, device->ordinal);
    if (code == AG_CU_OK) code = ag_cu.cuCtxSetCurrent(device->context);
    if (code == AG_CU_OK && device->pool == NULL) code = make_pool(device);
    if (code == AG_CU_OK && device->memory_stream == NULL)
        code = ag_cu.cuStreamCreate(&device->memory_stream, AG_CU_STREAM_NON_BLOCKING);
    if (code == AG_CU_OK) atomic_store(&device->made, true);
    pthread_mutex_unlock(&device->making);
    return code;
}

/* For threads that are not ours: sets the device's context; `leave` restores the previous one. */
typedef struct visit {
    ag_cuda_device *device;
    void *before;
    const char *call;
    int code;
} visit;

static visit enter(ag_cuda_device *device)
{
    visit v = {.device = device, .call = "cuDevicePrimaryCtxRetain", .code = AG_CU_NOT_INITIALIZED};
    if (!ag_cuda_here(device)) return v;
    if (ag_cu.cuCtxGetCurrent(&v.before) != AG_CU_OK) v.before = NULL;
    v.code = ag_cuda_context(device);
    return v;
}

static ag_error *leave(visit *v, const char *operation)
{
    if (!ag_cuda_here(v->device))
        return ag_error_new(AG_DEVICE_ERROR, v->device->name, operation, NULL,
                            "CUDA cannot be used after fork: start workers with spawn");
    ag_error *error = v->code == AG_CU_OK ? NULL : ag_cuda_error(v->device, v->code, v->call, operation, NULL);
    (void)ag_cu.cuCtxSetCurrent(v->before);
    return error;
}

/* Runs the call if all calls before it succeeded. */
#define TRY(v, entry, ...) \
    do { \
        if ((v).code == AG_CU_OK) (v).call = #entry, (v).code = ag_cu.entry(__VA_ARGS__); \
    } while (0)

/* -- memory --------------------------------------------------------------------------------------------------- */

ag_error *ag_cuda_alloc(ag_cuda_device *device, size_t size, uint64_t *address)
{
    visit v = enter(device);
    if (v.code == AG_CU_OK) ag_cuda_sweep(device);
    size = (size + 255) & ~(size_t)255; /* kernels may read the last 16 bytes whole */
    TRY(v, cuMemAllocFromPoolAsync, address, size, device->pool, device->memory_stream);
    if (v.code == AG_CU_OK) {
        /* Other streams may use the memory from here on: this stream only allocates and frees memory. */
        v.call = "cuStreamSynchronize";
        v.code = ag_cu.cuStreamSynchronize(device->memory_stream);
        if (v.code != AG_CU_OK) (void)ag_cu.cuMemFreeAsync(*address, device->memory_stream);
    }
    return leave(&v, "alloc");
}

ag_error *ag_cuda_trim(ag_cuda_device *device)
{
    visit v = enter(device);
    if (v.code == AG_CU_OK) ag_cuda_chores_wait();
    if (v.code == AG_CU_OK) ag_cuda_sweep(device);
    TRY(v, cuStreamSynchronize, device->memory_stream);
    TRY(v, cuMemPoolTrimTo, device->pool, 0);
    return leave(&v, "trim");
}

ag_error *ag_cuda_memory(ag_cuda_device *device, size_t *free_bytes, size_t *total)
{
    visit v = enter(device);
    if (v.code == AG_CU_OK) ag_cuda_sweep(device);
    TRY(v, cuMemGetInfo, free_bytes, total);
    return leave(&v, "memory");
}

ag_error *ag_cuda_host_alloc(ag_cuda_device *device, size_t size, void **address)
{
    visit v = enter(device);
    if (v.code == AG_CU_OK) ag_cuda_sweep(device);
    TRY(v, cuMemHostAlloc, address, size, AG_CU_HOST_PORTABLE);
    if (v.code == AG_CU_OUT_OF_MEMORY) { /* buffers that were thrown away may not be free yet */
        ag_cuda_chores_wait();
        v.code = AG_CU_OK;
        TRY(v, cuMemHostAlloc, address, size, AG_CU_HOST_PORTABLE);
    }
    return leave(&v, "alloc");
}

ag_error *ag_cuda_host_register(ag_cuda_device *device, void *address, size_t size, bool read_only)
{
    visit v = enter(device);
    unsigned flags = AG_CU_REGISTER_PORTABLE | (read_only ? AG_CU_REGISTER_READ_ONLY : 0u);
    TRY(v, cuMemHostRegister, address, size, flags);
    return leave(&v, "register_host");
}

void ag_cuda_host_unregister(ag_cuda_device *device, void *address)
{
    visit v = enter(device);
    TRY(v, cuMemHostUnregister, address);
    ag_error_unref(leave(&v, "register_host"));
}

/* -- buffers and modules that are thrown away ------------------------------------------------------------------ */

static void append(void ***list, size_t *n, size_t *cap, void *thing)
{
    if (*n == *cap) {
        size_t grown = *cap ? 2 * *cap : 16;
        void **more = realloc(*list, grown * sizeof *more);
        if (more == NULL) return; /* then the item leaks */
        *list = more;
        *cap = grown;
    }
    (*list)[(*n)++] = thing;
}

void ag_cuda_throw_away(ag_cuda_device *device, void *graph)
{
    if (!ag_cuda_here(device)) return;
    pthread_mutex_lock(&device->lock);
    append(&device->trash, &device->n_trash, &device->cap_trash, graph);
    pthread_mutex_unlock(&device->lock);
}

/* The thread that drops a buffer may be running an event loop. Even a short driver call keeps it waiting while the
 * driver loads a module for another thread. So the next thread that may wait frees the buffer. */
void ag_cuda_free(ag_cuda_device *device, uint64_t address)
{
    if (!ag_cuda_here(device)) return;
    if (!atomic_load(&device->made) || atomic_load(&device->lost) != NULL) return; /* it went with the context */
    pthread_mutex_lock(&device->lock);
    append(&device->memory_trash, &device->n_memory_trash, &device->cap_memory_trash, (void *)(uintptr_t)address);
    pthread_mutex_unlock(&device->lock);
}

void ag_cuda_sweep(ag_cuda_device *device)
{
    for (;;) {
        void *graph = NULL, *memory = NULL;
        pthread_mutex_lock(&device->lock);
        if (device->n_trash > 0) graph = device->trash[--device->n_trash];
        if (device->n_memory_trash > 0) memory = device->memory_trash[--device->n_memory_trash];
        pthread_mutex_unlock(&device->lock);
        if (graph == NULL && memory == NULL) return;
        /* No launch is ever before it in that stream. */
        if (memory != NULL) (void)ag_cu.cuMemFreeAsync((uint64_t)(uintptr_t)memory, device->memory_stream);
        if (graph != NULL) (void)ag_cu.cuGraphExecDestroy(graph);
    }
}

static void free_host(void *object, void *host) /* a chore */
{
    ag_cuda_device *device = object;
    if (ag_cuda_context(device) == AG_CU_OK) (void)ag_cu.cuMemFreeHost(host);
    ag_cuda_device_unref(device);
}

void ag_cuda_host_free(ag_cuda_device *device, void *address)
{
    if (!ag_cuda_here(device)) return;
    ag_cuda_device_ref(device);
    if (!ag_cuda_chores_post(free_host, device, address)) ag_cuda_device_unref(device); /* then the memory leaks */
}

/* -- access of GPUs to each other's memory, so that copies between two GPUs need not go through the host ------------
 *
 * At first only its own GPU can access a pool. A copy may be issued on either side, so both pools are opened to the
 * other GPU, and so are the pools of every further device of the two GPUs. */

/* A device that has a pool of `ordinal` which `peer` was not let to yet, with a reference; NULL: none is left. */
static ag_cuda_device *closed_to(int ordinal, int peer)
{
    ag_cuda_device *found = NULL;
    pthread_mutex_lock(all_lock);
    for (ag_cuda_device *d = all; d != NULL && found == NULL; d = d->next) {
        if (d->ordinal != ordinal || !atomic_load(&d->made) || (d->peers >> peer & 1) != 0) continue;
        int refs = atomic_load(&d->refs);
        while (refs > 0 && !atomic_compare_exchange_weak(&d->refs, &refs, refs + 1)) continue;
        if (refs == 0) continue; /* the device is about to be freed */
        d->peers |= UINT64_C(1) << peer;
        found = d;
    }
    pthread_mutex_unlock(all_lock);
    return found;
}

static void open_pools(int ordinal, int peer)
{
    ag_cu_access access = {.location = {.kind = AG_CU_LOCATION_DEVICE, .id = peer}, .flags = AG_CU_ACCESS_READ_WRITE};
    int can = 0;
    for (ag_cuda_device *d; (d = closed_to(ordinal, peer)) != NULL; ag_cuda_device_unref(d)) {
        if (ag_cu.cuDeviceCanAccessPeer(&can, peer, ordinal) != AG_CU_OK || !can) continue;
        (void)ag_cu.cuMemPoolSetAccess(d->pool, &access, 1); /* access refused: copies go through the host */
    }
}

void ag_cuda_reach(int one, int two)
{
    if (one == two || one < 0 || two < 0 || one >= 64 || two >= 64) return;
    open_pools(one, two);
    open_pools(two, one);
}
