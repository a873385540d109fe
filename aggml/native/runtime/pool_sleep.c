/* Workers that sleep: on which core they go to sleep, which of them are woken, and on which core.
 *
 * On a small virtual machine that is half busy, Linux does not look for an idle core (SIS_UTIL), nor does it choose
 * a core that the host has put to sleep. A thread that is woken then waits behind the very thread that woke it,
 * until cores are balanced at a tick. So plans of less than 4 ms ran on one core of two. Therefore no two workers go
 * to sleep on one core while another core has none, and a helper is woken away from the core of its leader. If the
 * plan had to wait for the helper there, that core was busy, and placement is left to the system for a while. No thread
 * stays pinned. Not here: looking for work (threadpool.c). */
#define _GNU_SOURCE
#include <sched.h>

#include "pool_state.h"

#define LATE_NS 1000000 /* a late wake-up; on an idle core it takes 30 us */
#define CROWDED_NS 250000000

_Atomic(void (*)(void)) ag_on_idle; /* null at first */

static bool is_crowded(const ag_pool *pool)
{
    return ag_now() < atomic_load_explicit(&pool->crowded_until, memory_order_relaxed);
}

/* -- where ---------------------------------------------------------------------------------------------------- */

#ifdef __linux__
/* What a core without a sleeping worker is worth to this one: its speed where cores differ, half of it if another
 * worker sleeps on its other hyperthread. */
static int worth(const ag_pool *pool, const ag_worker *worker, int cpu)
{
    if (!pool->uneven) return 1;
    const int speed = ag_core_speed(cpu, 0), n_threads = atomic_load(&pool->n_threads);
    for (int i = 0; i < n_threads; ++i) {
        if (i != worker->index && ag_core_same(cpu, atomic_load(&pool->workers[i]->cpu))) return speed / 2;
    }
    return speed;
}

/* Moves this worker from a core on which another worker sleeps to one without any, the fastest of these. It costs twice
 * 1 us and a migration, paid by a thread that has nothing to do. */
static void lie_apart(ag_pool *pool, ag_worker *worker)
{
    const int here = ag_cpu_here();
    atomic_store(&worker->cpu, here);
    /* In larger pools the system does this better, and looking at each worker costs time. */
    const int n_threads = atomic_load(&pool->n_threads);
    if (here < 0 || pool->params.strict || n_threads > AG_SMALL_POOL || is_crowded(pool)) return;
    cpu_set_t mine, taken, there;
    CPU_ZERO(&taken);
    bool shared = false;
    for (int i = 0; i < n_threads; ++i) {
        const int cpu = i == worker->index ? -1 : atomic_load(&pool->workers[i]->cpu);
        shared = shared || cpu == here;
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET((size_t)cpu, &taken);
    }
    if (!shared || pthread_getaffinity_np(pthread_self(), sizeof mine, &mine) != 0) return;
    int best = -1, most = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && (pool->uneven || best < 0); ++cpu) {
        if (!CPU_ISSET((size_t)cpu, &mine) || CPU_ISSET((size_t)cpu, &taken)) continue;
        const int value = worth(pool, worker, cpu);
        if (value > most) best = cpu, most = value;
    }
    if (best < 0) return;
    CPU_ZERO(&there);
    CPU_SET((size_t)best, &there);
    if (pthread_setaffinity_np(pthread_self(), sizeof there, &there) == 0) atomic_store(&worker->cpu, best);
    pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
}

/* Makes it wake on another core than this one, which stays busy. */
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
    worker->sent_after = atomic_load_explicit(&worker->pool->runs_left, memory_order_relaxed);
}

/* Cores count as crowded for a while if a plan had to wait for the helper that it sent to another core. A helper that
 * comes after its plan has ended, or that has to wait for a core to lie down on, says nothing about the cores of the
 * next plan: some other program, or the event loop, had that core for a moment. (A Zen 5, two threads, plans of 0.3 ms
 * in turns with another program that computes for 3 ms: when these counted, too, plans often ran on one thread, at half
 * the speed, for a quarter of a second at a time.) */
