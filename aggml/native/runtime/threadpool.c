/* Thread pool: workers that run ready streams and help with the plans of others.
 *
 * An idle worker spins, with a yield every 32 pauses, then sleeps. With this, a graph that ran while another process
 * was busy kept 1.0x of one thread's time, where static splits took 1.6x and more. Not here: how a plan is shared
 * (plan_run.c), which workers sleep where and which are woken (pool_sleep.c), which stream is next (pool_ready.c),
 * whose turn it is (pool_turns.c), the end of a pool (pool.c). */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "pool_state.h"

/* -- workers -------------------------------------------------------------------------------------------------- */

/* This worker has ended a plan, or has come to where it stops: its stream goes on. */
static void go_on(ag_worker *worker, const ag_run_end *end)
{
    if (end->result == AG_RUN_FINISHED) {
        ag_stream_finish_plan(end->stream, worker, end->error);
    } else if (end->result == AG_RUN_YIELDED) {
        ag_stream_yield_plan(end->stream, end->step);
    } else {
        ag_stream_call_of_plan(end->stream, end->step);
    }
}

/* Works on a plan under way. */
static bool join_run(ag_pool *pool, ag_worker *worker, ag_run *r)
{
    /* `limit` counts the leader. When a leader has finished, the thread that goes on takes its place. */
    bool admitted = atomic_fetch_add(&r->engaged, 1) <= atomic_load(&r->limit);
    ag_run_end end;
    ag_part result = admitted ? ag_run_participate(pool, worker, r, &end) : AG_IDLED;
    if (result != AG_LEFT) atomic_fetch_sub(&r->engaged, 1);
    if (result == AG_LEFT) go_on(worker, &end);
    return result != AG_IDLED;
}

static bool help(ag_pool *pool, ag_worker *worker)
{
    if (atomic_load(&pool->active_runs) > 1) {
        ag_run *r = ag_turn_next_run(pool, worker);
        return r != NULL && join_run(pool, worker, r);
    }
    for (int i = 0; i < AG_N_RUNS; ++i) {
        ag_run *r = &pool->runs[(i + worker->index) % AG_N_RUNS];
        if (ag_run_claimable(r) && join_run(pool, worker, r)) return true;
    }
    return false;
}

/* Looks for work for a while. While a plan runs every worker does; else only one, as the event loop shares these
 * cores. */
static bool spin(ag_pool *pool, ag_worker *worker)
{
    bool found = false;
    int spinners = atomic_fetch_add(&pool->spinners, 1), cpu = ag_cpu_here();
    ag_pool_note_speed(pool, worker);
    ag_relay_enter(cpu);
    uint64_t end = ag_now() + (uint64_t)pool->params.spin_us * 1000u;
    do {
        for (int i = 0; i < 32 && !found; ++i) {
            if (!ag_pool_fetch(pool)) ag_pause();
            found = ag_pool_anything(pool);
            ag_relay_serve(cpu); /* each time: 32 of them take longer than the other thread waits (notifier.c) */
        }
        if (found || atomic_load(&pool->stop) || atomic_load(&pool->paused)) break;
        if (spinners > 0 && atomic_load(&pool->active_runs) == 0) break;
        sched_yield();
    } while (ag_now() < end);
    ag_relay_leave(cpu);
    atomic_fetch_sub(&pool->spinners, 1);
    return found;
}

static void set_affinity(const ag_pool *pool, const ag_worker *worker)
{
#ifdef __linux__
    const ag_pool_params *params = &pool->params;
    const int index = worker->index;
    if (!params->has_mask) {
        /* the weights that it packs, its stack and its scratch lie there */
        if (pool->n_banks > 1) ag_bank_stay(worker->bank);
        return;
    }
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
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* if refused, the inherited mask stays */
#else
    (void)pool;
    (void)worker;
#endif
}

static void set_priority(int priority)
{
#ifdef __linux__
    struct sched_param p = {.sched_priority = priority == 1 ? 40 : priority == 2 ? 80 : priority >= 3 ? 90 : 0};
    if (priority < 0) pthread_setschedparam(pthread_self(), SCHED_BATCH, &p);
    /* needs a privilege; a refusal is harmless */
    if (priority > 0) pthread_setschedparam(pthread_self(), SCHED_FIFO, &p);
#else
    (void)priority;
#endif
}

