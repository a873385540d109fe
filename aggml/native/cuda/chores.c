/* Driver calls that may wait for the device: a single thread of the process makes them, one after the other.
 *
 * cuMemFreeHost waits until every device has finished its work, so a stream that made the call would stall. This thread
 * also destroys a pool once its device is gone, and communicators of NCCL. Not here: freeing device memory and graphs.
 * That needs no wait, so any thread that may call the driver does it (ag_cuda_sweep in device.c). */
#include <stdlib.h>

#include "state.h"

typedef struct chore {
    struct chore *next;
    ag_cuda_device
        *device; /* a reference; if `host` is NULL, the last reference is gone and the chore owns the device */
    void *host;
    ag_cuda_group *group; /* the chore owns this group and ends it; `device` is then NULL */
} chore;

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_CUDA];
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static chore *first, **last = &first;
static size_t pending;               /* chores in the list, plus the one that is running */
static bool at_work, stopping, over; /* over: the process ends, and what it holds ends with it */

static void do_chore(chore *c)
{
    if (c->group != NULL) {
        ag_cuda_group_end(c->group);
    } else if (c->host == NULL) {
        ag_cuda_device_end(c->device);
    } else {
        if (ag_cuda_context(c->device) == AG_CU_OK) (void)ag_cu.cuMemFreeHost(c->host);
        ag_cuda_device_unref(c->device);
    }
    free(c);
}

static void *work(void *argument)
{
    (void)argument;
    pthread_mutex_lock(lock);
    for (;;) {
        while (first == NULL && !stopping) pthread_cond_wait(&changed, lock);
        if (first == NULL) break;
        chore *c = first;
        first = c->next;
        if (first == NULL) last = &first;
        pthread_mutex_unlock(lock);
        do_chore(c);
        pthread_mutex_lock(lock);
        --pending;
        pthread_cond_broadcast(&changed);
    }
    at_work = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(lock);
    return NULL;
}

/* False: no thread will run the chore. */
static bool put(ag_cuda_device *device, void *host, ag_cuda_group *group)
{
    pthread_t thread;
    chore *c = calloc(1, sizeof *c);
    if (c == NULL) return false;
    *c = (chore){.device = device, .host = host, .group = group};
    pthread_mutex_lock(lock);
    bool fits = !over && (at_work || ag_thread_start(&thread, work, NULL, true));
    if (fits) {
        at_work = true;
        ++pending;
        *last = c;
        last = &c->next;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(lock);
    if (!fits) free(c);
    return fits;
}

void ag_cuda_host_free(ag_cuda_device *device, void *address)
{
    if (!ag_cuda_here(device)) return;
    if (!put(ag_cuda_device_ref(device), address, NULL)) ag_cuda_device_unref(device); /* then the memory leaks */
}

void ag_cuda_end_later(ag_cuda_device *device)
{
    if (!put(device, NULL, NULL)) ag_cuda_device_free(device);
}

void ag_cuda_end_group_later(ag_cuda_group *group)
{
    (void)put(NULL, NULL, group); /* else it leaks: the process ends */
}

void ag_cuda_chores_begin(void)
{
    pthread_mutex_lock(lock);
    over = false;
    pthread_mutex_unlock(lock);
}

void ag_cuda_chores_wait(void)
{
    pthread_mutex_lock(lock);
    while (at_work && pending > 0) pthread_cond_wait(&changed, lock);
    pthread_mutex_unlock(lock);
}

void ag_cuda_chores_end(const struct timespec *until)
{
    pthread_mutex_lock(lock);
    stopping = true;
    pthread_cond_broadcast(&changed);
    while (at_work && pthread_cond_timedwait(&changed, lock, until) == 0) continue;
    stopping = false;
    over = true;
    pthread_mutex_unlock(lock);
}

void ag_cuda_chores_forked(void)
{
    pthread_cond_init(&changed, NULL);
    first = NULL;
    last = &first;
    pending = 0;
    at_work = stopping = over = false;
}
