/* Waits and notifiers used by several threads at once: no wake-up is lost, and none comes after a cancel or a close.
 * The cost of a wait does not grow with the number of other waits. */
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
        if (rng_below(&r, 4) == 0) { /* also a wait that is cancelled when armed or already due */
            op later = rig_start(stream, rig_plan_slot(s->plan, NULL));
            ag_wait given_up = {0};
            ag_wait_arm(&given_up, stream, notifier, rng_below(&r, 2) ? o.ticket : later.ticket);
            check_spin(rng_below(&r, 4000));
            ag_wait_cancel(&given_up);
            CHECK(ag_notifier_take(notifier) == NULL);
            rig_sleep(o, notifier);
            rig_sleep(later, notifier);
            rig_drop(later);
        } else {
            check_spin(rng_below(&r, 2000));
            rig_sleep(o, notifier);
        }
        rig_drop(o);
    }
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

static void cancel_is_silent(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifier = ag_notifier_new(), *other = ag_notifier_new();
    ag_wait mine = {0}, theirs = {0};
    ag_stream_hold(stream);
    op o = rig_start(stream, rig_slot(AG_KIND_NOP));
    CHECK(ag_wait_arm(&mine, stream, notifier, o.ticket));
    CHECK(ag_wait_arm(&theirs, stream, other, o.ticket));
    ag_wait_cancel(&mine);
    ag_wait_cancel(&mine); /* cancelling twice does no harm */
    ag_stream_release(stream);
    CHECK(readable(other, PATIENCE_S * 1000));
    CHECK(ag_notifier_take(other) == &theirs);
    CHECK(ag_notifier_take(other) == NULL);
    CHECK(!readable(notifier, 0));
    CHECK(!ag_wait_arm(&mine, stream, notifier, o.ticket)); /* the operation is done, so the wait is not armed */
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

/* -- growth ------------------------------------------------------------------------------------------------------ */

enum { MANY = 8192, FEW_STEPS = 40 /* per entry added and removed, on average: 2 log2(8192) and a few */ };

static uint32_t least(const ag_heap *heap)
{
    return heap->least != NULL ? (uint32_t)heap->least->key : UINT32_MAX;
}

/* Compared with a plain array: keys are added, removed and taken in random order, many of them equal. */
static void the_heap_is_in_order(void)
{
    static ag_node nodes[MANY];
    static bool in[MANY];
    ag_heap heap = {0};
    rng r = rng_new(99);
    memset(in, 0, sizeof in);
    for (int i = 0; i < MANY; ++i) {
        ag_heap_add(&heap, &nodes[i], rng_below(&r, 1000));
        in[i] = true;
    }
    for (int i = 0; i < MANY / 2; ++i) {
        const uint32_t k = rng_below(&r, MANY);
        if (in[k]) ag_heap_remove(&heap, &nodes[k]);
        in[k] = !in[k];
        if (in[k]) ag_heap_add(&heap, &nodes[k], rng_below(&r, 1000));
    }
    uint64_t key = 0, turn = 0;
    for (ag_node *n = heap.least; n != NULL; n = heap.least) {
        /* equal keys in the order in which they were added */
        CHECK(n->key > key || (n->key == key && n->turn >= turn));
        key = n->key;
        turn = n->turn;
        CHECK(in[n - nodes]);
        in[n - nodes] = false;
        ag_heap_remove(&heap, n);
        CHECK(least(&heap) >= key);
    }
    for (int i = 0; i < MANY; ++i) CHECK(!in[i]);
    CHECK(heap.compared < (uint64_t)FEW_STEPS * MANY * 2);
}

/* A loop waits for many tickets of one stream and cancels half of the waits: the others become due in order. */
static void many_waits_on_one_stream(bool backwards)
{
    static ag_wait waits[MANY];
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifier = ag_notifier_new();
    memset(waits, 0, sizeof waits);
    ag_stream_hold(stream);
    for (int i = 0; i < MANY; ++i) rig_send(stream, rig_slot(AG_KIND_NOP));
    for (uint64_t i = 0; i < MANY; ++i) {
        const uint64_t at = backwards ? MANY - 1 - i : i;
        CHECK(ag_wait_arm(&waits[at], stream, notifier, at + 1));
    }
    for (int i = 0; i < MANY; i += 2) ag_wait_cancel(&waits[backwards ? MANY - 2 - i : i]);
    ag_stream_release(stream);
    rig_drain(stream);
    CHECK(readable(notifier, PATIENCE_S * 1000));
    int expected = 1;
    for (int left = MANY / 2; left > 0;) {
        ag_wait *wait = ag_notifier_take(notifier);
        if (wait == NULL) {
            check_nap(20); /* done, but not yet passed to the notifier */
            continue;
        }
        CHECK_EQ(wait - waits, expected);
        expected += 2;
        --left;
    }
    CHECK(ag_stream_compared(stream) < (uint64_t)FEW_STEPS * MANY);
    ag_notifier_unref(notifier);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* The same number of streams wait for one stream. */
static void many_streams_on_one(void)
{
    static ag_stream *streams[MANY];
    ag_pool *pool = rig_pool(2);
    ag_stream *first = rig_stream(pool, 0);
    ag_stream_hold(first);
    op o = rig_start(first, rig_slot(AG_KIND_NOP));
    for (int i = 0; i < MANY; ++i) {
        streams[i] = rig_stream(pool, 0);
        rig_send(streams[i], rig_wait_slot(first, o.ticket));
    }
    CHECK(ag_stream_compared(first) < (uint64_t)FEW_STEPS * MANY);
    ag_stream_release(first);
    for (int i = 0; i < MANY; ++i) {
        rig_drain(streams[i]);
        ag_stream_unref(streams[i]);
    }
    CHECK(ag_stream_compared(first) < (uint64_t)FEW_STEPS * MANY);
    rig_drop(o);
    ag_stream_unref(first);
    rig_end(pool);
}

/* More loops than are signalled in one pass. */
static void many_loops_on_one_stream(void)
{
    enum { LOOPS = 40 };
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifiers[LOOPS];
    ag_wait waits[3][LOOPS] = {0};
    ag_stream_hold(stream);
    op o = rig_start(stream, rig_slot(AG_KIND_NOP));
    for (int i = 0; i < LOOPS; ++i) notifiers[i] = ag_notifier_new();
    for (int k = 0; k < 3; ++k) {
        for (int i = 0; i < LOOPS; ++i) CHECK(ag_wait_arm(&waits[k][i], stream, notifiers[i], o.ticket));
    }
    ag_stream_release(stream);
    for (int i = 0; i < LOOPS; ++i) {
        CHECK(readable(notifiers[i], PATIENCE_S * 1000));
        for (int k = 0; k < 3;) {
            ag_wait *wait = ag_notifier_take(notifiers[i]);
            if (wait != NULL) CHECK(wait == &waits[k++][i]);
        }
        ag_notifier_unref(notifiers[i]);
    }
    rig_drop(o);
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

/* A loop that ends closes its descriptor while workers signal it: the system may reuse the number at once. */
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

/* A wait keeps stream and notifier alive until it is cancelled. */
static void waits_keep_what_they_need(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifier = ag_notifier_new();
    ag_wait wait = {0};
    CHECK(ag_wait_arm(&wait, stream, notifier, 5));
    ag_notifier_unref(notifier);
    ag_stream_unref(stream);
    ag_wait_cancel(&wait);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    the_heap_is_in_order();
    many_waits_on_one_stream(false);
    many_waits_on_one_stream(true);
    many_streams_on_one();
    many_loops_on_one_stream();
    no_wake_up_is_lost();
    cancel_is_silent();
    closed_while_signalled();
    waits_keep_what_they_need();
    return 0;
}
