/* Chores: calls that may wait for a device. A single thread of the process makes them, one after the other.
 *
 * cuMemFreeHost waits until every device has finished its work, so a stream that made the call would stall. This thread
 * also destroys a pool once its device is gone (device.c), and communicators of NCCL (nccl.c). Not here: freeing device
 * memory and graphs. That needs no wait, so any thread that may call the driver does it (ag_cuda_sweep in device.c). */
#include <stdlib.h>

#include "state.h"

typedef struct chore {
    struct chore *next;
    void (*run)(void *object, void *host);
    void *object, *host;
} chore;

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_CUDA];
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static chore *first, **last = &first;
static size_t pending;               /* chores in the list, plus the one that is running */
static bool at_work, stopping, over; /* over: the process ends, and what it holds ends with it */

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
        c->run(c->object, c->host);
        free(c);
        pthread_mutex_lock(lock);
        --pending;
        pthread_cond_broadcast(&changed);
    }
    at_work = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(lock);
    return NULL;
}

static void forget(void) /* in the child of a fork: the thread and what it was to do are the parent's */
{
    pthread_cond_init(&changed, NULL);
    first = NULL;
    last = &first;
    pending = 0;
    at_work = stopping = over = false;
}

bool ag_cuda_chores_post(void (*run)(void *object, void *host), void *object, void *host)
{
    pthread_t thread;
    chore *c = calloc(1, sizeof *c);
    if (c == NULL) return false;
    *c = (chore){.run = run, .object = object, .host = host};
    ag_at_fork(AG_FORK_CUDA_CHORES, forget);
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
