/* Streams that wait for each other on a pool of one thread: no wait occupies the thread, and none ends early. */
#include "rig.h"

#define STREAMS 16

typedef struct expectation {
    ag_stream *stream;
    uint64_t ticket;
} expectation;

static atomic_uint checked;

static agk_status look(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const expectation *e = (const expectation *)task->arena;
    (void)node;
    (void)chunk;
    CHECK(ag_stream_completed(e->stream) >= e->ticket);
    atomic_fetch_add(&checked, 1);
    return AGK_OK;
}

static void run(rng *r, int n_threads)
{
    const int n_waits = SCALED(4000);
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *streams[STREAMS];
    for (int i = 0; i < STREAMS; ++i) streams[i] = rig_stream(pool, 0);
    expectation *expected = calloc((size_t)n_waits, sizeof *expected);
    ag_plan *plan = rig_plan();
    rig_add(plan, look, 1, -1, NULL, 0);
    atomic_store(&checked, 0);
    for (int i = 0; i < n_waits; ++i) {
        ag_stream *waiter = streams[rng_below(r, STREAMS)], *target = streams[rng_below(r, STREAMS)];
        bool tail = rng_below(r, 2);
        uint64_t ticket = ag_stream_submitted(target);
        if (!tail && ticket > 0) ticket -= rng_below(r, ticket > 5 ? 5 : (uint32_t)ticket);
        expected[i] = (expectation){target, target == waiter ? 0 : ticket};
        rig_send(waiter, rig_wait_slot(target, tail ? AG_TAIL : ticket));
        rig_send(waiter, rig_plan_slot(plan, &expected[i]));
        if (rng_below(r, 200) == 0) rig_send(waiter, rig_delay(rng_below(r, 100000)));
    }
    for (int i = 0; i < STREAMS; ++i) rig_drain(streams[i]);
    CHECK_EQ(atomic_load(&checked), n_waits);
    for (int i = 0; i < STREAMS; ++i) ag_stream_unref(streams[i]);
    ag_plan_unref(plan);
    rig_end(pool);
    free(expected);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(0);
    run(&r, 1);
    run(&r, 3);
    return 0;
}
