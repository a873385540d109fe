/* Streams that are ready: a queue for each bank of memory. The stream that was served least comes first, of equal ones
 * the one that came first. A worker whose queue is empty takes from the others.
 *
 * A single queue would have one lock that 128 threads contend for, and streams would move from socket to socket,
 * away from the caches with their data. Not here: what a worker does with a stream (threadpool.c), how long it is
 * served (pool_turns.c), which worker is woken (pool_sleep.c). */
#include "pool_state.h"
#include "stream_state.h"

/* A stream that was served more than others waits for them at most so long. Usually it is a node longer than a slice;
 * this bounds what errors of counting can do. */
#define MOST_OWED_NS 100000000

#define LOOKED_AT 64 /* streams at the head of the queue that are compared; those behind them come later anyway */

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
    const uint64_t floor = atomic_load_explicit(&pool->floor, memory_order_relaxed);
    if (stream->served < floor) stream->served = floor;
    if (stream->served > floor + MOST_OWED_NS) stream->served = floor + MOST_OWED_NS;
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
    if (stream->served < atomic_load_explicit(&bank->least, memory_order_relaxed))
        atomic_store_explicit(&bank->least, stream->served, memory_order_relaxed);
    atomic_fetch_add(&bank->n_ready, 1);
    const int woken = ag_pool_wake_locked(pool, bank, 1);
    pthread_mutex_unlock(&bank->lock);
    wake_one(pool, woken, at);
}

/* Takes the stream that was served least out of the queue; the lock is held. */
static ag_stream *take_least(ag_bank *bank)
{
    ag_stream *best = bank->ready_head, *before_best = NULL, *before = NULL;
    uint64_t next = AG_NOBODY; /* the least of the others */
    int i = 0;
    for (ag_stream *s = best; s != NULL && i < LOOKED_AT; before = s, s = s->next_ready, ++i) {
        if (s == best) continue;
        if (s->served >= best->served) {
            if (s->served < next) next = s->served;
            continue;
        }
        next = best->served;
        best = s;
        before_best = before;
    }
    atomic_store_explicit(&bank->least, next, memory_order_relaxed);
    if (best == NULL) return NULL;
    *(before_best != NULL ? &before_best->next_ready : &bank->ready_head) = best->next_ready;
    if (bank->ready_tail == best) bank->ready_tail = before_best;
    atomic_fetch_sub(&bank->n_ready, 1);
    return best;
}

static ag_stream *pop(ag_bank *bank)
{
    if (atomic_load(&bank->n_ready) == 0) return NULL;
    pthread_mutex_lock(&bank->lock);
    ag_stream *stream = take_least(bank);
    pthread_mutex_unlock(&bank->lock);
    return stream;
}

ag_stream *ag_pool_pop(ag_pool *pool, ag_worker *worker)
{
    for (int i = 0; i < pool->n_banks; ++i) {
        ag_stream *stream = pop(&pool->banks[(worker->bank + i) % pool->n_banks]);
        if (stream == NULL) continue;
        stream->bank = worker->bank;
        ag_turn_raise_floor(pool, stream->served);
        return stream;
    }
    return NULL;
}
