/* Timers: for each bank of memory one thread serves the delays of the streams that belong there, so a delay occupies no
 * thread of a pool.
 *
 * A single heap for the process would have one lock that the workers of all sockets contend for, and one thread that
 * runs whatever comes after each delay. A machine with one bank has one heap and one thread. A stream belongs to the
 * same timers all its life, because ag_timer_hurry must find the entry that another thread adds at this moment. A
 * stream waits for one time at most, so the entry is a member of the stream. The entries of a bank form a heap, the
 * earliest first: 10,000 simulated devices that sleep cost each other nothing. Not here: what happens when the time
 * has come (stream_step.c). */
#include <stddef.h>

#include "stream_state.h"
#include "topology.h"

typedef struct ag_timers {
    _Alignas(64) pthread_mutex_t lock; /* guards all fields that follow */
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stopping;
    ag_heap sleeping; /* streams, ordered by deadline; a reference to each */
    uint64_t ended;   /* delays that ended and whose streams were told */
} ag_timers;

#define FRESH {.lock = PTHREAD_MUTEX_INITIALIZER}
static ag_timers timers[AG_MAX_BANKS] = {FRESH, FRESH, FRESH, FRESH, FRESH, FRESH, FRESH, FRESH};
_Static_assert(AG_MAX_BANKS == 8, "each has its lock");
static atomic_uint next_stream; /* streams are assigned to the banks in turn */

int ag_timer_turn(void)
{
    return (int)(atomic_fetch_add_explicit(&next_stream, 1, memory_order_relaxed) % (unsigned)ag_banks());
}

static ag_stream *earliest(ag_timers *t)
{
    return t->sleeping.least != NULL ? (ag_stream *)((char *)t->sleeping.least - offsetof(ag_stream, timer)) : NULL;
}

static void *serve(void *argument)
{
    ag_timers *t = argument;
    if (ag_banks() > 1) ag_bank_stay((int)(t - timers));
    pthread_mutex_lock(&t->lock);
    while (!t->stopping) {
        ag_stream *next = earliest(t);
        if (next == NULL) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        if (next->timer.key > ag_now()) {
            ag_cond_wait_until(&t->changed, &t->lock, next->timer.key);
            continue;
        }
        const uint64_t ticket = next->timed;
        ag_heap_remove(&t->sleeping, &next->timer);
        next->timed = 0;
        ++t->ended;
        pthread_mutex_unlock(&t->lock);
        ag_stream_timer_fired(next, ticket);
        ag_stream_unref(next);
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

bool ag_timer_add(ag_stream *stream, const ag_slot *slot, uint64_t ticket, uint64_t deadline)
{
    ag_timers *t = &timers[stream->timers];
    pthread_mutex_lock(&t->lock);
    const bool ok = start(t);
    if (ok) {
        /* it was set before ag_timer_hurry took the lock, or this thread sees it */
        if (ag_stream_aborting(stream, slot) || ag_stream_lost(stream) != NULL) deadline = 0;
        stream->timed = ticket;
        const ag_node *before = t->sleeping.least;
        ag_heap_add(&t->sleeping, &ag_stream_ref(stream)->timer, deadline);
        if (t->sleeping.least != before) pthread_cond_signal(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return ok;
}

void ag_timer_hurry(ag_stream *stream, uint64_t first, uint64_t last)
{
    if (!ag_stream_alive(stream)) return; /* the stream and its timers are the parent's */
    ag_timers *t = &timers[stream->timers];
    pthread_mutex_lock(&t->lock);
    if (stream->timed != 0 && stream->timed >= first && stream->timed <= last) {
        ag_heap_remove(&t->sleeping, &stream->timer);
        ag_heap_add(&t->sleeping, &stream->timer, 0);
        pthread_cond_signal(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
}

uint64_t ag_timer_compared(void)
{
    uint64_t compared = 0;
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        pthread_mutex_lock(&timers[i].lock);
        compared += timers[i].sleeping.compared;
        pthread_mutex_unlock(&timers[i].lock);
    }
    return compared;
}

uint64_t ag_timer_ended(int bank)
{
    pthread_mutex_lock(&timers[bank].lock);
    const uint64_t ended = timers[bank].ended;
    pthread_mutex_unlock(&timers[bank].lock);
    return ended;
}

pthread_mutex_t *ag_timer_lock(int bank)
{
    return &timers[bank].lock;
}

void ag_timer_stop(void)
{
    bool join[AG_MAX_BANKS];
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        ag_timers *t = &timers[i];
        pthread_mutex_lock(&t->lock);
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

void ag_timer_forked(void) /* in the child: the threads and the streams are the parent's */
{
    for (int i = 0; i < AG_MAX_BANKS; ++i) timers[i] = (ag_timers)FRESH;
}
