/* Thread pool: workers that run ready streams and share the chunks of running plans.
 *
 * A run is a plan under way. Its state is one 64-bit word (step, number of chunks, next chunk): a thread looks, then
 * claims with fetch_add, so step and chunk come from the same atomic read and a late thread can only claim what is
 * current. Who finishes the last chunk of a step runs the following one-chunk steps itself and publishes the next
 * parallel one; there is no barrier, and a helper that does not come is not missed. Runs live in the pool for ever,
 * so looking at one that has just ended is harmless. Figures: an idle worker spins with a yield every 32 pauses, which
 * kept a graph beside a busy process at 1.0x of one thread's time where static splits took 1.6x and more. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define MAX_THREADS 512
#define WORKER_SLICE_NS 20000000
#define SLICE_NS 200000 /* a plan gives way to another stream after this long, at a node boundary */

typedef struct run {
    _Alignas(64) atomic_uint_fast64_t word;
    _Alignas(64) atomic_uint_fast32_t done;
    atomic_int engaged; /* threads in this run; at most `limit` */
    atomic_int limit;
    atomic_int status;  /* agk_status of the first chunk that failed */
    atomic_bool skipped; /* an abort let chunks out */
    atomic_bool taken;
    /* written before `word` is published, valid while chunks are outstanding */
    ag_stream *stream;
    ag_slot *slot;
    ag_plan *plan;
    uintptr_t arena;
    uint64_t slice_end;
    char message[AGK_MESSAGE];
    pthread_mutex_t message_lock;
} run;

struct ag_pool {
    ag_executor executor;
    atomic_int refs;
    ag_pool_params params;
    unsigned generation;
    pthread_mutex_t lock;
    pthread_cond_t work;
    ag_stream *ready_head, *ready_tail;
    atomic_int n_ready;
    atomic_int sleepers;
    atomic_int spinners;
    atomic_int active_runs;
    atomic_bool stop, paused;
    atomic_int n_threads;
    atomic_int alive;
    atomic_bool orphaned;
    ag_worker *workers[MAX_THREADS];
    run runs[]; /* MAX_THREADS are too many to scan: n_runs, one per thread that can lead */
};

#define N_RUNS 32 /* plans under way at the same time; further ones run on their leader alone */

void (*ag_on_idle)(void) = NULL;
static _Thread_local const ag_pool *my_pool; /* the pool that this thread works for */

/* -- the word ------------------------------------------------------------------------------------------------- */

/* 24 bits step, 20 bits number of chunks, 20 bits next chunk: claims beyond the end cannot overflow, since a thread
 * looks before it claims and there are at most 512. */
static uint64_t pack(size_t step, uint32_t chunks, uint32_t next)
{
    return (uint64_t)step << 40 | (uint64_t)chunks << 20 | next;
}
static size_t word_step(uint64_t w) { return (size_t)(w >> 40); }
static uint32_t word_chunks(uint64_t w) { return (uint32_t)(w >> 20) & 0xfffff; }
static uint32_t word_next(uint64_t w) { return (uint32_t)w & 0xfffff; }
static bool claimable(uint64_t w) { return word_next(w) < word_chunks(w); }

/* -- sleeping and waking -------------------------------------------------------------------------------------- */

