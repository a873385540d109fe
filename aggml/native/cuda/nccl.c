/* Groups of GPUs that NCCL sums over: the library, a communicator for each GPU, errors.
 *
 * One lock of the process is held over each call of NCCL that enqueues work. Two groups that share a GPU therefore
 * enqueue their sums in the same order on every GPU, as NCCL asks for, and no two threads use one communicator. Sums
 * are never captured into a CUDA graph: NVIDIA advises against that where one process has several GPUs, because the
 * launch of one GPU's graph may block before the others are launched. Not here: the threads of the GPUs, which have to
 * meet for each sum (sum.c). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

/* Signatures and numbers of NCCL 2; every result and every enumeration is an int, a communicator is a pointer. */
#define ENTRIES(X) \
    X(int, ncclCommInitAll, (void **comms, int n, const int *devices)) \
    X(int, ncclCommDestroy, (void *comm)) \
    X(int, ncclCommAbort, (void *comm)) \
    X(int, ncclCommGetAsyncError, (void *comm, int *result)) \
    X(int, ncclAllReduce, \
      (const void *send, void *recv, size_t count, int type, int operation, void *comm, void *stream)) \
    X(int, ncclGroupStart, (void)) \
    X(int, ncclGroupEnd, (void)) \
    X(const char *, ncclGetErrorString, (int result)) \
    X(const char *, ncclGetLastError, (void *comm))

enum { OK = 0, IN_PROGRESS = 7, SUM = 0 };
static const int types[] = {7, 6, 9}; /* ncclFloat32, ncclFloat16, ncclBfloat16 */

typedef struct entries {
#define X(type, name, arguments) type(*name) arguments;
    ENTRIES(X)
#undef X
} entries;

struct ag_cuda_group {
    atomic_int refs;
    unsigned generation;
    size_t n;
    ag_cuda_device **devices;
    char *path;
    _Atomic(ag_error *) broken; /* set once */
    /* under AG_LOCK_NCCL */
    bool tried;
    entries entry;
    void **comms; /* NULL: not made, or aborted */
};

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_NCCL];

static void free_group(ag_cuda_group *group)
{
    for (size_t i = 0; i < group->n; ++i) ag_cuda_device_unref(group->devices[i]);
    ag_error_unref(atomic_load(&group->broken));
    free(group->devices);
    free(group->comms);
    free(group->path);
    free(group);
}

ag_cuda_group *ag_cuda_group_new(ag_cuda_device *const *devices, size_t n, const char *path)
{
    ag_cuda_group *group = calloc(1, sizeof *group);
    if (group == NULL) return NULL;
    atomic_init(&group->refs, 1);
    group->generation = atomic_load(&ag_generation);
    group->path = strdup(path);
    group->devices = calloc(n, sizeof *group->devices);
    if (group->path == NULL || group->devices == NULL) {
        free_group(group);
        return NULL;
    }
    for (; group->n < n; ++group->n) group->devices[group->n] = ag_cuda_device_ref(devices[group->n]);
    return group;
}

ag_cuda_group *ag_cuda_group_ref(ag_cuda_group *group)
{
    atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    return group;
}

static void end_group(void *object, void *none) /* a chore */
{
    ag_cuda_group *group = object;
    (void)none;
    pthread_mutex_lock(lock);
    for (size_t i = 0; group->comms != NULL && i < group->n; ++i) (void)group->entry.ncclCommDestroy(group->comms[i]);
    pthread_mutex_unlock(lock);
    free_group(group);
}

void ag_cuda_group_unref(ag_cuda_group *group)
{
    if (group == NULL || atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) != 1) return;
    if (group->generation != atomic_load(&ag_generation))
        return; /* the group belongs to the parent process: nothing of it is touched */
    if (group->comms == NULL) {
        free_group(group);
    } else {
        (void)ag_cuda_chores_post(end_group, group, NULL); /* else it leaks: the process ends */
    }
}

size_t ag_cuda_group_size(const ag_cuda_group *group)
{
    return group->n;
}

ag_error *ag_cuda_group_error(ag_cuda_group *group)
{
    return ag_error_ref(atomic_load(&group->broken));
}

/* -- errors: the lock is held ------------------------------------------------------------------------------------- */

static void set_broken(ag_cuda_group *group, ag_error *error)
{
    ag_error *none = NULL;
    if (!atomic_compare_exchange_strong(&group->broken, &none, error)) ag_error_unref(error);
}

/* Ends the kernels of the group that still run. The group makes no more sums. */
static void break_off(ag_cuda_group *group, ag_error *error)
{
    set_broken(group, error);
    void **comms = group->comms;
    group->comms = NULL;
    for (size_t i = 0; comms != NULL && i < group->n; ++i) (void)group->entry.ncclCommAbort(comms[i]);
    free(comms);
}

static ag_error *nccl_error(const ag_cuda_group *group, const char *call, int result)
{
    const char *what = group->entry.ncclGetErrorString(result), *last = group->entry.ncclGetLastError(NULL);
    char text[256];
    snprintf(text, sizeof text, "%s: %.90s (%d) %.120s", call, what != NULL ? what : "", result,
             last != NULL ? last : "");
    return ag_error_new(AG_DEVICE_ERROR, group->devices[0]->name, "all_reduce", NULL, text);
}

static ag_error *unusable(const ag_cuda_group *group, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "%.190s; AGGML_CUDA_NCCL=0 does without NCCL", why);
    return ag_error_new(AG_UNSUPPORTED, group->devices[0]->name, "all_reduce", NULL, text);
}

