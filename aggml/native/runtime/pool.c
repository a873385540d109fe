/* The life of a pool: its references, its end, pauses.
 *
 * Not here: what its workers do, and starting them (threadpool.c), which of them sleep (pool_sleep.c). */
#include <stdio.h>
#include <stdlib.h>

#include "pool_state.h"
#include "stream_state.h"

static pthread_mutex_t *const living = &ag_locks[AG_LOCK_LIVING];
static _Thread_local const ag_pool *my_pool; /* the pool that this thread works for */

bool ag_pool_here(const ag_pool *pool)
{
    return pool->generation == atomic_load(&ag_generation);
}

void ag_pool_enter(const ag_pool *pool)
{
    my_pool = pool;
}

static void free_pool(ag_pool *pool)
{
    int n = atomic_load(&pool->n_threads);
    for (int i = 0; i < n; ++i) {
        pthread_cond_destroy(&pool->workers[i]->wake);
        free(pool->workers[i]->scratch);
        free(pool->workers[i]);
    }
    for (int i = 0; i < AG_N_RUNS; ++i) pthread_mutex_destroy(&pool->runs[i].message_lock);
    for (int i = 0; i < AG_MAX_BANKS; ++i) pthread_mutex_destroy(&pool->banks[i].lock);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void ag_pool_leave(ag_pool *pool)
{
    if (atomic_fetch_sub(&pool->alive, 1) == 1 && atomic_load(&pool->orphaned)) free_pool(pool);
}

ag_pool *ag_pool_ref(ag_pool *pool)
{
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
    return pool;
}

void ag_pool_stop(ag_pool *pool)
{
    if (!ag_pool_here(pool)) return;
    atomic_store(&pool->life, AG_POOL_CLOSED);
    pthread_mutex_lock(&pool->lock);
    bool first = !atomic_exchange(&pool->stop, true);
    ag_pool_wake_all(pool);
    int n = atomic_load(&pool->n_threads);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; first && i < n; ++i) pthread_join(pool->workers[i]->thread, NULL);
}

void ag_pool_unref(ag_pool *pool)
{
    if (pool == NULL || atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1) return;
    if (!ag_pool_here(pool)) return;
    ag_living_remove_pool(pool);
    if (my_pool != pool) {
        ag_pool_stop(pool);
        free_pool(pool);
        return;
    }
    /* A worker dropped the last reference (at the end of a stream) and cannot join itself. The last worker to leave
     * frees the pool. */
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->orphaned, true);
    int n = atomic_load(&pool->n_threads);
    for (int i = 0; i < n; ++i) pthread_detach(pool->workers[i]->thread);
    atomic_store(&pool->stop, true);
    pthread_mutex_unlock(&pool->lock);
    ag_pool_wake_all(pool); /* this worker is one of them, so the pool exists until it leaves */
}

bool ag_pool_takes(ag_pool *pool)
{
    int life = atomic_load(&pool->life);
    if (life == AG_POOL_CLOSING) atomic_compare_exchange_strong(&pool->life, &life, AG_POOL_OPEN);
    return life != AG_POOL_CLOSED;
}

bool ag_pool_stopping(const ag_pool *pool)
{
    return atomic_load_explicit(&pool->stop, memory_order_relaxed);
}

int ag_pool_n_threads(const ag_pool *pool)
{
    return atomic_load(&pool->n_threads);
}
int ag_pool_width(const ag_pool *pool)
{
    return atomic_load(&pool->width);
}
const ag_worker *ag_pool_worker(const ag_pool *pool, int index)
{
    return pool->workers[index];
}
ag_executor *ag_pool_executor(ag_pool *pool)
{
    return &pool->executor;
}

void ag_pool_pause(ag_pool *pool)
{
    atomic_store(&pool->paused, true);
}

void ag_pool_resume(ag_pool *pool)
{
    if (!ag_pool_here(pool)) return;
    atomic_store(&pool->paused, false);
    ag_pool_wake_all(pool);
}

bool ag_pool_paused(const ag_pool *pool)
{
    return atomic_load(&pool->paused);
}

int ag_pool_sleepers(const ag_pool *pool)
{
    int n = 0;
    for (int i = 0; i < pool->n_banks; ++i) n += atomic_load(&pool->banks[i].sleepers);
    return n;
}

/* -- the end ------------------------------------------------------------------------------------------------------- */

/* The first stream of the pool that has work; the lock of the living is held. */
static bool find_work(const ag_pool *pool, char *name, uint64_t *pending)
{
    for (ag_stream *s = ag_living_streams(); s != NULL; s = s->next_living) {
        if (s->pool != pool) continue;
        pthread_mutex_lock(&s->lock);
        *pending = s->appended - atomic_load(&s->completed);
        pthread_mutex_unlock(&s->lock);
        if (*pending == 0) continue;
        memcpy(name, s->name, AG_NAME);
        return true;
    }
    return false;
}

bool ag_pool_close(ag_pool *pool, char *name, uint64_t *pending)
{
    if (!ag_pool_here(pool)) return true; /* the threads are the parent's */
    bool used = false;
    pthread_mutex_lock(living);
    while (!used) {
        int life = AG_POOL_OPEN;
        if (!atomic_compare_exchange_strong(&pool->life, &life, AG_POOL_CLOSING)) break; /* it was closed before */
        used = find_work(pool, name, pending);
        /* A submission to a stream that was looked at already reopens the pool (ag_pool_takes). Then look once more. */
        life = AG_POOL_CLOSING;
        atomic_compare_exchange_strong(&pool->life, &life, used ? AG_POOL_OPEN : AG_POOL_CLOSED);
    }
    pthread_mutex_unlock(living);
    if (!used) ag_pool_stop(pool);
    return !used;
}

/* A pool that has not been stopped yet, with a reference; NULL: none is left. */
static ag_pool *next_to_stop(void)
{
    ag_pool *found = NULL;
    pthread_mutex_lock(living);
    for (ag_pool *pool = ag_living_pools(); pool != NULL && found == NULL; pool = pool->next_living) {
        int refs = atomic_load(&pool->refs);
        while (refs > 0 && !atomic_compare_exchange_weak(&pool->refs, &refs, refs + 1)) continue;
        if (refs == 0) continue; /* the thread that dropped the last reference stops it */
        if (ag_pool_stopping(pool)) {
            atomic_fetch_sub(&pool->refs, 1);
        } else {
            found = pool;
        }
    }
    pthread_mutex_unlock(living);
    return found;
}

void ag_pools_stop(void)
{
    for (ag_pool *pool = next_to_stop(); pool != NULL; pool = next_to_stop()) {
        ag_pool_stop(pool);
        ag_pool_unref(pool);
    }
}
