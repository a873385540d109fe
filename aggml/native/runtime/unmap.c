/* Large mappings are given back by a thread of their own, because the kernel takes its time: for a GB 2.3 ms in huge
 * pages, 60 ms in pages of 4 KB, 27 ms of a file that is in memory. The last reference to a model's weights is often
 * dropped by an event loop, which must not stand still meanwhile.
 *
 * The thread starts with the first range and ends with the last one. Not here: who maps (packing.c,
 * binding/mapped_file.cpp). */
#define _DEFAULT_SOURCE /* madvise */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "internal.h"

/* Starting the thread takes as long as unmapping 1 MB in small pages does; handing memory to it takes less than
 * unmapping 64 KB. */
enum { START = 1 << 20, HAND_OVER = 1 << 16, SLICE = 16 << 20 };

typedef struct range {
    struct range *next;
    char *data;
    size_t size;
} range;

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_UNMAP]; /* guards both variables that follow */
static range *given_back;
static bool serving; /* the thread exists; it is at work as long as it does */

static void forget(void)
{
    /* the thread is the parent's, and so is its memory: the child keeps its copies of those pages */
    given_back = NULL;
    serving = false;
}

static range *take(void)
{
    pthread_mutex_lock(lock);
    range *r = given_back;
    if (r != NULL) given_back = r->next;
    serving = r != NULL;
    pthread_mutex_unlock(lock);
    return r;
}

static void *serve(void *unused)
{
    ag_sched_worker();
    for (range *r; (r = take()) != NULL; free(r)) {
        /* Whoever maps or unmaps waits for the kernel to be done with a whole call, so it gets slices. They end where
         * a huge page does, because half a huge page would have to be split. */
        char *const end = r->data + r->size;
        for (char *at = r->data; at < end;) {
            size_t n = SLICE - ((uintptr_t)at & (SLICE - 1));
            if (n > (size_t)(end - at)) n = (size_t)(end - at);
            madvise(at, n, MADV_DONTNEED);
            at += n;
        }
        munmap(r->data, r->size);
    }
    return unused;
}

static bool give_back(void *data, size_t size)
{
    range *r = malloc(sizeof *r);
    if (r == NULL) return false;
    ag_at_fork(AG_FORK_UNMAP, forget);
    pthread_t thread;
    pthread_mutex_lock(lock);
    const bool served = serving || (size >= START && ag_thread_start(&thread, serve, NULL, true));
    if (served) {
        *r = (range){.next = given_back, .data = data, .size = size};
        given_back = r;
        serving = true;
    }
    pthread_mutex_unlock(lock);
    if (!served) free(r);
    return served;
}

void ag_unmap(void *data, size_t size)
{
    if (size < HAND_OVER || !give_back(data, size)) munmap(data, size);
}

bool ag_unmapped(void)
{
    bool waited = false;
    for (;;) {
        pthread_mutex_lock(lock);
        const bool busy = serving;
        pthread_mutex_unlock(lock);
        if (!busy) return waited;
        waited = true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
