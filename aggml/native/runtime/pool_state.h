/* The pool's state, for the files that make it up: threadpool.c (workers), pool_ready.c (streams that wait for one),
 * pool_sleep.c (workers that sleep), plan_run.c (plans under way), plan_claim.c (who takes which chunk).
 * docs/notebook/many-cores.md says why. */
#ifndef AG_POOL_STATE_H
#define AG_POOL_STATE_H

#include "internal.h"
#include "topology.h"

#define AG_MAX_THREADS 512
#define AG_SLICE_NS 200000 /* a plan gives way to another stream after this long, at a node boundary */
#define AG_FEW_THREADS 8   /* such pools wake all helpers at once, and have a range of chunks for each thread */
#define AG_RANGES 16       /* of a step, at most, that are claimed one apart from the other */

/* The part of a pool that works next to one bank of memory: its own ready streams, its own sleepers, its own lock.
 * Streams stay with their bank unless another one has nothing to do. */
typedef struct ag_bank {
    _Alignas(64) pthread_mutex_t lock;
    ag_stream *ready_head, *ready_tail;
    ag_worker *asleep; /* who fell asleep last comes first: its cache is warm */
    int owed;          /* of the sleepers, who are still to be woken for a plan (pool_sleep.c) */
    _Alignas(64) atomic_int n_ready;
    atomic_int sleepers;
    atomic_bool owes;
} ag_bank;

/* What comes next is in memory, and who waits for the last chunk of others has nothing to do: it asks for it, into L2.
 *
 * Weights of one step, each stream of its chunks (agk_in_streams) from its begin on but the first, which the leader
 * takes. Read by other threads while it is changed: what they ask for then is of no use, and harmless. */
typedef struct ag_fetch {
    _Alignas(64) atomic_uintptr_t base; /* 0: nothing to fetch */
    atomic_size_t chunk_bytes;
    atomic_uint chunks, streams, done; /* pieces that somebody has asked for */
} ag_fetch;

/* Chunks of the steps that run now which one group of threads takes before those of others. */
typedef struct ag_range {
    _Alignas(64) atomic_uint_fast64_t word;
    _Alignas(64) atomic_uint_fast32_t done;
} ag_range;

/* A plan under way. Runs live in the pool for ever, so looking at one that has just ended is harmless. */
typedef struct ag_run {
    ag_range ranges[AG_RANGES];
    _Alignas(64) atomic_int n_ranges;
    atomic_int ranges_done;
    int ranges_live;    /* that have a chunk; written before the words are published, as what follows below */
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

/* CLOSING: all its streams are being looked at; a submission makes it OPEN again (living.c). */
typedef enum ag_pool_life { AG_POOL_OPEN, AG_POOL_CLOSING, AG_POOL_CLOSED } ag_pool_life;

struct ag_pool {
    ag_executor executor;
    atomic_int refs;
    ag_pool_params params;
    unsigned generation;
    ag_pool *next_living, **link_living;
    int n_banks;          /* here and not beside what is written often */
    atomic_int life;      /* an ag_pool_life */
    pthread_mutex_t lock; /* its threads: those that come, the end */
    ag_bank banks[AG_MAX_BANKS];
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

/* A chunk that a thread took (plan_claim.c), until it is counted as done. */
typedef struct ag_claim {
    ag_range *range;
    uint32_t of;        /* chunks that the range has */
    int ranges;         /* that have chunks */
    size_t step, after; /* the chunk's; the first one behind those that run together */
    uint32_t chunk;
} ag_claim;

void ag_run_open(ag_run *run, int n_banks, int limit); /* how many ranges its steps have */
void ag_run_publish(ag_run *run, size_t step);         /* from here on others may end the plan, and free it */
void ag_run_close(ag_run *run);                        /* nothing can be taken any more */
bool ag_run_claim(ag_run *run, ag_pool *pool, ag_worker *worker, ag_claim *claim);
bool ag_run_finish(ag_run *run, const ag_claim *claim); /* true: it was the last chunk that was out */

/* How many steps run together from this one on. */
static inline size_t ag_together(const ag_plan *plan, size_t step)
{
    return plan->steps[step].n_together > 1 ? plan->steps[step].n_together : 1;
}

typedef enum ag_part { AG_IDLED, AG_HELPED, AG_LEFT } ag_part; /* LEFT: no longer counted as engaged in the run */

bool ag_pool_fetch(ag_pool *pool); /* one piece of what comes next; false: there is none */
/* Work on this run while there is something to claim; the plan's end or yield is handled inside. */
ag_part ag_run_participate(ag_pool *pool, ag_worker *worker, ag_run *run);
bool ag_run_claimable(const ag_run *run); /* has it a chunk that nobody took? */

void ag_pool_wake_helpers(ag_pool *pool, ag_worker *worker, int n); /* up to n, for a plan that this worker leads */
void ag_pool_wake_owed(ag_pool *pool, ag_worker *worker, int n);    /* up to n that others have left to be woken */
int ag_pool_wake_locked(ag_pool *pool, ag_bank *bank, int n);       /* by who holds its lock; how many */
void ag_pool_wake_all(ag_pool *pool);
bool ag_pool_anything(ag_pool *pool); /* is there something to do? */
void ag_pool_sleep(ag_pool *pool, ag_worker *worker);

void ag_pool_ready(ag_executor *executor, ag_stream *stream);
ag_stream *ag_pool_pop(ag_pool *pool, ag_worker *worker); /* NULL: none is ready */

/* Is a stream ready anywhere in the pool? Asked before each step, of which the smallest take 10 ns. */
static inline bool ag_pool_any_ready(const ag_pool *pool)
{
    if (atomic_load_explicit(&pool->banks[0].n_ready, memory_order_relaxed) > 0) return true;
    for (int i = 1; i < pool->n_banks; ++i) {
        if (atomic_load_explicit(&pool->banks[i].n_ready, memory_order_relaxed) > 0) return true;
    }
    return false;
}

#endif