/* -- the library: the lock is held -------------------------------------------------------------------------------- */

static bool find(void *library, const char *name, void *entry)
{
    void *address = dlsym(library, name);
    memcpy(entry, &address, sizeof address); /* C has no conversion to a function */
    return address != NULL;
}

static ag_error *load(ag_cuda_group *group)
{
    char text[200];
    void *library = dlopen(group->path, RTLD_NOW | RTLD_LOCAL); /* never unloaded: its threads may run until the end */
    if (library == NULL) {
        const char *why = dlerror();
        snprintf(text, sizeof text, "NCCL cannot be loaded: %.150s", why != NULL ? why : group->path);
        return unusable(group, text);
    }
    const char *lacking = NULL;
#define X(type, name, arguments) \
    if (!find(library, #name, &group->entry.name)) lacking = #name;
    ENTRIES(X)
#undef X
    if (lacking == NULL) return NULL;
    snprintf(text, sizeof text, "NCCL (%.120s) has no %s", group->path, lacking);
    return unusable(group, text);
}

static ag_error *make_comms(ag_cuda_group *group)
{
    void **comms = calloc(group->n, sizeof *comms);
    int *ordinals = calloc(group->n, sizeof *ordinals);
    ag_error *error = NULL;
    if (comms == NULL || ordinals == NULL)
        error = ag_error_new(AG_NO_MEMORY, group->devices[0]->name, "all_reduce", NULL, "no memory");
    for (size_t i = 0; i < group->n && error == NULL; ++i) { /* NCCL computes in the same contexts */
        ordinals[i] = group->devices[i]->ordinal;
        int code = ag_cuda_context(group->devices[i]);
        if (code != AG_CU_OK)
            error = ag_cuda_error(group->devices[i], code, "cuDevicePrimaryCtxRetain", "all_reduce", NULL);
    }
    int result = error == NULL ? group->entry.ncclCommInitAll(comms, (int)group->n, ordinals) : OK;
    if (result != OK) error = nccl_error(group, "ncclCommInitAll", result);
    free(ordinals);
    if (error == NULL) {
        group->comms = comms;
    } else {
        free(comms);
    }
    return error;
}

static ag_error *open_once(ag_cuda_group *group)
{
    if (!group->tried) {
        group->tried = true;
        void *before = NULL;
        (void)ag_cu.cuCtxGetCurrent(&before);
        ag_error *error = load(group);
        if (error == NULL) error = make_comms(group);
        (void)ag_cu.cuCtxSetCurrent(before);
        if (error != NULL) set_broken(group, error);
    }
    return ag_cuda_group_error(group);
}

ag_error *ag_cuda_group_open(ag_cuda_group *group)
{
    pthread_mutex_lock(lock);
    ag_error *error = open_once(group);
    pthread_mutex_unlock(lock);
    return error;
}

/* -- sums --------------------------------------------------------------------------------------------------------- */

static int enqueue(ag_cuda_group *group, const ag_cuda_part *parts, size_t count, int type, const char **call)
{
    *call = "ncclGroupStart";
    int result = group->entry.ncclGroupStart();
    if (result != OK) return result;
    for (size_t i = 0; i < group->n && result == OK; ++i) {
        *call = "ncclAllReduce";
        result = group->entry.ncclAllReduce((const void *)(uintptr_t)parts[i].send, (void *)(uintptr_t)parts[i].recv,
                                            count, types[type], SUM, group->comms[i], parts[i].stream);
    }
    int ended = group->entry.ncclGroupEnd(); /* also after a failure: else the thread stays in the group */
    if (result != OK) return result;
    *call = "ncclGroupEnd";
    return ended;
}

ag_error *ag_cuda_group_sum(ag_cuda_group *group, const ag_cuda_part *parts, size_t count, int type)
{
    pthread_mutex_lock(lock);
    ag_error *error = open_once(group);
    if (error == NULL) {
        const char *call;
        void *before = NULL;
        (void)ag_cu.cuCtxGetCurrent(&before);
        int result = enqueue(group, parts, count, type, &call);
        if (result != OK) { /* some GPUs may have begun, and would wait for the others */
            break_off(group, nccl_error(group, call, result));
            error = ag_cuda_group_error(group);
        }
        (void)ag_cu.cuCtxSetCurrent(before);
    }
    pthread_mutex_unlock(lock);
    return error;
}

static ag_error *find_fault(ag_cuda_group *group)
{
    for (size_t i = 0; i < group->n; ++i) {
        ag_error *lost = atomic_load(&group->devices[i]->lost);
        if (lost != NULL) return ag_error_ref(lost);
        int result = OK;
        int asked = group->entry.ncclCommGetAsyncError(group->comms[i], &result);
        if (asked != OK) return nccl_error(group, "ncclCommGetAsyncError", asked);
        if (result != OK && result != IN_PROGRESS) return nccl_error(group, "ncclAllReduce", result);
    }
    return NULL;
}

void ag_cuda_group_check(ag_cuda_group *group)
{
    /* Who holds it makes communicators or enqueues a sum: the next look comes soon. */
    if (pthread_mutex_trylock(lock) != 0) return;
    ag_error *error = group->comms != NULL ? find_fault(group) : NULL;
    if (error != NULL) break_off(group, error);
    pthread_mutex_unlock(lock);
}
