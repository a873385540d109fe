/* Lifetimes: streams dropped with work in flight, pools dropped by their own workers, handles that outlive
 * everything.
 *
 * The sanitizers find the errors; without them these tests check only that the runs end. */
#include <pthread.h>

#include "rig.h"

static atomic_int gate;

static agk_status wait_at_gate(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    CHECK_SOON(atomic_load(&gate));
    return AGK_OK;
}

static agk_status tick(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)node;
    (void)chunk;
    atomic_fetch_add((atomic_int *)task->arena, 1);
    return AGK_OK;
}

static ag_plan *one_step(agk_step_fn *run, uint32_t n_chunks)
{
    ag_plan *plan = rig_plan();
    rig_add(plan, run, n_chunks, -1, NULL, 0);
    return plan;
}

/* Shows that a stream is gone: this drops the user data of an error that the stream's last slot held. */
static atomic_int dropped;

static void count_drop(void *user)
{
    (void)user;
    atomic_fetch_add(&dropped, 1);
}

static ag_error *marked_error(void)
{
    ag_error *error = ag_error_new(AG_FOREIGN, "device", "test", NULL, "on purpose");
    atomic_store(&error->user, &dropped);
    atomic_store(&error->seen, true);
    return error;
}

/* A worker drops the stream, and with it the last reference to the pool; the pool cannot join that worker. */
static void pool_dropped_by_its_worker(int n_threads)
{
    ag_drop_user = count_drop;
    atomic_store(&dropped, 0);
    for (int i = 0; i < SCALED(200); ++i) {
        ag_pool *pool = rig_pool(n_threads);
        ag_stream *stream = rig_stream(pool, 0);
        ag_plan *plan = one_step(wait_at_gate, 1 + (uint32_t)i % 3);
        ag_error *error = marked_error();
        atomic_store(&gate, 0);
        rig_send(stream, rig_plan_slot(plan, NULL));
        rig_send(stream, rig_fail(error));
        ag_plan_unref(plan);
        ag_error_unref(error);
        ag_pool_unref(pool);
        ag_stream_unref(stream);
        atomic_store(&gate, 1);
        CHECK_SOON(atomic_load(&dropped) == i + 1); /* dropped together with the stream's last block */
    }
    check_nap(50000); /* time for detached workers to end */
}

static void dropped_with_work_in_flight(void)
{
    ag_pool *pool = rig_pool(2);
    ag_plan *plan = one_step(tick, 3);
    atomic_int ticks = 0;
    const int n = SCALED(2000);
    for (int i = 0; i < n; ++i) {
        ag_stream *stream = rig_stream(pool, 0);
        rig_send(stream, rig_plan_slot(plan, &ticks));
        if (i % 3 == 0) rig_send(stream, rig_delay(1000));
        rig_send(stream, rig_plan_slot(plan, &ticks));
        ag_stream_unref(stream);
    }
    CHECK_SOON(atomic_load(&ticks) == 6 * n);
    ag_plan_unref(plan);
    check_nap(20000);
    rig_end(pool);
}

/* A handle keeps its block alive, not its stream: the slot can be read when the stream is gone. */
static void handles_outlive_streams(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "test", NULL, "on purpose");
    op ops[100];
    for (int i = 0; i < 100; ++i) ops[i] = rig_start(stream, rig_fail(error));
    rig_drain(stream);
    ag_stream_unref(stream);
    rig_end(pool);
    for (int i = 99; i >= 0; --i) {
        CHECK(atomic_load(&rig_slot_of(ops[i])->error) == error);
        rig_drop(ops[i]);
    }
    ag_error_unref(error);
}

static void *submit_rest(void *argument)
{
    rig_drain(argument);
    return NULL;
}

/* The slot holds the last reference to the stream that it waits for. The submission must not touch that stream after
 * the slot may have run. The waiting stream is already running, so a worker takes the slot at once. */
static void slots_may_hold_the_last_reference(void)
{
    ag_pool *pool = rig_pool(3);
    ag_stream *waiting = rig_stream(pool, 0);
    ag_plan *plan = one_step(tick, 1);
    atomic_int ticks = 0;
    for (int i = 0; i < SCALED(20000); ++i) {
        ag_stream *target = rig_stream(pool, 0);
        rig_send(waiting, rig_plan_slot(plan, &ticks));
        ag_slot slots[3] = {rig_wait_slot(target, AG_TAIL), rig_slot(AG_KIND_NOP), rig_slot(AG_KIND_NOP)};
        ag_stream_unref(target); /* now only the slot refers to it */
        ag_block *blocks[3];
        uint64_t tickets[3];
        ag_batch batch = {waiting, slots, 3, blocks, tickets};
        CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_OK);
        for (int k = 0; k < 3; ++k) ag_block_unref(blocks[k]);
    }
    pthread_t thread;
    pthread_create(&thread, NULL, submit_rest, waiting);
    pthread_join(thread, NULL);
    ag_plan_unref(plan);
    ag_stream_unref(waiting);
    rig_end(pool);
}

/* Workers of two pools drop each other's streams, and with them each other's pools. */
static void pools_drop_each_other(void)
{
    ag_drop_user = count_drop;
    atomic_store(&dropped, 0);
    const int n = SCALED(500);
    for (int i = 0; i < n; ++i) {
        ag_pool *pools[2] = {rig_pool(1), rig_pool(1)};
        ag_stream *streams[2] = {rig_stream(pools[0], 0), rig_stream(pools[1], 0)};
        ag_plan *plan = one_step(wait_at_gate, 1);
        atomic_store(&gate, 0);
        for (int k = 0; k < 2; ++k) rig_send(streams[k], rig_plan_slot(plan, NULL));
        for (int k = 0; k < 2; ++k) rig_send(streams[k], rig_wait_slot(streams[1 - k], 1));
        for (int k = 0; k < 2; ++k) {
            ag_error *error = marked_error();
            rig_send(streams[k], rig_fail(error));
            ag_error_unref(error);
        }
        for (int k = 0; k < 2; ++k) {
            ag_stream_unref(streams[k]);
            ag_pool_unref(pools[k]);
        }
        ag_plan_unref(plan);
        atomic_store(&gate, 1);
        CHECK_SOON(atomic_load(&dropped) == 2 * (i + 1));
    }
    check_nap(50000);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    pool_dropped_by_its_worker(1);
    pool_dropped_by_its_worker(3);
    dropped_with_work_in_flight();
    handles_outlive_streams();
    slots_may_hold_the_last_reference();
    pools_drop_each_other();
    ag_timer_stop();
    return 0;
}
