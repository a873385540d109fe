/* Workers that sleep: where they lie down, who of them is woken, and where.
 *
 * On a small virtual machine that is half busy Linux does not look for an idle core (SIS_UTIL), nor does it take one that the
 * host has let sleep for idle: who is woken waits behind the very thread that woke it, until cores are balanced at a tick. So
 * plans of less than 4 ms ran on one core of two. Therefore no two workers lie down on one core while another has none, and a
 * helper is woken away from the core of its leader. Where that made it wait, there is no room: it is left to the system for a
 * while. Nothing stays pinned. Not here: looking for work (threadpool.c). */
#define _GNU_SOURCE
#include <sched.h>

#include "pool_state.h"

#define LATE_NS 1000000 /* a core that is idle takes 30 us */
#define CROWDED_NS 250000000
#define FEW_THREADS 8 /* of larger pools the system takes better care, and each woken thread costs 1 us here */

_Atomic(void (*)(void)) ag_on_idle; /* null at first */

static bool crowded(const ag_pool *pool)
{
    return ag_now() < atomic_load_explicit(&pool->crowded_until, memory_order_relaxed);
}

static void note_time(ag_pool *pool, uint64_t since)
{
    const uint64_t now = ag_now();
    if (now - since > LATE_NS) atomic_store(&pool->crowded_until, now + CROWDED_NS);
}

/* -- where ---------------------------------------------------------------------------------------------------- */

#ifdef __linux__
/* Off a core on which another worker lies, to one without any: twice 1 us and a migration, by who has nothing to do. */
static void lie_apart(ag_pool *pool, ag_worker *worker)
{
    const int here = ag_relay_cpu();
    atomic_store(&worker->cpu, here);
    if (here < 0 || pool->params.strict || crowded(pool)) return;
    cpu_set_t mine, taken, there;
    CPU_ZERO(&taken);
    bool shared = false;
    const int n_threads = atomic_load(&pool->n_threads);
    for (int i = 0; i < n_threads; ++i) {
        const int cpu = i == worker->index ? -1 : atomic_load(&pool->workers[i]->cpu);
        shared = shared || cpu == here;
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET((size_t)cpu, &taken);
    }
    if (!shared || pthread_getaffinity_np(pthread_self(), sizeof mine, &mine) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET((size_t)cpu, &mine) || CPU_ISSET((size_t)cpu, &taken)) continue;
        CPU_ZERO(&there);
        CPU_SET((size_t)cpu, &there);
        const uint64_t since = ag_now();
        if (pthread_setaffinity_np(pthread_self(), sizeof there, &there) == 0) atomic_store(&worker->cpu, cpu);
        pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
        note_time(pool, since);
        return;
    }
}

/* So that it wakes on another core than this one, which stays busy. */
static void send_elsewhere(ag_worker *worker, int here)
{
    if (here < 0 || here >= CPU_SETSIZE) return;
    cpu_set_t set;
    if (pthread_getaffinity_np(worker->thread, sizeof set, &set) != 0) return;
    if (!CPU_ISSET((size_t)here, &set) || CPU_COUNT(&set) < 2) return;
    CPU_CLR((size_t)here, &set);
    if (pthread_setaffinity_np(worker->thread, sizeof set, &set) != 0) return;
    worker->sent_from = here;
    worker->sent = ag_now();
}

static void arrive(ag_pool *pool, ag_worker *worker)
{
    if (worker->sent_from < 0) return;
    cpu_set_t set;
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0) {
        CPU_SET((size_t)worker->sent_from, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    worker->sent_from = -1;
    note_time(pool, worker->sent);
}
#else
static void lie_apart(ag_pool *pool, ag_worker *worker)
{
    (void)pool;
    (void)worker;
}
static void send_elsewhere(ag_worker *worker, int here)
{
    (void)worker;
    (void)here;
}
static void arrive(ag_pool *pool, ag_worker *worker)
{
    (void)pool;
    (void)worker;
}
#endif

/* -- waking --------------------------------------------------------------------------------------------------- */

/* Up to n, first those that do not lie here; `stays`: this thread goes on on its core. */
static void wake_locked(ag_pool *pool, int n, bool stays)
{
    if (atomic_load(&pool->sleepers) == 0) return;
    const int here = ag_relay_cpu(), n_threads = atomic_load(&pool->n_threads);
    const bool send = stays && n_threads <= FEW_THREADS && !crowded(pool);
    for (int elsewhere = 1; elsewhere >= 0; --elsewhere) {
        for (int i = 0; i < n_threads && n > 0; ++i) {
            ag_worker *worker = pool->workers[i];
            if (!worker->asleep || (elsewhere && worker->cpu == here)) continue;
            worker->asleep = false;
            if (send) send_elsewhere(worker, here);
            pthread_cond_signal(&worker->wake);
            --n;
        }
    }
}

void ag_pool_wake_locked(ag_pool *pool, int n)
{
    wake_locked(pool, n, false);
}

void ag_pool_wake(ag_pool *pool, int n)
{
    if (n <= 0 || atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    wake_locked(pool, n, true);
    pthread_mutex_unlock(&pool->lock);
}

/* -- sleeping ------------------------------------------------------------------------------------------------- */

bool ag_pool_anything(ag_pool *pool)
{
    if (atomic_load(&pool->n_ready) > 0) return true;
    for (int i = 0; i < AG_N_RUNS; ++i) {
        ag_run *r = &pool->runs[i];
        if (ag_claimable(atomic_load(&r->word)) && atomic_load(&r->engaged) <= atomic_load(&r->limit)) return true;
    }
    return false;
}

void ag_pool_sleep(ag_pool *pool, ag_worker *worker)
{
    void (*on_idle)(void) = atomic_load(&ag_on_idle); /* once: the binding clears it when the process ends */
    if (on_idle != NULL) on_idle();
    lie_apart(pool, worker);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    if (!atomic_load(&pool->stop) && !ag_pool_anything(pool)) {
        worker->asleep = true;
        while (worker->asleep) pthread_cond_wait(&worker->wake, &pool->lock);
        /* It spins once more even if another one was faster. */
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    arrive(pool, worker);
}
