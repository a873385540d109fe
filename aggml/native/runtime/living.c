/* All streams and pools that live in this process, whoever holds them.
 *
 * A stream with work holds a reference to itself, so it lives on when Python has no reference left. Code that closes
 * a pool or ends the process must find such streams. Not here: what a stream does when it is closed or aborted
 * (stream.c), workers (threadpool.c). */
#include <stdlib.h>

#include "pool_state.h"
#include "stream_state.h"

static pthread_mutex_t *const lock =
    &ag_locks[AG_LOCK_LIVING]; /* lock order: this lock, then a stream's, then the timers' */
static ag_stream *streams;
static ag_pool *pools;

void ag_living_add_stream(ag_stream *s)
{
    pthread_mutex_lock(lock);
    s->next_living = streams;
    s->link_living = &streams;
    if (streams != NULL) streams->link_living = &s->next_living;
    streams = s;
    pthread_mutex_unlock(lock);
}

void ag_living_remove_stream(ag_stream *s)
{
    pthread_mutex_lock(lock);
    *s->link_living = s->next_living;
    if (s->next_living != NULL) s->next_living->link_living = s->link_living;
    pthread_mutex_unlock(lock);
}

void ag_living_add_pool(ag_pool *pool)
{
    pthread_mutex_lock(lock);
    pool->next_living = pools;
    pool->link_living = &pools;
    if (pools != NULL) pools->link_living = &pool->next_living;
    pools = pool;
    pthread_mutex_unlock(lock);
}

void ag_living_remove_pool(ag_pool *pool)
{
    pthread_mutex_lock(lock);
    *pool->link_living = pool->next_living;
    if (pool->next_living != NULL) pool->next_living->link_living = pool->link_living;
    pthread_mutex_unlock(lock);
}

void ag_living_forked(void)
{
    /* they are the parent's; each object tells so by its generation, and none of them enters these lists again */
    streams = NULL;
    pools = NULL;
}

/* -- the end of a pool -------------------------------------------------------------------------------------------- */

/* The first stream of the pool that has work; the lock is held. */
static bool busy(const ag_pool *pool, char *name, uint64_t *pending)
{
    for (ag_stream *s = streams; s != NULL; s = s->next_living) {
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
    if (pool->generation != atomic_load(&ag_generation)) return true; /* the threads are the parent's */
    bool used = false;
    pthread_mutex_lock(lock);
    while (!used) {
        int life = AG_POOL_OPEN;
        if (!atomic_compare_exchange_strong(&pool->life, &life, AG_POOL_CLOSING)) break; /* it was closed before */
        used = busy(pool, name, pending);
        /* A submission to a stream that was looked at already reopens the pool (ag_pool_takes). Then look once more. */
        life = AG_POOL_CLOSING;
        atomic_compare_exchange_strong(&pool->life, &life, used ? AG_POOL_OPEN : AG_POOL_CLOSED);
    }
    pthread_mutex_unlock(lock);
    if (!used) ag_pool_stop(pool);
    return !used;
}

/* -- the end of the process --------------------------------------------------------------------------------------- */

void ag_streams_end(void)
{
    pthread_mutex_lock(lock);
    for (ag_stream *s = streams; s != NULL; s = s->next_living) {
        ag_stream_close(s);
        ag_stream_abort_all(s);
    }
    pthread_mutex_unlock(lock);
}

/* A pool that has not been stopped yet, with a reference; NULL: none is left. */
static ag_pool *next_to_stop(void)
{
    ag_pool *found = NULL;
    pthread_mutex_lock(lock);
    for (ag_pool *pool = pools; pool != NULL && found == NULL; pool = pool->next_living) {
        int refs = atomic_load(&pool->refs);
        while (refs > 0 && !atomic_compare_exchange_weak(&pool->refs, &refs, refs + 1)) continue;
        if (refs == 0) continue; /* the thread that dropped the last reference stops it */
        if (ag_pool_stopping(pool)) {
            atomic_fetch_sub(&pool->refs, 1);
        } else {
            found = pool;
        }
    }
    pthread_mutex_unlock(lock);
    return found;
}

void ag_pools_stop(void)
{
    for (ag_pool *pool = next_to_stop(); pool != NULL; pool = next_to_stop()) {
        ag_pool_stop(pool);
        ag_pool_unref(pool);
    }
}
