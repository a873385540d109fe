/* Declarations that only files of runtime/ share: fork hooks, stream internals that the pool needs. */
#ifndef AG_INTERNAL_H
#define AG_INTERNAL_H

#include <time.h>

#include "runtime.h"

/* Timers (timer.c): a lock, for tests that fork while it is held. */
pthread_mutex_t *ag_timer_lock(int bank);

/* Threads (thread.c). False: the system refused to start the thread. */
bool ag_thread_start(pthread_t *thread, void *(*body)(void *), void *argument, bool detached);
enum { AG_CPUS = 1024 };
int ag_cpu_here(void); /* the core on which this thread runs, below AG_CPUS; -1: unknown */

/* Living streams and pools (living.c). The lists may be read under AG_LOCK_LIVING. Lock order: this lock, then a
 * stream's, then the timers'. */
void ag_living_add_stream(ag_stream *stream);
void ag_living_remove_stream(ag_stream *stream);
ag_stream *ag_living_streams(void); /* the first one */
void ag_living_add_pool(ag_pool *pool);
void ag_living_remove_pool(ag_pool *pool);
ag_pool *ag_living_pools(void);

/* Courtesy (courtesy.c). */
/* this thread runs an event loop; returns a handle to close, -1: workers will not yield to it */
int ag_courtesy_open(void);
void ag_courtesy_close(int loop);
/* this thread is a worker of a pool: whenever it breathes, it looks for waiting loops */
void ag_courtesy_worker(void);
void ag_courtesy_breathe(void);    /* between two pieces of work; 25 ns */
uint64_t ag_courtesy_yields(void); /* yields of all workers so far */

/* Notifiers (notifier.c). A worker that spins wakes the loop that sleeps on its core. Cores are numbered as ag_cpu_here
 * does; -1: unknown, these functions then do nothing. */
void ag_relay_enter(int cpu); /* this thread spins on `cpu` until it leaves, and wakes loops there all the while */
void ag_relay_serve(int cpu);
void ag_relay_leave(int cpu);
void ag_notifier_here(ag_notifier *notifier);     /* called by the thread that will sleep: it is on this core */
int ag_notifier_cpu(const ag_notifier *notifier); /* the core at the last such call */
/* Waits that are due. For the first two the caller holds the lock of the wait's stream. */
void ag_notifier_put(ag_notifier *notifier, ag_wait *wait);    /* the wait is due from here on; does not signal */
void ag_notifier_forget(ag_notifier *notifier, ag_wait *wait); /* the wait is not due any more, if it was */
ag_wait *ag_notifier_next_due(ag_notifier *notifier);          /* takes it out; its references are the caller's then */

/* Experts (experts.c). */
/* finds which experts are used and how long the copy takes; NULL: no error */
ag_error *ag_experts_look(ag_slot *slot, const char *device);
void ag_experts_run(const ag_slot *slot);

/* One pause of a spinning thread: about 25 ns on x86. */
static inline void ag_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline void ag_cond_init(pthread_cond_t *cond) /* for ag_cond_wait_until */
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits until `deadline` of ag_now at most; the condition must have been made for that clock. Non-zero: timed out. */
static inline int ag_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline)
{
#ifdef __APPLE__
    uint64_t now = ag_now(), ns = deadline > now ? deadline - now : 0;
#else
    uint64_t ns = deadline;
#endif
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
#ifdef __APPLE__
    return pthread_cond_timedwait_relative_np(cond, lock, &at);
#else
    return pthread_cond_timedwait(cond, lock, &at);
#endif
}

/* The time `ns` from now, for conditions that were made for the wall clock. */
static inline struct timespec ag_wall_after(uint64_t ns)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    ns += (uint64_t)at.tv_nsec;
    at.tv_sec += (time_t)(ns / 1000000000u);
    at.tv_nsec = (long)(ns % 1000000000u);
    return at;
}

/* A deadline. A time beyond the clock's range becomes the latest one, so that it counts as never and not as long
 * ago. */
static inline uint64_t ag_after(uint64_t start, uint64_t ns)
{
    return ns < UINT64_MAX - start ? start + ns : UINT64_MAX;
}

bool ag_pool_takes(ag_pool *pool);          /* called for each submission; false: the pool is closed */
bool ag_pool_stopping(const ag_pool *pool); /* its workers leave queued work undone */

#endif