static void *work(void *argument)
{
    ag_worker *worker = argument;
    ag_pool *pool = worker->pool;
    ag_pool_enter(pool);
    ag_courtesy_worker();
    set_affinity(pool, worker);
    if (pool->params.priority == 0) ag_sched_worker();
    set_priority(pool->params.priority);
    while (!atomic_load(&pool->stop)) {
        ag_stream *stream = ag_turn_is_of_plans(pool, worker) ? NULL : ag_pool_pop(pool, worker);
        worker->since = 0;
        if (stream != NULL) {
            ag_stream_run(stream, worker);
        } else if (!help(pool, worker) && !spin(pool, worker)) {
            ag_pool_sleep(pool, worker);
        }
    }
    ag_pool_leave(pool);
    return NULL;
}

/* -- starting --------------------------------------------------------------------------------------------------- */

bool ag_pool_grow(ag_pool *pool, int n_threads, bool widen)
{
    if (n_threads > AG_MAX_THREADS) n_threads = AG_MAX_THREADS;
    if (!ag_pool_here(pool)) return false;
    pthread_mutex_lock(&pool->lock);
    bool ok = !atomic_load(&pool->stop); /* after a stop, nobody would join further threads */
    for (int i = atomic_load(&pool->n_threads); i < n_threads && ok; ++i) {
        ag_worker *worker = calloc(1, sizeof *worker);
        ok = worker != NULL;
        if (!ok) break;
        worker->pool = pool;
        worker->index = i;
        worker->bank = i % pool->n_banks;
        atomic_init(&worker->cpu, -1);
        worker->sent_from = -1;
        if (pool->uneven) atomic_store(&pool->speed[i], (unsigned char)ag_core_speed(-1, n_threads));
        pthread_cond_init(&worker->wake, NULL);
        pool->workers[i] = worker;
        atomic_fetch_add(&pool->alive, 1);
        ok = ag_thread_start(&worker->thread, work, worker, false);
        if (!ok) {
            atomic_fetch_sub(&pool->alive, 1);
            pthread_cond_destroy(&worker->wake);
            free(worker);
        } else {
            atomic_store(&pool->n_threads, i + 1);
        }
    }
    if (ok && widen && atomic_load(&pool->width) < n_threads) atomic_store(&pool->width, n_threads);
    pthread_mutex_unlock(&pool->lock);
    return ok;
}

/* The smallest number of banks that has room for the threads, so that what they share stays in one cache. If the
 * user gives a mask, the mask alone says where workers run. */
static int banks_for(const ag_pool_params *params)
{
    const int all = ag_banks(), cores = ag_bank_cores(), wanted = (params->n_threads + cores - 1) / cores;
    if (params->has_mask || params->strict || wanted < 2) return 1;
    return wanted < all ? wanted : all;
}

ag_pool *ag_pool_new(const ag_pool_params *params)
{
    ag_runtime_init();
    size_t size = sizeof(ag_pool) + AG_N_RUNS * sizeof(ag_run);
    ag_pool *pool = aligned_alloc(64, (size + 63) & ~(size_t)63);
    if (pool == NULL) return NULL;
    memset(pool, 0, size);
    atomic_init(&pool->refs, 1);
    pool->executor.ready = ag_pool_ready;
    pool->params = *params;
    pool->n_banks = banks_for(params);
    pool->uneven = pool->n_banks == 1 && ag_cores_differ();
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        pthread_mutex_init(&pool->banks[i].lock, NULL);
        atomic_init(&pool->banks[i].least, AG_NOBODY);
    }
    pool->generation = atomic_load(&ag_generation);
    pthread_mutex_init(&pool->lock, NULL);
    for (int i = 0; i < AG_N_RUNS; ++i) pthread_mutex_init(&pool->runs[i].message_lock, NULL);
    ag_living_add_pool(pool);
    if (!ag_pool_grow(pool, params->n_threads < 1 ? 1 : params->n_threads, true)) {
        ag_pool_unref(pool);
        return NULL;
    }
    return pool;
}

/* A cgroup that grants 150 ms per 100 ms counts as two cpus, because a fraction still runs a thread. */
static int cgroup_cpus(void)
{
    long long quota = -1, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (file != NULL) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;
        fclose(file);
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : AG_MAX_THREADS;
}

/* Where all cores are equal, each hyperthread counts. Where they differ, each core counts once: two threads on a
 * performance core would share its vector units, each with about the speed of an efficiency core, and the second
 * hyperthreads stay free for the event loop. Efficiency cores count, because a slow thread only takes what it has time
 * for. */
int ag_usable_cpus(void)
{
    const int cores = ag_usable_cores(), quota = cgroup_cpus();
    int n = ag_usable_threads();
    if (cores > 0 && cores < n) n = cores;
    if (quota < n) n = quota;
    return n < 1 ? 1 : n;
}
