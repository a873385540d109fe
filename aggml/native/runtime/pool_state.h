/* The pool's state, for the files that make it up: threadpool.c (workers), pool_sleep.c (those that sleep), plan_run.c
 * (plans under way). */
#ifndef AG_POOL_STATE_H
#define AG_POOL_STATE_H

#include "internal.h"

#define AG_MAX_THREADS 512
#define AG_SLICE_NS 200000 /* a plan gives way to another stream after this long, at a node boundary */

/* A plan under way. Runs live in the pool for ever, so looking at one that has just ended is harmless. */
/* What comes next is in memory, and who waits for the last chunk of others has nothing to do: it asks for it, into L2.
 *
 * Weights of one step, each stream of its chunks (agk_in_streams) from its begin on but the first, which the leader takes. Read
 * by other threads while it is changed: what they ask for then is of no use, and harmless. */
typedef struct ag_fetch {
    _Alignas(64) atomic_uintptr_t base; /* 0: nothing to fetch */
    atomic_size_t chunk_bytes;
    atomic_uint chunks, streams, done; /* pieces that somebody has asked for */
} ag_fetch;

typedef struct ag_run {
    _Alignas(64) atomic_uint_fast64_t word;
    _Alignas(64) atomic_uint_fast32_t done;
    atomic_int engaged; /* threads in this run; at most `limit` */
    atomic_int limit;
    atomic_int status;   /* agk_status of the first chunk that failed */
    atomic_bool skipped; /* an abort let chunks out */
    size_t failed;       /* the step of that chunk */
    atomic_bool taken;
    /* written before `word` is published, valid while chunks are outstanding */
    ag_stream *stream;
    ag_slot *slot;
    ag_plan *plan;
    uintptr_t arena;
    size_t head; /* the step that was published last */
    uint64_t slice_end;
    int n_streams; /* limit, as it was when the plan began: the same for all chunks of a step */
    char message[AGK_MESSAGE];
    pthread_mutex_t message_lock;
} ag_run;

struct ag_pool {
    ag_executor executor;
    atomic_int refs;
    ag_pool_params params;
    unsigned generation;
    pthread_mutex_t lock;
    ag_stream *ready_head, *ready_tail;
    atomic_int n_ready;
    atomic_int sleepers;
    atomic_uint_fast64_t crowded_until; /* ns: a worker that was sent to another core waited there */
    atomic_int spinners;
    atomic_int active_runs;
    atomic_bool stop, paused;
    atomic_int n_threads;
    atomic_int width; /* of them, what a plan uses whose stream names no number */
    atomic_int alive;
    atomic_bool orphaned;
    ag_fetch fetch;
    ag_worker *workers[AG_MAX_THREADS];
    ag_run runs[]; /* AG_MAX_THREADS are too many to scan: n_runs, one per thread that can lead */
};

#define AG_N_RUNS 32 /* plans under way at the same time; further ones run on their leader alone */

/* A run's word: 24 bits step, 20 bits number of chunks, 20 bits next chunk. Claims beyond the end cannot overflow,
 * since a thread looks before it claims and there are at most 512. */
static inline bool ag_claimable(uint64_t word)
{
    return ((uint32_t)word & 0xfffff) < ((uint32_t)(word >> 20) & 0xfffff);
}

typedef enum ag_part { AG_IDLED, AG_HELPED, AG_LEFT } ag_part; /* LEFT: no longer counted as engaged in the run */

bool ag_pool_fetch(ag_pool *pool); /* one piece of what comes next; false: there is none */
/* Work on this run while there is something to claim; the plan's end or yield is handled inside. */
ag_part ag_run_participate(ag_pool *pool, ag_worker *worker, ag_run *run);
void ag_pool_wake(ag_pool *pool, int n);        /* sleeping workers, up to n */
void ag_pool_wake_locked(ag_pool *pool, int n); /* by who holds the pool's lock */
bool ag_pool_anything(ag_pool *pool);           /* is there something to do? */
void ag_pool_sleep(ag_pool *pool, ag_worker *worker);

#endif
