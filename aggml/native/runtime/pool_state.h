/* The pool's state, for the files that implement it: pool.c (its life), threadpool.c (workers), pool_ready.c (streams
 * that wait for a worker), pool_turns.c (whose turn it is), pool_sleep.c (workers that sleep), plan_run.c (plans under
 * way), plan_claim.c (which thread takes which chunk). docs/notebook/many-cores.md gives the reasons. */
#ifndef AG_POOL_STATE_H
#define AG_POOL_STATE_H

#include "cores.h"
#include "internal.h"
#include "topology.h"

#define AG_MAX_THREADS 512
/* after so long a worker looks whose turn it is, at the end of a node or of a shared chunk */
#define AG_SLICE_NS 200000
/* pools up to this size wake all helpers at once, and have a range of chunks for each thread */
#define AG_SMALL_POOL 8
#define AG_RANGES 16 /* at most so many ranges of a step, from which threads claim separately */

/* The part of a pool that works next to one bank of memory: its own ready streams, sleepers and lock. Streams stay
 * with their bank unless another bank has nothing to do. */
typedef struct ag_bank {
    _Alignas(64) pthread_mutex_t lock;
    ag_stream *ready_head, *ready_tail;
    ag_worker *asleep; /* the worker that fell asleep last comes first, because its cache is warm */
    int owed;          /* how many of the sleepers are still to be woken for a plan (pool_sleep.c) */
    _Alignas(64) atomic_int n_ready;
    atomic_int sleepers;
    atomic_bool owes;
    atomic_uint_fast64_t least; /* the least `served` of the ready streams; AG_NOBODY: none is ready */
} ag_bank;

#define AG_NOBODY UINT64_MAX

/* Weights that the next steps read from memory. A thread that waits for the last chunks of others has nothing to do, so
 * it prefetches them into L2.
 *
 * These are the weights of one step. Of the chunks of each stream (plan_claim.c) the first one is left out, since
 * the leader takes it. Other threads read these fields while they are changed: what they prefetch then is useless
 * but harmless. */
typedef struct ag_fetch {
    _Alignas(64) atomic_uintptr_t base; /* 0: nothing to fetch */
    atomic_size_t chunk_bytes;
    atomic_uint chunks, streams, done; /* pieces that some thread has already prefetched */
    atomic_bool weighed; /* the streams are not equally long; then where each begins, and where the last one ends */
    atomic_uint begins[AG_SMALL_POOL + 1];
} ag_fetch;

/* Chunks of the steps that run now. One group of threads takes them before the chunks of other ranges. */
typedef struct ag_range {
    _Alignas(64) atomic_uint_fast64_t word;
    _Alignas(64) atomic_uint_fast32_t done;
} ag_range;

/* A plan under way. Runs live in the pool for ever, so looking at a run that has just ended is harmless. */
typedef struct ag_run {
    ag_range ranges[AG_RANGES];
    _Alignas(64) atomic_int n_ranges;
    atomic_int ranges_done;
    atomic_int publishing; /* threads that are writing the words of a step */
    int ranges_live;       /* ranges that have chunks; like the fields below, written before the words are published */
    atomic_int engaged;    /* threads in this run; at most `limit` */
    atomic_int limit;
    atomic_int status;   /* agk_status of the first chunk that failed */
    atomic_bool skipped; /* chunks were skipped because of an abort */
    size_t failed;       /* the step of that chunk */
    atomic_bool taken;
    /* written before `word` is published, valid while chunks are outstanding */
    ag_stream *stream;
    ag_slot *slot;
    ag_plan *plan;
    uintptr_t arena;
    size_t head; /* the step that was published last */
    uint64_t slice_end;
    int n_streams;               /* the limit when the plan began, the same for all chunks of a step */
    atomic_uint_fast64_t served; /* as that of the stream, while the plan is under way (pool_turns.c) */
    /* Threads run on cores that differ (cores.h): each range has a chunk for each of its threads, and its part of the
     * others, in 2^-32. What rounding leaves over goes to the ranges of the lowest ranks, which are the fastest. */
    bool weighed;
    uint32_t part[AG_RANGES];
    uint8_t rank[AG_RANGES], threads[AG_RANGES];
    char message[AGK_MESSAGE];
    pthread_mutex_t message_lock;
} ag_run;

