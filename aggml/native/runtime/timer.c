/* Timers: one thread serves every delay of the process, so a delay occupies no thread of a pool.
 *
 * A short unsorted list: there are as many entries as simulated devices that sleep, a handful. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "internal.h"

typedef struct timer {
    struct timer *next;
    ag_stream *stream;
    uint64_t ticket, deadline;
} timer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_t thread;
static bool running, stopping;
static timer *timers;

static timer **earliest(void)
{
    timer **best = &timers;
    for (timer **t = &timers; *t != NULL; t = &(*t)->next) {
        if ((*t)->deadline < (*best)->deadline) best = t;
    }
    return best;
}

static void *serve(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        if (timers == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        timer **next = earliest();
        if ((*next)->deadline > ag_now()) {
            ag_cond_wait_until(&changed, &lock, (*next)->deadline);
            continue;
        }
        timer *fired = *next;
        *next = fired->next;
        pthread_mutex_unlock(&lock);
        ag_stream_timer_fired(fired->stream, fired->ticket);
        ag_stream_unref(fired->stream);
        free(fired);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
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
    running = pthread_create(&thread, NULL, serve, NULL) == 0;
    return running;
}

bool ag_timer_add(ag_stream *stream, const ag_slot *slot, uint64_t ticket, uint64_t deadline)
{
    timer *entry = malloc(sizeof *entry);
    if (entry == NULL) return false;
    pthread_mutex_lock(&lock);
    bool ok = start();
    if (ok) {
        /* set before ag_timer_hurry took the lock, or seen by it */
        if (ag_stream_aborting(stream, slot) || ag_stream_lost(stream) != NULL) deadline = 0;
        *entry = (timer){.next = timers, .stream = ag_stream_ref(stream), .ticket = ticket, .deadline = deadline};
        timers = entry;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (!ok) free(entry);
    return ok;
}

void ag_timer_hurry(const ag_stream *stream, uint64_t first, uint64_t last)
{
    pthread_mutex_lock(&lock);
    for (timer *t = timers; t != NULL; t = t->next) {
        if (t->stream == stream && t->ticket >= first && t->ticket <= last) t->deadline = 0;
    }
    if (running) pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

void ag_timer_stop(void)
{
    pthread_mutex_lock(&lock);
    bool join = running;
    stopping = true;
    if (running) pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    if (join) pthread_join(thread, NULL);
    pthread_mutex_lock(&lock);
    running = false;
    pthread_mutex_unlock(&lock);
}

void ag_timer_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    running = stopping = false;
    timers = NULL; /* the parent's; leaked in the child */
}
