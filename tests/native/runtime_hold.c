/* Holds, releases and closing: no operation starts while its stream is held; those that have started end. */
#include <pthread.h>

#include "rig.h"

static atomic_int gate; /* a step waits here, so that the test can act during the step */

static agk_status wait_at_gate(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)node;
    (void)chunk;
    atomic_fetch_add((atomic_int *)task->arena, 1);
    CHECK_SOON(atomic_load(&gate));
    return AGK_OK;
}

static void as_many_releases_as_holds(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    CHECK(!ag_stream_release(stream));
    ag_stream_hold(stream);
    ag_stream_hold(stream);
    op o = rig_start(stream, rig_slot(AG_KIND_NOP));
    CHECK(ag_stream_release(stream));
    check_nap(1000);
    CHECK(!rig_done(o));
    CHECK(ag_stream_release(stream));
    CHECK_EQ(rig_result(o), 0);
    CHECK(!ag_stream_release(stream));
    ag_stream_unref(stream);
    rig_end(pool);
}

static void what_has_started_ends(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = rig_plan();
    rig_add(plan, wait_at_gate, 1, -1, NULL, 0);
    atomic_int entered = 0;
    atomic_store(&gate, 0);
    op running = rig_start(stream, rig_plan_slot(plan, &entered));
    op next = rig_start(stream, rig_slot(AG_KIND_NOP));
    CHECK_SOON(atomic_load(&entered) == 1);
    ag_stream_hold(stream);
    atomic_store(&gate, 1);
    CHECK_EQ(rig_result(running), 0);
    check_nap(1000);
    CHECK(!rig_done(next));
    ag_stream_release(stream);
    CHECK_EQ(rig_result(next), 0);
    op delay = rig_start(stream, rig_delay(2000000)); /* the delay is already waiting when the hold comes */
    CHECK_SOON(rig_slot_of(delay)->started != 0);
    ag_stream_hold(stream);
    CHECK_EQ(rig_result(delay), 0);
    ag_stream_release(stream);
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
}

typedef struct toggler {
    ag_stream *stream;
    atomic_bool stop;
} toggler;

static void *toggle(void *argument)
{
    toggler *t = argument;
    rng r = rng_new(7);
    while (!atomic_load(&t->stop)) {
        ag_stream_hold(t->stream);
        check_spin(rng_below(&r, 3000));
        CHECK(ag_stream_release(t->stream));
        check_spin(rng_below(&r, 3000));
    }
    return NULL;
}

/* Two threads hold and release while a third submits: every operation ends. */
static void concurrently(void)
{
    ag_pool *pool = rig_pool(2);
    toggler t = {.stream = rig_stream(pool, 0)};
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, toggle, &t);
    uint64_t value = 0;
    for (int i = 0; i < SCALED(20000); ++i) {
        rig_send(t.stream, rig_fill(&value, i & 0xff, sizeof value));
        if (i % 100 == 0) rig_wait((op){.stream = t.stream, .ticket = ag_stream_submitted(t.stream)});
    }
    atomic_store(&t.stop, true);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    rig_drain(t.stream);
    ag_stream_unref(t.stream);
    rig_end(pool);
}

static void closing_refuses_and_finishes(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    op queued = rig_start(stream, rig_delay(1000000));
    CHECK(!ag_stream_closed(stream));
    ag_stream_close(stream);
    CHECK(ag_stream_closed(stream));
    ag_slot slot = rig_slot(AG_KIND_NOP);
    op o;
    ag_batch batch = {stream, &slot, 1, &o.block, &o.ticket};
    CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_CLOSED);
    CHECK_EQ(rig_result(queued), 0);
    ag_stream_unref(stream);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    as_many_releases_as_holds();
    what_has_started_ends();
    concurrently();
    closing_refuses_and_finishes();
    return 0;
}