/* CLOSING: all its streams are being looked at. A submission makes the pool OPEN again (living.c). */
typedef enum ag_pool_life { AG_POOL_OPEN, AG_POOL_CLOSING, AG_POOL_CLOSED } ag_pool_life;

struct ag_pool {
    ag_executor executor;
    atomic_int refs;
    ag_pool_params params;
    unsigned generation;
    ag_pool *next_living, **link_living;
    int n_banks;          /* kept here, away from the fields that are written often */
    bool uneven;          /* it has one bank, and cores that differ */
    atomic_int life;      /* an ag_pool_life */
    pthread_mutex_t lock; /* guards the starting of threads and the end of the pool */
    ag_bank banks[AG_MAX_BANKS];
    /* ns: until then cores count as crowded, because a worker that was sent to another core had to wait there */
    atomic_uint_fast64_t crowded_until;
    atomic_int spinners;
    atomic_int active_runs;
    atomic_uint_fast64_t floor; /* `served` of whoever had a turn last (pool_turns.c); it never falls */
    atomic_uint runs_left;      /* how many runs of plans have ended */
    atomic_bool stop, paused;
    atomic_int n_threads;
    atomic_int width; /* how many of the threads a plan uses if its stream names no number */
    atomic_int alive;
    atomic_bool orphaned;
    ag_fetch fetch;
    ag_worker *workers[AG_MAX_THREADS];
    /* of an uneven pool: the speed of the core where each worker ran last (cores.h) */
    _Alignas(64) atomic_uchar speed[AG_MAX_THREADS];
    /* only the first n_runs are scanned, one for each thread that can lead; AG_MAX_THREADS would be too many */
    ag_run runs[];
};

#define AG_N_RUNS 32 /* plans under way at the same time; further ones run on their leader alone */

/* A chunk that a thread took (plan_claim.c), until it is counted as done. */
typedef struct ag_claim {
    ag_range *range;
    uint32_t of;        /* chunks in the range */
    int ranges;         /* ranges that have chunks */
    size_t step, after; /* the step of the chunk; the first step behind those that run together */
    uint32_t chunk;
} ag_claim;

/* decides how many ranges its steps have, and how large they are */
void ag_run_open(ag_run *run, const ag_pool *pool, int limit);
/* the first chunk of a range of a weighed run, in a step of so many chunks; that of range n_ranges is `chunks` */
uint32_t ag_run_begins(const ag_run *run, int range, uint32_t chunks);
void ag_run_publish(ag_run *run, size_t step); /* from here on other threads may end the plan, and free it */
void ag_run_close(ag_run *run);                /* from here on nothing can be claimed */
bool ag_run_claim(ag_run *run, ag_pool *pool, ag_worker *worker, ag_claim *claim);
bool ag_run_finish(ag_run *run, const ag_claim *claim); /* true: it was the last outstanding chunk */

/* How many steps run together, counted from this one. */
static inline size_t ag_together(const ag_plan *plan, size_t step)
{
    return plan->steps[step].n_together > 1 ? plan->steps[step].n_together : 1;
}

/* LEFT: the thread no longer counts as engaged in the run */
typedef enum ag_part { AG_IDLED, AG_HELPED, AG_LEFT } ag_part;

/* How a plan came to an end, or to where it stops, and the stream that now has to go on. */
typedef struct ag_run_end {
    ag_run_result result;
    ag_stream *stream;
    size_t step;     /* where it goes on */
    ag_error *error; /* a reference, or NULL */
} ag_run_end;

bool ag_pool_fetch(ag_pool *pool); /* prefetches one piece of the next weights; false: there is none */
/* Works on this run while there is something to claim. LEFT: the plan has ended, yields or calls, as `end` says. */
ag_part ag_run_participate(ag_pool *pool, ag_worker *worker, ag_run *run, ag_run_end *end);
/* A run that several threads may share; NULL: the plan runs on this thread alone, as no run is free, or only one thread
 * may be used, or this thread is no worker. */
ag_run *ag_run_take(ag_pool *pool, const ag_worker *worker, const ag_stream *stream);
ag_run_result ag_run_begin(ag_pool *pool, ag_worker *worker, ag_run *run, ag_stream *stream, ag_slot *slot,
                           size_t *step, ag_error **error);
ag_run_result ag_run_alone(ag_pool *pool, ag_worker *worker, ag_stream *stream, ag_slot *slot, size_t *step,
                           ag_error **error);
bool ag_run_claimable(const ag_run *run); /* whether it has a chunk that no thread has taken */

