/* Watches and notifiers from several threads at once: no wake-up is lost, none comes after an unwatch or a close. */
#include <poll.h>
#include <pthread.h>

#include "rig.h"

#define THREADS 4

static agk_status nothing(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    return AGK_OK;
}

static bool readable(ag_notifier *notifier, int timeout_ms)
{
    struct pollfd fd = {.fd = ag_notifier_fd(notifier), .events = POLLIN};
    return poll(&fd, 1, timeout_ms) == 1;
}

/* As a reactor waits: watch, sleep, drain, look. A watch that says `done` armed nothing. */
static void sleep_until(ag_stream *stream, ag_notifier *notifier, uint64_t ticket)
{
    while (ag_stream_completed(stream) < ticket) {
        if (ag_stream_watch(stream, notifier, ticket)) break;
        CHECK(readable(notifier, PATIENCE_S * 1000));
        ag_notifier_drain(notifier);
    }
    CHECK(ag_stream_completed(stream) >= ticket);
}

typedef struct shared {
    ag_stream *own[THREADS], *common;
    ag_plan *plan;
    atomic_int next;
} shared;

static void *many_times(void *argument)
{
    shared *s = argument;
    int index = atomic_fetch_add(&s->next, 1);
    rng r = rng_new((uint64_t)index);
    ag_notifier *notifier = ag_notifier_new();
    CHECK(notifier != NULL);
    for (int i = 0; i < SCALED(100000) / THREADS; ++i) {
        ag_stream *stream = rng_below(&r, 2) ? s->own[index] : s->common;
        op o = rig_start(stream, rng_below(&r, 8) ? rig_plan_slot(s->plan, NULL) : rig_delay(rng_below(&r, 30000)));
        if (rng_below(&r, 4) == 0) { /* an early ticket beside a late one: the least is what counts */
            op later = rig_start(stream, rig_plan_slot(s->plan, NULL));
            if (rng_below(&r, 2)) ag_stream_watch(stream, notifier, later.ticket);
            sleep_until(stream, notifier, o.ticket);
            sleep_until(stream, notifier, later.ticket);
            rig_drop(later);
        } else {
            check_spin(rng_below(&r, 2000));
            sleep_until(stream, notifier, o.ticket);
        }
        if (rng_below(&r, 16) == 0) ag_stream_unwatch(stream, notifier);
        rig_drop(o);
    }
    ag_stream_unwatch(s->own[index], notifier);
    ag_stream_unwatch(s->common, notifier);
    ag_notifier_close(notifier);
    ag_notifier_unref(notifier);
    return NULL;
}

static void no_wake_up_is_lost(void)
{
    ag_pool *pool = rig_pool(2);
    shared s = {.common = rig_stream(pool, 0), .plan = rig_plan()};
    pthread_t threads[THREADS];
    rig_add(s.plan, nothing, 1, -1, NULL, 0);
    for (int i = 0; i < THREADS; ++i) s.own[i] = rig_stream(pool, 0);
    for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, many_times, &s);
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; ++i) ag_stream_unref(s.own[i]);
    ag_stream_unref(s.common);
    ag_plan_unref(s.plan);
    rig_end(pool);
}

static void unwatch_is_silent(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifier = ag_notifier_new(), *other = ag_notifier_new();
    ag_stream_hold(stream);
    op o = rig_start(stream, rig_slot(AG_KIND_NOP));
    CHECK(!ag_stream_watch(stream, notifier, o.ticket));
    CHECK(!ag_stream_watch(stream, other, o.ticket));
    ag_stream_unwatch(stream, notifier);
    ag_stream_unwatch(stream, notifier); /* harmless */
    ag_stream_release(stream);
    CHECK(readable(other, PATIENCE_S * 1000));
    CHECK(!readable(notifier, 0));
    CHECK(ag_stream_watch(stream, notifier, o.ticket)); /* done: nothing is armed */
    CHECK(!readable(notifier, 0));
    ag_notifier_signal(notifier);
    ag_notifier_signal(notifier);
    CHECK(readable(notifier, 0));
    ag_notifier_drain(notifier);
    CHECK(!readable(notifier, 0));
    rig_drop(o);
    ag_notifier_unref(notifier);
    ag_notifier_unref(other);
    ag_stream_unref(stream);
    rig_end(pool);
}

typedef struct closing {
    ag_notifier *notifier;
    atomic_bool stop;
} closing;

static void *signal_on(void *argument)
{
    closing *c = argument;
    while (!atomic_load(&c->stop)) ag_notifier_signal(c->notifier);
    ag_notifier_unref(c->notifier);
    return NULL;
}

/* A loop that ends closes its descriptor while workers signal it: the number may be given out again at once. */
static void closed_while_signalled(void)
{
    for (int i = 0; i < SCALED(300); ++i) {
        closing c = {.notifier = ag_notifier_new()};
        pthread_t threads[2];
        for (int k = 0; k < 2; ++k) {
            ag_notifier_ref(c.notifier);
            pthread_create(&threads[k], NULL, signal_on, &c);
        }
        for (int k = 0; k < 20; ++k) ag_notifier_drain(c.notifier);
        int fd = ag_notifier_fd(c.notifier);
        ag_notifier_close(c.notifier);
        ag_notifier_close(c.notifier);
        CHECK_EQ(ag_notifier_fd(c.notifier), -1);
        ag_notifier *successor = ag_notifier_new();
        bool reused = ag_notifier_fd(successor) == fd;
        check_spin(20000);
        if (reused) CHECK(!readable(successor, 0));
        ag_notifier_drain(c.notifier);
        atomic_store(&c.stop, true);
        for (int k = 0; k < 2; ++k) pthread_join(threads[k], NULL);
        ag_notifier_unref(successor);
        ag_notifier_unref(c.notifier);
    }
}

/* A watch keeps its notifier, a stream that ends lets go of it. */
static void watches_die_with_their_stream(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifier = ag_notifier_new();
    CHECK(!ag_stream_watch(stream, notifier, 5));
    ag_notifier_unref(notifier);
    ag_stream_unref(stream);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    no_wake_up_is_lost();
    unwatch_is_silent();
    closed_while_signalled();
    watches_die_with_their_stream();
    return 0;
}