static void arrive(ag_pool *pool, ag_worker *worker)
{
    if (worker->sent_from < 0) return;
    cpu_set_t set;
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0) {
        CPU_SET((size_t)worker->sent_from, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    worker->sent_from = -1;
    const uint64_t now = ag_now();
    if (now - worker->sent > LATE_NS &&
        atomic_load_explicit(&pool->runs_left, memory_order_relaxed) == worker->sent_after)
        atomic_store(&pool->crowded_until, now + CROWDED_NS);
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

static void lay_down(ag_bank *bank, ag_worker *worker)
{
    worker->asleep = true;
    worker->asleep_before = NULL;
    worker->asleep_next = bank->asleep;
    if (bank->asleep != NULL) bank->asleep->asleep_before = worker;
    bank->asleep = worker;
}

static void rouse(ag_bank *bank, ag_worker *worker)
{
    worker->asleep = false;
    *(worker->asleep_before != NULL ? &worker->asleep_before->asleep_next : &bank->asleep) = worker->asleep_next;
    if (worker->asleep_next != NULL) worker->asleep_next->asleep_before = worker->asleep_before;
    pthread_cond_signal(&worker->wake);
}

/* Wakes up to n workers, first those that sleep on other cores; `stays`: this thread goes on on its core. Returns
 * how many it woke. */
static int wake_locked(ag_pool *pool, ag_bank *bank, int n, bool stays)
{
    int woken = 0;
    if (bank->asleep == NULL) return 0;
    const int here = ag_cpu_here(), n_threads = atomic_load(&pool->n_threads);
    if (n_threads > AG_SMALL_POOL) {
        for (; woken < n && bank->asleep != NULL; ++woken) rouse(bank, bank->asleep);
        return woken;
    }
    const bool send = stays && !is_crowded(pool);
    for (int elsewhere = 1; elsewhere >= 0; --elsewhere) {
        for (int i = 0; i < n_threads && woken < n; ++i) {
            ag_worker *worker = pool->workers[i];
            if (&pool->banks[worker->bank] != bank || !worker->asleep || (elsewhere && worker->cpu == here)) continue;
            if (send) send_elsewhere(worker, here);
            rouse(bank, worker);
            ++woken;
        }
    }
    return woken;
}

int ag_pool_wake_locked(ag_pool *pool, ag_bank *bank, int n)
{
    return wake_locked(pool, bank, n, false);
}

void ag_pool_wake_all(ag_pool *pool)
{
    for (int i = 0; i < pool->n_banks; ++i) {
        ag_bank *bank = &pool->banks[i];
        pthread_mutex_lock(&bank->lock);
        wake_locked(pool, bank, AG_MAX_THREADS, false);
        pthread_mutex_unlock(&bank->lock);
    }
}

/* Wakes helpers as a tree. To wake one takes 1 to 5 us, and 127 of them would keep the leader from its own plan for
 * longer than the plan takes. So the leader wakes two workers in its bank and one in each other bank, and leaves the
 * rest owed. Each worker that wakes first wakes two of those, and each thread that ends a chunk wakes one: so if one
 * worker wakes late, the others do not have to wait for it. */
#define BRANCHES 2

static void wake_in_bank(ag_pool *pool, ag_worker *worker, ag_bank *bank, int n, int now)
{
    if (n <= 0 || atomic_load(&bank->sleepers) == 0) return;
    pthread_mutex_lock(&bank->lock);
    const int woken = wake_locked(pool, bank, n < now ? n : now, true);
    const int left = bank->asleep != NULL ? n - woken : 0;
    if (left > bank->owed) bank->owed = left;
    atomic_store_explicit(&bank->owes, bank->owed > 0, memory_order_relaxed);
    pthread_mutex_unlock(&bank->lock);
    atomic_fetch_add_explicit(&worker->woke, (unsigned)woken, memory_order_relaxed);
}

void ag_pool_wake_helpers(ag_pool *pool, ag_worker *worker, int n)
{
    const int banks = pool->n_banks, small = atomic_load(&pool->n_threads) <= AG_SMALL_POOL;
    for (int i = 0; i < banks; ++i) { /* the same number in each bank; in its own one less, since it counts itself */
        const int share = n / (banks - i);
        ag_bank *bank = &pool->banks[(worker->bank + i) % banks];
        wake_in_bank(pool, worker, bank, share, small ? share : i == 0 ? BRANCHES : 1);
        n -= share;
    }
}

void ag_pool_wake_owed(ag_pool *pool, ag_worker *worker, int n)
{
    ag_bank *bank = &pool->banks[worker->bank];
    if (!atomic_load_explicit(&bank->owes, memory_order_relaxed)) return;
    pthread_mutex_lock(&bank->lock);
    if (atomic_load(&pool->active_runs) == 0) bank->owed = 0; /* the plan that they were for has ended */
    if (n > bank->owed) n = bank->owed;
    const int woken = wake_locked(pool, bank, n, true);
    bank->owed = bank->asleep != NULL ? bank->owed - woken : 0;
    atomic_store_explicit(&bank->owes, bank->owed > 0, memory_order_relaxed);
    pthread_mutex_unlock(&bank->lock);
    atomic_fetch_add_explicit(&worker->woke, (unsigned)woken, memory_order_relaxed);
}

/* -- sleeping ------------------------------------------------------------------------------------------------- */

bool ag_pool_anything(ag_pool *pool)
{
    for (int i = 0; i < pool->n_banks; ++i) {
        if (atomic_load(&pool->banks[i].n_ready) > 0) return true;
    }
    for (int i = 0; i < AG_N_RUNS; ++i) {
        ag_run *r = &pool->runs[i];
        if (ag_run_claimable(r) && atomic_load(&r->engaged) <= atomic_load(&r->limit)) return true;
    }
    return false;
}

void ag_pool_sleep(ag_pool *pool, ag_worker *worker)
{
    ag_bank *bank = &pool->banks[worker->bank];
    /* read once, because the binding clears it when the process ends */
    void (*on_idle)(void) = atomic_load(&ag_on_idle);
    if (on_idle != NULL) on_idle();
    lie_apart(pool, worker);
    ag_pool_note_speed(pool, worker); /* it may have moved */
    pthread_mutex_lock(&bank->lock);
    atomic_fetch_add(&bank->sleepers, 1);
    if (!atomic_load(&pool->stop) && !ag_pool_anything(pool)) {
        lay_down(bank, worker);
        while (worker->asleep) pthread_cond_wait(&worker->wake, &bank->lock);
        /* It spins once more even if another worker was faster. */
    }
    atomic_fetch_sub(&bank->sleepers, 1);
    pthread_mutex_unlock(&bank->lock);
    arrive(pool, worker);
    ag_pool_wake_owed(pool, worker, BRANCHES);
}
