/* Timers: one thread serves every delay of the process, so a delay occupies no thread of a pool.
 *
 * A stream waits for one time at most, so its entry lies in the stream, and the entries make a heap, the earliest
 * first: 10,000 simulated devices that sleep cost each other nothing. Not here: what happens when the time has come
 * (stream_step.c). */
#include <stddef.h>

#include "stream_state.h"

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_TIMERS];
static pthread_cond_t changed;
static pthread_t thread;
static bool running, stopping;
static ag_heap sleeping; /* streams, by deadline; a reference to each */

static ag_stream *earliest(void)
{
    return sleeping.least != NULL ? (ag_stream *)((char *)sleeping.least - offsetof(ag_stream, timer)) : NULL;
}

static void *serve(void *unused)
{
    (void)unused;
    pthread_mutex_lock(lock);
    while (!stopping) {
        ag_stream *next = earliest();
        if (next == NULL) {
            pthread_cond_wait(&changed, lock);
            continue;
        }
        if (next->timer.key > ag_now()) {
            ag_cond_wait_until(&changed, lock, next->timer.key);
            continue;
        }
        const uint64_t ticket = next->timed;
        ag_heap_remove(&sleeping, &next->timer);
        next->timed = 0;
        pthread_mutex_unlock(lock);
        ag_stream_timer_fired(next, ticket);
        ag_stream_unref(next);
        pthread_mutex_lock(lock);
    }
    pthread_mutex_unlock(lock);
    return NULL;
}

static bool start(void)
{
    if (running) return true;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    stopping = false;
    running = ag_thread_start(&thread, serve, NULL, false);
    return running;
}

bool ag_timer_add(ag_stream *stream, const ag_slot *slot, uint64_t ticket, uint64_t deadline)
{
    pthread_mutex_lock(lock);
    const bool ok = start();
    if (ok) {
        /* set before ag_timer_hurry took the lock, or seen by it */
        if (ag_stream_aborting(stream, slot) || ag_stream_lost(stream) != NULL) deadline = 0;
        stream->timed = ticket;
        const ag_node *before = sleeping.least;
        ag_heap_add(&sleeping, &ag_stream_ref(stream)->timer, deadline);
        if (sleeping.least != before) pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(lock);
    return ok;
}

void ag_timer_hurry(ag_stream *stream, uint64_t first, uint64_t last)
{
    if (!ag_stream_alive(stream)) return; /* it is among the parent's */
    pthread_mutex_lock(lock);
    if (stream->timed != 0 && stream->timed >= first && stream->timed <= last) {
        ag_heap_remove(&sleeping, &stream->timer);
        ag_heap_add(&sleeping, &stream->timer, 0);
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(lock);
}

uint64_t ag_timer_compared(void)
{
    pthread_mutex_lock(lock);
    const uint64_t compared = sleeping.compared;
    pthread_mutex_unlock(lock);
    return compared;
}

void ag_timer_stop(void)
{
    pthread_mutex_lock(lock);
    bool join = running;
    stopping = true;
    if (running) pthread_cond_signal(&changed);
    pthread_mutex_unlock(lock);
    if (join) pthread_join(thread, NULL);
    pthread_mutex_lock(lock);
    running = false;
    pthread_mutex_unlock(lock);
}

void ag_timer_forked(void) /* in the child: the thread is the parent's, and so are the streams */
{
    running = stopping = false;
    sleeping = (ag_heap){0};
}
