/* Streams that are ready: a queue for each bank of memory, first come, first served. A worker whose queue is empty
 * takes from the others.
 *
 * A single queue would have one lock that 128 threads contend for, and streams would move from socket to socket,
 * away from the caches with their data. Not here: what a worker does with a stream (threadpool.c), which worker is
 * woken (pool_sleep.c). */
#include "pool_state.h"
#include "stream_state.h"

/* Wakes one sleeper, next to the stream if possible. */
static void wake_one(ag_pool *pool, int woken, int home)
{
    for (int i = 1; i < pool->n_banks && woken == 0; ++i) {
        ag_bank *bank = &pool->banks[(home + i) % pool->n_banks];
        if (atomic_load(&bank->sleepers) == 0) continue;
        pthread_mutex_lock(&bank->lock);
        woken = ag_pool_wake_locked(pool, bank, 1);
        pthread_mutex_unlock(&bank->lock);
    }
}

void ag_pool_ready(ag_executor *executor, ag_stream *stream)
{
    ag_pool *pool = (ag_pool *)executor; /* the executor is the first member of the pool */
    if (stream->bank < 0) stream->bank = stream->timer.bank % pool->n_banks;
    const int at = stream->bank; /* the stream may be gone once it is in the queue */
    ag_bank *bank = &pool->banks[at];
    pthread_mutex_lock(&bank->lock);
    /* new work ends a pause, as in ggml, so that nobody waits for a resume that never comes */
    atomic_store(&pool->paused, false);
    stream->next_ready = NULL;
    if (bank->ready_tail != NULL) {
        bank->ready_tail->next_ready = stream;
    } else {
        bank->ready_head = stream;
    }
    bank->ready_tail = stream;
    atomic_fetch_add(&bank->n_ready, 1);
    const int woken = ag_pool_wake_locked(pool, bank, 1);
    pthread_mutex_unlock(&bank->lock);
    wake_one(pool, woken, at);
}

static ag_stream *pop(ag_bank *bank)
{
    if (atomic_load(&bank->n_ready) == 0) return NULL;
    pthread_mutex_lock(&bank->lock);
    ag_stream *stream = bank->ready_head;
    if (stream != NULL) {
        bank->ready_head = stream->next_ready;
        if (bank->ready_head == NULL) bank->ready_tail = NULL;
        atomic_fetch_sub(&bank->n_ready, 1);
    }
    pthread_mutex_unlock(&bank->lock);
    return stream;
}

ag_stream *ag_pool_pop(ag_pool *pool, ag_worker *worker)
{
    for (int i = 0; i < pool->n_banks; ++i) {
        ag_stream *stream = pop(&pool->banks[(worker->bank + i) % pool->n_banks]);
        if (stream == NULL) continue;
        stream->bank = worker->bank;
        return stream;
    }
    return NULL;
}
