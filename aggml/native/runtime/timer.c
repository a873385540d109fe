/* Timers: for each bank of memory one thread serves the delays of the streams that belong there, so a delay occupies
 * no thread of a pool.
 *
 * A single heap for the process would have one lock that the workers of all sockets contend for, and one thread that
 * runs whatever comes after each delay. A machine with one bank has one heap and one thread. A timer belongs to the
 * same bank all its life, because ag_timer_hurry must find the timer that another thread sets at this moment. The
 * timers of a bank form a heap, the earliest first: 10,000 simulated devices that sleep cost each other nothing. Not
 * here: what happens when the time has come (stream.c). */
#include "internal.h"
#include "timer.h"
#include "topology.h"

typedef struct ag_timers {
    _Alignas(64) pthread_mutex_t lock; /* guards all fields that follow */
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stopping;
    ag_heap sleeping; /* timers, ordered by deadline */
    uint64_t ended;   /* timers that fired */
} ag_timers;

#define FRESH {.lock = PTHREAD_MUTEX_INITIALIZER}
static ag_timers timers[AG_MAX_BANKS] = {FRESH, FRESH, FRESH, FRESH, FRESH, FRESH, FRESH, FRESH};
_Static_assert(AG_MAX_BANKS == 8, "each has its lock");
static atomic_uint next_timer; /* timers are assigned to the banks in turn */

static void forget(void) /* in the child: the threads and the streams are the parent's */
{
    for (int i = 0; i < AG_MAX_BANKS; ++i) timers[i] = (ag_timers)FRESH;
}

static void lock_timers(ag_timers *t)
{
    ag_at_fork(AG_FORK_TIMERS, forget); /* before the lock is held: a fork may come while it is */
    pthread_mutex_lock(&t->lock);
}

void ag_timer_init(ag_timer *timer, const ag_timer_calls *calls)
{
    const unsigned turn = atomic_fetch_add_explicit(&next_timer, 1, memory_order_relaxed);
    *timer = (ag_timer){.bank = (int)(turn % (unsigned)ag_banks()), .calls = calls};
}

static void *serve(void *argument)
{
    ag_timers *t = argument;
    if (ag_banks() > 1) ag_bank_stay((int)(t - timers));
    pthread_mutex_lock(&t->lock);
    while (!t->stopping) {
        ag_timer *next = (ag_timer *)t->sleeping.least; /* the node is its first member */
        if (next == NULL) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        if (next->node.key > ag_now()) {
            ag_cond_wait_until(&t->changed, &t->lock, next->node.key);
            continue;
        }
        const uint64_t ticket = next->ticket;
        ag_heap_remove(&t->sleeping, &next->node);
        next->ticket = 0;
        ++t->ended;
        pthread_mutex_unlock(&t->lock);
        next->calls->on_time(next, ticket);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static bool start(ag_timers *t)
{
    if (t->running) return true;
    ag_cond_init(&t->changed);
    t->stopping = false;
    t->running = ag_thread_start(&t->thread, serve, t, false);
    return t->running;
}

bool ag_timer_add(ag_timer *timer, uint64_t ticket, uint64_t deadline, const void *what)
{
    ag_timers *t = &timers[timer->bank];
    lock_timers(t);
    const bool ok = start(t);
    if (ok) {
        if (timer->calls->is_over(timer, what)) deadline = 0;
        timer->ticket = ticket;
        const ag_node *before = t->sleeping.least;
        ag_heap_add(&t->sleeping, &timer->node, deadline);
        if (t->sleeping.least != before) pthread_cond_signal(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return ok;
}

void ag_timer_hurry(ag_timer *timer, uint64_t first, uint64_t last)
{
    ag_timers *t = &timers[timer->bank];
    lock_timers(t);
    if (timer->ticket != 0 && timer->ticket >= first && timer->ticket <= last) {
        ag_heap_remove(&t->sleeping, &timer->node);
        ag_heap_add(&t->sleeping, &timer->node, 0);
        pthread_cond_signal(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
}

uint64_t ag_timer_compared(void)
{
    uint64_t compared = 0;
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        lock_timers(&timers[i]);
        compared += timers[i].sleeping.compared;
        pthread_mutex_unlock(&timers[i].lock);
    }
    return compared;
}

uint64_t ag_timer_ended(int bank)
{
    lock_timers(&timers[bank]);
    const uint64_t ended = timers[bank].ended;
    pthread_mutex_unlock(&timers[bank].lock);
    return ended;
}

pthread_mutex_t *ag_timer_lock(int bank)
{
    ag_at_fork(AG_FORK_TIMERS, forget);
    return &timers[bank].lock;
}

void ag_timer_stop(void)
{
    bool join[AG_MAX_BANKS];
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        ag_timers *t = &timers[i];
        lock_timers(t);
        join[i] = t->running;
        t->stopping = true;
        if (t->running) pthread_cond_signal(&t->changed);
        pthread_mutex_unlock(&t->lock);
    }
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        if (!join[i]) continue;
        pthread_join(timers[i].thread, NULL);
        pthread_mutex_lock(&timers[i].lock);
        timers[i].running = false;
        pthread_mutex_unlock(&timers[i].lock);
    }
}