/* wakes up to n, for a plan that this worker leads */
void ag_pool_wake_helpers(ag_pool *pool, ag_worker *worker, int n);
/* wakes up to n of those that others left to be woken */
void ag_pool_wake_owed(ag_pool *pool, ag_worker *worker, int n);
/* the caller holds the bank's lock; returns how many */
int ag_pool_wake_locked(ag_pool *pool, ag_bank *bank, int n);
void ag_pool_wake_all(ag_pool *pool);
bool ag_pool_anything(ag_pool *pool); /* whether there is anything to do */
void ag_pool_sleep(ag_pool *pool, ag_worker *worker);

/* Notes how fast the core of this worker is: once for each plan that it begins, and each time it looks for work. */
static inline void ag_pool_note_speed(ag_pool *pool, const ag_worker *worker)
{
    if (!pool->uneven) return;
    const int n_threads = atomic_load_explicit(&pool->n_threads, memory_order_relaxed);
    const unsigned char speed = (unsigned char)ag_core_speed(ag_core_here(worker->index), n_threads);
    /* that cache line is read by all leaders, so it is written only if something has changed */
    if (atomic_load_explicit(&pool->speed[worker->index], memory_order_relaxed) == speed) return;
    atomic_store_explicit(&pool->speed[worker->index], speed, memory_order_relaxed);
}

/* False in the child of a fork: the threads are the parent's, and one of them may have held the lock. */
bool ag_pool_here(const ag_pool *pool);
void ag_pool_enter(const ag_pool *pool); /* this thread works for the pool from here on */
void ag_pool_leave(ag_pool *pool);       /* the last thing that it does; the pool may be gone then */

void ag_pool_ready(ag_executor *executor, ag_stream *stream);
/* the ready stream that was served least; NULL: none is ready */
ag_stream *ag_pool_pop(ag_pool *pool, ag_worker *worker);

/* Whether a stream is ready anywhere in the pool. Called before each step; the smallest steps take 10 ns. */
static inline bool ag_pool_any_ready(const ag_pool *pool)
{
    if (atomic_load_explicit(&pool->banks[0].n_ready, memory_order_relaxed) > 0) return true;
    for (int i = 1; i < pool->n_banks; ++i) {
        if (atomic_load_explicit(&pool->banks[i].n_ready, memory_order_relaxed) > 0) return true;
    }
    return false;
}

/* -- turns (pool_turns.c) ------------------------------------------------------------------------------------------ */

int ag_turn_threads(const ag_pool *pool, const ag_stream *stream); /* how many a plan of the stream may use */
/* Counts time that this worker gave to a stream, from `worker->since` to `now`. */
void ag_turn_charge(ag_pool *pool, ag_worker *worker, ag_stream *stream, uint64_t now);
void ag_turn_charge_run(ag_worker *worker, ag_run *run, uint64_t now);
/* Whether somebody who was served less waits for a worker: a ready stream, or a plan under way other than `own`. */
bool ag_turn_is_over(const ag_pool *pool, uint64_t served, const ag_run *own);
/* Whether a plan under way comes before all streams that are ready. False if none is ready. */
bool ag_turn_is_of_plans(ag_pool *pool, const ag_worker *worker);
/* The plan under way that was served least, of those with a chunk to take and room for a thread; or NULL. */
ag_run *ag_turn_next_run(ag_pool *pool, const ag_worker *worker);
/* Whoever served less before counts as served so much: time in which a stream did not want a worker is not saved up. */
void ag_turn_raise_floor(ag_pool *pool, uint64_t served);
uint64_t ag_turn_least_ready(const ag_pool *pool);

/* Whether others than this worker's stream may wait for a worker. `plan`: it works on a plan under way. Time counts
 * only then, so that a plan that is alone reads no clock. */
static inline bool ag_turn_contended(const ag_pool *pool, bool plan)
{
    return ag_pool_any_ready(pool) || atomic_load_explicit(&pool->active_runs, memory_order_relaxed) > (plan ? 1 : 0);
}

/* Called before a piece of work: from here on the worker's time counts, or it does not. */
static inline void ag_turn_note(const ag_pool *pool, ag_worker *worker, bool plan)
{
    if (!ag_turn_contended(pool, plan)) {
        worker->since = 0;
    } else if (worker->since == 0) {
        worker->since = ag_now();
        worker->turn_end = worker->since + AG_SLICE_NS;
    }
}

#endif
