/* The end of a pool and of the process: the pool owns queued work, whoever holds its stream. Not here: streams and
 * pools whose last reference is dropped with work in flight (runtime_lifetime.c). */
#include <pthread.h>

#include "runtime/internal.h"
#include "rig.h"

static atomic_int begun, gate;
static atomic_bool opens; /* the gate opens once the pool is stopping */
static ag_pool *gated;

static agk_status wait_at_gate(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    atomic_fetch_add(&begun, 1);
    CHECK_SOON(atomic_load(&gate) || (atomic_load(&opens) && ag_pool_stopping(gated)));
    return AGK_OK;
}

static ag_plan *gate_plan(int steps)
{
    ag_plan *plan = rig_plan();
    for (int i = 0; i < steps; ++i) rig_add(plan, wait_at_gate, 1, -1, NULL, 0);
    atomic_store(&begun, 0);
    atomic_store(&gate, 0);
    atomic_store(&opens, false);
    return plan;
}

static void a_pool_with_work_stays_open(void)
{
    ag_pool *pool = rig_pool(2);
    ag_plan *plan = gate_plan(1);
    ag_stream *dropped = ag_stream_new("dropped", pool, 0), *idle = rig_stream(pool, 0);
    op ops[3];
    for (int i = 0; i < 3; ++i) ops[i] = rig_start(dropped, rig_plan_slot(plan, NULL));
    ag_stream_unref(dropped); /* now only its work keeps it alive */
    char name[AG_NAME] = "";
    uint64_t pending = 0;
    for (int i = 0; i < 3; ++i) {
        CHECK(!ag_pool_close(pool, name, &pending));
        CHECK(strcmp(name, "dropped") == 0 && pending == 3);
    }
    CHECK_EQ(rig_result(rig_start(idle, rig_slot(AG_KIND_NOP))), 0); /* a close that failed has not closed the pool */
    atomic_store(&gate, 1);
    CHECK_SOON(ag_pool_close(pool, name, &pending));
    CHECK_EQ(atomic_load(&begun), 3);
    for (int i = 0; i < 3; ++i) rig_drop(ops[i]);
    ag_slot slot = rig_slot(AG_KIND_NOP);
    op o;
    ag_batch batch = {idle, &slot, 1, &o.block, &o.ticket};
    CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_CLOSED); /* no thread would carry it out */
    CHECK(ag_pool_close(pool, name, &pending));       /* closing twice does no harm */
    ag_stream_unref(idle);
    ag_plan_unref(plan);
    rig_end(pool);
}

/* Other threads submit at the same time: all accepted operations are done before the pool closes. */
static ag_pool *contested;

static void *submit_until_refused(void *unused)
{
    (void)unused;
    ag_stream *stream = rig_stream(contested, 0);
    for (;;) {
        uint8_t bytes[64];
        ag_slot slots[2] = {rig_fill(bytes, 1, sizeof bytes), rig_slot(AG_KIND_NOP)};
        ag_block *blocks[2];
        uint64_t tickets[2];
        ag_batch batch = {stream, slots, 2, blocks, tickets};
        ag_submit_status status = ag_submit(&batch, 1);
        if (status == AG_SUBMIT_CLOSED) break;
        CHECK_EQ(status, AG_SUBMIT_OK);
        for (int i = 0; i < 2; ++i) ag_block_unref(blocks[i]);
        rig_drain(stream);
    }
    CHECK(ag_stream_completed(stream) == ag_stream_submitted(stream));
    ag_stream_unref(stream);
    return NULL;
}

static void a_pool_closes_between_two_operations(void)
{
    for (int i = 0; i < SCALED(100); ++i) {
        contested = rig_pool(2);
        pthread_t threads[3];
        for (int k = 0; k < 3; ++k) pthread_create(&threads[k], NULL, submit_until_refused, NULL);
        char name[AG_NAME];
        uint64_t pending;
        check_nap(i * 10);
        while (!ag_pool_close(contested, name, &pending)) continue;
        for (int k = 0; k < 3; ++k) pthread_join(threads[k], NULL);
        ag_pool_unref(contested);
    }
}

/* At the end of the process a dropped stream carries out no further step and no further operation. */
static void the_end_leaves_what_has_not_begun(void)
{
    uint8_t bytes[64] = {0};
    ag_pool *pool = gated = rig_pool(2);
    ag_plan *plan = gate_plan(1000);
    ag_stream *dropped = rig_stream(pool, 1);
    rig_send(dropped, rig_plan_slot(plan, NULL));
    for (int i = 0; i < 100; ++i) rig_send(dropped, rig_fill(bytes, 1, sizeof bytes));
    ag_plan_unref(plan);
    ag_stream_unref(dropped);
    ag_pool_ref(pool); /* a reference that is never dropped: ag_pools_stop finds the pool in its own list */
    CHECK_SOON(atomic_load(&begun) == 1);
    ag_streams_end();
    atomic_store(&opens, true);
    ag_pools_stop();
    CHECK_EQ(atomic_load(&begun), 1);
    CHECK_EQ(bytes[0], 0);
    ag_pools_stop();
    ag_timer_stop();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    a_pool_with_work_stays_open();
    a_pool_closes_between_two_operations();
    the_end_leaves_what_has_not_begun();
    return 0;
}
