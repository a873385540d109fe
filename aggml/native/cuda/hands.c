/* Threads that help the issuing thread to gather pageable memory into the staging ring.
 *
 * One core copies about 10 GB/s and a PCIe 5.0 link takes 55, so several threads share a run of pieces. The issuing
 * thread posts a run and gathers pieces too. It sends each piece in order once the piece is gathered. Not here: pieces
 * (copy.c). */
#include <stdlib.h>
#include <unistd.h>

#include "state.h"

#define MOST 3 /* helper threads; the issuing thread is not counted */

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_CUDA];
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER, gathered = PTHREAD_COND_INITIALIZER;
static ag_cuda_piece *first, **last = &first;
static int n_hands;
static bool stopping;

static void forget(void) /* in the child of a fork: the threads are the parent's */
{
    pthread_cond_init(&posted, NULL);
    pthread_cond_init(&gathered, NULL);
    first = NULL;
    last = &first;
    n_hands = 0;
    stopping = false;
}

/* Gathers the oldest piece that no thread has begun. The lock is held, but released while it copies. */
static void gather_one(void)
{
    ag_cuda_piece *piece = first;
    first = piece->next;
    if (first == NULL) last = &first;
    pthread_mutex_unlock(lock);
    ag_copy_run(&piece->near);
    pthread_mutex_lock(lock);
    piece->there = true; /* the piece may be gone from here on */
    pthread_cond_broadcast(&gathered);
}

static void *work(void *argument)
{
    (void)argument;
    pthread_mutex_lock(lock);
    while (!stopping) {
        if (first == NULL) {
            pthread_cond_wait(&posted, lock);
        } else {
            gather_one();
        }
    }
    --n_hands;
    pthread_cond_broadcast(&gathered);
    pthread_mutex_unlock(lock);
    return NULL;
}

void ag_cuda_gather(ag_cuda_piece *pieces, size_t n)
{
    pthread_t thread;
    if (n == 1) {
        ag_copy_run(&pieces->near);
        pieces->there = true;
        return;
    }
    ag_at_fork(AG_FORK_CUDA_HANDS, forget);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_mutex_lock(lock);
    for (size_t i = 0; i < n; ++i) {
        pieces[i].there = false;
        pieces[i].next = NULL;
        *last = &pieces[i];
        last = &pieces[i].next;
    }
    while (!stopping && n_hands < MOST && n_hands < cores - 1 && n_hands < (int)n - 1) {
        if (!ag_thread_start(&thread, work, NULL, true)) break;
        ++n_hands;
    }
    pthread_cond_broadcast(&posted);
    pthread_mutex_unlock(lock);
}

void ag_cuda_await_piece(ag_cuda_piece *piece)
{
    pthread_mutex_lock(lock);
    while (!piece->there) {
        if (first != NULL) {
            gather_one();
        } else {
            pthread_cond_wait(&gathered, lock);
        }
    }
    pthread_mutex_unlock(lock);
}

int ag_cuda_hands(void)
{
    pthread_mutex_lock(lock);
    int n = n_hands;
    pthread_mutex_unlock(lock);
    return n;
}

void ag_cuda_hands_end(const struct timespec *until)
{
    pthread_mutex_lock(lock);
    stopping = true;
    pthread_cond_broadcast(&posted);
    while (n_hands > 0 && pthread_cond_timedwait(&gathered, lock, until) == 0) continue;
    stopping = false;
    pthread_mutex_unlock(lock);
}
