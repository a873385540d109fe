/* All streams and pools that live in this process, whoever holds them.
 *
 * A stream with work holds a reference to itself, so it lives on when Python has no reference left. Code that closes
 * a pool or ends the process must find such streams. Not here: how they end (stream.c, pool.c). */
#include "pool_state.h"
#include "stream_state.h"

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_LIVING];
static ag_stream *streams;
static ag_pool *pools;

static void forget(void)
{
    /* they are the parent's; each object tells so by its generation, and none of them enters these lists again */
    streams = NULL;
    pools = NULL;
}

void ag_living_add_stream(ag_stream *s)
{
    ag_at_fork(AG_FORK_LIVING, forget);
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
    ag_at_fork(AG_FORK_LIVING, forget);
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

ag_stream *ag_living_streams(void)
{
    return streams;
}

ag_pool *ag_living_pools(void)
{
    return pools;
}