static void wake_workers(ag_pool *pool, int n)
{
    if (n <= 0 || atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    if (n == 1) {
        pthread_cond_signal(&pool->work);
    } else {
        pthread_cond_broadcast(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void on_ready(ag_executor *executor, ag_stream *stream)
{
    ag_pool *pool = (ag_pool *)executor; /* its first member */
    pthread_mutex_lock(&pool->lock);
    *ag_stream_link(stream) = NULL;
    if (pool->ready_tail != NULL) {
        *ag_stream_link(pool->ready_tail) = stream;
    } else {
        pool->ready_head = stream;
    }
    pool->ready_tail = stream;
    atomic_fetch_add(&pool->n_ready, 1);
    if (atomic_load(&pool->sleepers) > 0) pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static ag_stream *pop_ready(ag_pool *pool)
{
    if (atomic_load(&pool->n_ready) == 0) return NULL;
    pthread_mutex_lock(&pool->lock);
    ag_stream *stream = pool->ready_head;
    if (stream != NULL) {
        pool->ready_head = *ag_stream_link(stream);
        if (pool->ready_head == NULL) pool->ready_tail = NULL;
        atomic_fetch_sub(&pool->n_ready, 1);
    }
    pthread_mutex_unlock(&pool->lock);
    return stream;
}

/* -- running plans -------------------------------------------------------------------------------------------- */

static agk_status run_chunk(ag_worker *worker, const ag_plan *plan, size_t step, uint32_t chunk, uintptr_t arena,
                            char *message)
{
    void *scratch = NULL;
    if (plan->scratch_size > 0) {
        if (worker->scratch_size < plan->scratch_size) {
            free(worker->scratch);
            worker->scratch_size = (plan->scratch_size + 4095) & ~(size_t)4095;
            worker->scratch = aligned_alloc(64, worker->scratch_size);
            if (worker->scratch == NULL) {
                worker->scratch_size = 0;
                snprintf(message, AGK_MESSAGE, "no memory for %zu bytes of scratch", plan->scratch_size);
                return AGK_NO_MEMORY;
            }
        }
        scratch = worker->scratch;
    }
    agk_task task = {.arena = arena, .scratch = scratch, .message = message};
    return plan->steps[step].run(&task, plan->steps[step].node, chunk);
}

static void chunk_failed(run *r, agk_status status, const char *message)
{
    pthread_mutex_lock(&r->message_lock);
    int none = AGK_OK;
    if (atomic_compare_exchange_strong(&r->status, &none, (int)status)) memcpy(r->message, message, AGK_MESSAGE);
    pthread_mutex_unlock(&r->message_lock);
}

/* What ends a plan before step `step`: an abort, at a node boundary and never inside a node that writes a leaf. */
static bool stops_here(const ag_plan *plan, size_t step, const ag_stream *stream, const ag_slot *slot)
{
    if (!ag_stream_aborting(stream, slot)) return false;
    if (step == 0 || step >= plan->n_steps) return true;
    return plan->steps[step].writes_leaf < 0 || plan->steps[step].node != plan->steps[step - 1].node;
}

/* A leaf that the failed node had begun to write holds neither the old nor the new value. Checks of indices come
 * before the first byte: they leave it whole. */
static void poison_leaf(const ag_plan *plan, size_t step, agk_status status, ag_error *error)
{
    int leaf = plan->steps[step].writes_leaf;
    if (leaf < 0 || (size_t)leaf >= plan->n_partial || status == AGK_OUT_OF_BOUNDS || status == AGK_INVALID) return;
    ag_storage_set_poison(plan->partial[leaf], error);
}

static ag_error *abort_error(const ag_stream *stream)
{
    ag_error *error = ag_error_new(AG_ABORTED, ag_stream_name(stream), "graph_compute", NULL,
                                   "stopped on request before it was finished");
    if (error != NULL) atomic_store(&error->seen, true);
    return error;
}

static ag_error *step_error(const ag_plan *plan, size_t step, agk_status status, const ag_stream *stream,
                            const char *message)
{
    ag_error *error = ag_plan_error(plan, step, status, ag_stream_name(stream), message);
    poison_leaf(plan, step, status, error);
    return error;
}

/* All chunks of all steps on this thread: no run is free, only one thread may be used, or the submitter itself. */
static ag_run_result run_alone(ag_pool *pool, ag_worker *worker, ag_stream *stream, ag_slot *slot, size_t *step,
                               ag_error **error)
{
    const ag_plan *plan = slot->u.plan.plan;
    char local[AGK_MESSAGE] = "", *message = worker != NULL ? worker->message : local;
    uint64_t slice_end = 0;
    for (size_t i = *step; i < plan->n_steps; ++i) {
        if (stops_here(plan, i, stream, slot)) {
            *error = abort_error(stream);
            return AG_RUN_FINISHED;
        }
        if (worker != NULL && atomic_load_explicit(&pool->n_ready, memory_order_relaxed) > 0) {
            uint64_t now = ag_now();
            if (slice_end == 0) slice_end = now + SLICE_NS;
            if (now > slice_end) {
                *step = i;
                return AG_RUN_YIELDED;
            }
        }
        for (uint32_t c = 0; c < plan->steps[i].n_chunks; ++c) {
            if (c > 0 && plan->steps[i].writes_leaf < 0 && ag_stream_aborting(stream, slot)) {
                *error = abort_error(stream);
                return AG_RUN_FINISHED;
            }
            agk_status status = run_chunk(worker, plan, i, c, slot->u.plan.arena, message);
            if (status != AGK_OK) {
                *error = step_error(plan, i, status, stream, message);
                return AG_RUN_FINISHED;
            }
        }
    }
    return AG_RUN_FINISHED;
}

/* The plan is over: the run may be used by others from here on. */
static void leave_run(ag_pool *pool, run *r)
{
    atomic_store(&r->word, 0);
    atomic_fetch_sub(&r->engaged, 1);
    atomic_fetch_sub(&pool->active_runs, 1);
    atomic_store(&r->taken, false);
}

/* From `step` on, by the thread that finished what was before it. ELSEWHERE: a parallel step is published. */
static ag_run_result advance(ag_pool *pool, ag_worker *worker, run *r, size_t *step_out, ag_error **error)
{
    const ag_plan *plan = r->plan;
    size_t step = *step_out;
    for (;; ++step) {
        int failed = atomic_load(&r->status);
        if (failed != AGK_OK) {
            *error = step_error(plan, step - 1, (agk_status)failed, r->stream, r->message);
            break;
        }
        bool skipped = atomic_load(&r->skipped);
        if (step == plan->n_steps && !skipped) break;
        if (skipped || stops_here(plan, step, r->stream, r->slot)) {
            *error = abort_error(r->stream);
            break;
        }
        if (atomic_load_explicit(&pool->n_ready, memory_order_relaxed) > 0 && ag_now() > r->slice_end) {
            *step_out = step;
            leave_run(pool, r);
            return AG_RUN_YIELDED;
        }
        const ag_step *s = &plan->steps[step];
        if (s->n_chunks > 1) {
            atomic_store_explicit(&r->done, 0, memory_order_relaxed);
            atomic_store(&r->word, pack(step, s->n_chunks, 0));
            int limit = atomic_load(&r->limit);
            wake_workers(pool, (int)s->n_chunks < limit ? (int)s->n_chunks - 1 : limit - 1);
            return AG_RUN_ELSEWHERE;
        }
        agk_status status = run_chunk(worker, plan, step, 0, r->arena, worker->message);
        if (status != AGK_OK) chunk_failed(r, status, worker->message);
    }
    leave_run(pool, r);
    return AG_RUN_FINISHED;
}

typedef enum claim_result { NOTHING, WORKED, LAST } claim_result;

/* Claim one chunk and run it. LAST: this thread finished the step and has to advance from *step on. */
static claim_result claim(ag_worker *worker, run *r, size_t *step)
{
    if (!claimable(atomic_load_explicit(&r->word, memory_order_acquire))) return NOTHING;
    uint64_t w = atomic_fetch_add(&r->word, 1);
    if (!claimable(w)) return NOTHING;
    const ag_plan *plan = r->plan; /* ours until the chunk is counted as done */
    *step = word_step(w);
    bool aborts = plan->steps[*step].writes_leaf < 0 && ag_stream_aborting(r->stream, r->slot);
    if (aborts) {
        atomic_store(&r->skipped, true);
    } else if (atomic_load(&r->status) == AGK_OK) {
        agk_status status = run_chunk(worker, plan, *step, word_next(w), r->arena, worker->message);
        if (status != AGK_OK) chunk_failed(r, status, worker->message);
    }
    if (atomic_fetch_add(&r->done, 1) + 1 != word_chunks(w)) return WORKED;
    ++*step;
    return LAST;
}

typedef enum part { IDLED, HELPED, LEFT } part; /* LEFT: no longer counted as engaged in the run */

/* Work on this run while there is something to claim. The plan's end or yield is handled here. */
static part participate(ag_pool *pool, ag_worker *worker, run *r)
{
    part result = IDLED;
    for (;;) {
        size_t step;
        claim_result claimed = claim(worker, r, &step);
        if (claimed == NOTHING) return result;
        result = HELPED;
        if (claimed == LAST) {
            ag_error *error = NULL;
            ag_stream *stream = r->stream;
            ag_run_result next = advance(pool, worker, r, &step, &error);
            if (next != AG_RUN_ELSEWHERE) {
                atomic_fetch_sub(&r->engaged, 1); /* the stream's next operations may take long */
                if (next == AG_RUN_FINISHED) {
                    ag_stream_plan_finished(stream, worker, error);
                } else {
                    ag_stream_plan_yielded(stream, step);
                }
                return LEFT;
            }
        }
        if (atomic_load_explicit(&pool->n_ready, memory_order_relaxed) > 0) return result; /* others are served first */
    }
}

static run *take_run(ag_pool *pool)
{
    for (int i = 0; i < N_RUNS; ++i) {
        bool taken = false;
        if (atomic_compare_exchange_strong(&pool->runs[i].taken, &taken, true)) return &pool->runs[i];
    }
    return NULL;
}

ag_run_result ag_pool_run_plan(ag_pool *pool, ag_worker *worker, ag_stream *stream, ag_slot *slot, size_t *step,
                               ag_error **error)
{
    int limit = ag_stream_n_threads(stream), threads = atomic_load(&pool->n_threads);
    if (limit <= 0 || limit > threads) limit = threads;
    run *r = worker != NULL && limit > 1 ? take_run(pool) : NULL;
    if (r == NULL) return run_alone(pool, worker, stream, slot, step, error);
    r->stream = stream;
    r->slot = slot;
    r->plan = slot->u.plan.plan;
    r->arena = slot->u.plan.arena;
    r->slice_end = ag_now() + SLICE_NS;
    atomic_store(&r->status, AGK_OK);
    atomic_store(&r->skipped, false);
    atomic_store(&r->limit, limit);
    atomic_fetch_add(&r->engaged, 1);
    atomic_fetch_add(&pool->active_runs, 1);
    ag_run_result result = advance(pool, worker, r, step, error);
    /* Published: claim in the pool's loop like everybody else. That thread counts as engaged until the run ends,
     * whoever ends it. */
    return result;
}

/* -- workers -------------------------------------------------------------------------------------------------- */

static bool help(ag_pool *pool, ag_worker *worker)
{
    for (int i = 0; i < N_RUNS; ++i) {
        run *r = &pool->runs[(i + worker->index) % N_RUNS];
        if (!claimable(atomic_load_explicit(&r->word, memory_order_acquire))) continue;
        /* `limit` counts the leader, and the place that a finished leader leaves is taken by the one that goes on. */
        bool admitted = atomic_fetch_add(&r->engaged, 1) <= atomic_load(&r->limit);
        part result = admitted ? participate(pool, worker, r) : IDLED;
        if (result != LEFT) atomic_fetch_sub(&r->engaged, 1);
        if (result != IDLED) return true;
    }
    return false;
}

static bool anything(ag_pool *pool)
{
    if (atomic_load(&pool->n_ready) > 0) return true;
    for (int i = 0; i < N_RUNS; ++i) {
        run *r = &pool->runs[i];
        if (claimable(atomic_load(&r->word)) && atomic_load(&r->engaged) <= atomic_load(&r->limit)) return true;
    }
    return false;
}

static void sleep_until_work(ag_pool *pool)
{
    if (ag_on_idle != NULL) ag_on_idle();
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!atomic_load(&pool->stop) && (atomic_load(&pool->paused) || !anything(pool))) {
        pthread_cond_wait(&pool->work, &pool->lock);
        if (!atomic_load(&pool->paused)) break; /* spin once more even if another one was faster */
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

/* Look for work for a while. While a plan runs every worker does, else one: the event loop shares these cores. */
static bool spin(ag_pool *pool)
{
    bool found = false;
    int spinners = atomic_fetch_add(&pool->spinners, 1);
    uint64_t end = ag_now() + (uint64_t)pool->params.spin_us * 1000u;
    do {
        for (int i = 0; i < 32 && !found; ++i) {
            ag_pause();
            found = anything(pool);
        }
        if (found || atomic_load(&pool->stop) || atomic_load(&pool->paused)) break;
        if (spinners > 0 && atomic_load(&pool->active_runs) == 0) break;
        sched_yield();
    } while (ag_now() < end);
    atomic_fetch_sub(&pool->spinners, 1);
    return found;
}

static void pool_free(ag_pool *pool)
{
    int n = atomic_load(&pool->n_threads);
    for (int i = 0; i < n; ++i) {
        free(pool->workers[i]->scratch);
        free(pool->workers[i]);
    }
    for (int i = 0; i < N_RUNS; ++i) pthread_mutex_destroy(&pool->runs[i].message_lock);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void set_affinity(const ag_pool_params *params, int index)
{
#ifdef __linux__
    if (!params->has_mask) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    int bits = 0, wanted = -1;
    for (int i = 0; i < 512; ++i) bits += params->mask[i] != 0;
    if (bits == 0) return;
    if (params->strict) wanted = index % bits;
    for (int i = 0, k = 0; i < 512; ++i) {
        if (!params->mask[i]) continue;
        if (wanted < 0 || k == wanted) CPU_SET((size_t)i, &set);
        ++k;
    }
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* a refusal leaves the inherited mask */
#else
    (void)params;
    (void)index;
#endif
}

static void set_priority(int priority)
{
#ifdef __linux__
    struct sched_param p = {.sched_priority = priority == 1 ? 40 : priority == 2 ? 80 : priority >= 3 ? 90 : 0};
    if (priority < 0) pthread_setschedparam(pthread_self(), SCHED_BATCH, &p);
    if (priority > 0) pthread_setschedparam(pthread_self(), SCHED_FIFO, &p); /* needs a right; a refusal is harmless */
#else
    (void)priority;
#endif
}

/* A long slice (Linux 6.12 and later; elsewhere refused, and harmless): whoever has a shorter one, the event loop above
 * all, then preempts a worker as soon as it wakes. With equal slices a 1 ms ticker waits for the end of a worker's. */
static void set_slice(void)
{
#if defined(__linux__) && defined(SYS_sched_setattr)
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes, .policy = SCHED_OTHER, .runtime = WORKER_SLICE_NS};
    attributes.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attributes, 0);
#endif
}

static void *work(void *argument)
{
    ag_worker *worker = argument;
    ag_pool *pool = worker->pool;
    my_pool = pool;
    set_affinity(&pool->params, worker->index);
    if (pool->params.priority == 0) set_slice();
    set_priority(pool->params.priority);
    while (!atomic_load(&pool->stop)) {
        ag_stream *stream = atomic_load(&pool->paused) ? NULL : pop_ready(pool);
        if (stream != NULL) {
            ag_stream_run(stream, worker);
        } else if (!help(pool, worker) && !spin(pool)) {
            sleep_until_work(pool);
        }
    }
    if (atomic_fetch_sub(&pool->alive, 1) == 1 && atomic_load(&pool->orphaned)) pool_free(pool);
    return NULL;
}

/* -- life ----------------------------------------------------------------------------------------------------- */

bool ag_pool_grow(ag_pool *pool, int n_threads)
{
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    bool ok = true;
    pthread_mutex_lock(&pool->lock);
    for (int i = atomic_load(&pool->n_threads); i < n_threads && ok; ++i) {
        ag_worker *worker = calloc(1, sizeof *worker);
        ok = worker != NULL;
        if (!ok) break;
        worker->pool = pool;
        worker->index = i;
        pool->workers[i] = worker;
        atomic_fetch_add(&pool->alive, 1);
        ok = pthread_create(&worker->thread, NULL, work, worker) == 0;
        if (!ok) {
            atomic_fetch_sub(&pool->alive, 1);
            free(worker);
        } else {
            atomic_store(&pool->n_threads, i + 1);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return ok;
}

ag_pool *ag_pool_new(const ag_pool_params *params)
{
    ag_runtime_init();
    size_t size = sizeof(ag_pool) + N_RUNS * sizeof(run);
    ag_pool *pool = aligned_alloc(64, (size + 63) & ~(size_t)63);
    if (pool == NULL) return NULL;
    memset(pool, 0, size);
    atomic_init(&pool->refs, 1);
    pool->executor.ready = on_ready;
    pool->params = *params;
    pool->generation = atomic_load(&ag_generation);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    for (int i = 0; i < N_RUNS; ++i) pthread_mutex_init(&pool->runs[i].message_lock, NULL);
    if (!ag_pool_grow(pool, params->n_threads < 1 ? 1 : params->n_threads)) {
        ag_pool_unref(pool);
        return NULL;
    }
    return pool;
}

ag_pool *ag_pool_ref(ag_pool *pool)
{
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
    return pool;
}

void ag_pool_stop(ag_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool first = !atomic_exchange(&pool->stop, true);
    pthread_cond_broadcast(&pool->work);
    int n = atomic_load(&pool->n_threads);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; first && i < n; ++i) pthread_join(pool->workers[i]->thread, NULL);
}

void ag_pool_unref(ag_pool *pool)
{
    if (pool == NULL || atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1) return;
    if (pool->generation != atomic_load(&ag_generation)) return; /* its threads are the parent's */
    if (my_pool != pool) {
        ag_pool_stop(pool);
        pool_free(pool);
        return;
    }
    /* A worker dropped the last reference (the end of a stream): it cannot join itself. The last one to leave frees. */
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->orphaned, true);
    int n = atomic_load(&pool->n_threads);
    for (int i = 0; i < n; ++i) pthread_detach(pool->workers[i]->thread);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

int ag_pool_n_threads(const ag_pool *pool) { return atomic_load(&pool->n_threads); }
ag_executor *ag_pool_executor(ag_pool *pool) { return &pool->executor; }

void ag_pool_pause(ag_pool *pool)
{
    atomic_store(&pool->paused, true);
}

void ag_pool_resume(ag_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->paused, false);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

/* A cgroup that grants 150 ms per 100 ms counts as two cpus: a fraction still runs a thread. */
static int cgroup_cpus(void)
{
    long long quota = -1, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (file != NULL) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;
        fclose(file);
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : MAX_THREADS;
}

int ag_usable_cpus(void)
{
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
    int quota = cgroup_cpus();
    if (quota < n) n = quota;
    return n < 1 ? 1 : n;
}
