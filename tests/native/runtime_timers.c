/* Timers on a simulated machine of several banks: each bank's thread ends the delays of its own streams, and a
 * thread that is held up does not hold up other banks. Not here: what delays promise on any machine
 * (runtime_delay.c). */
#include <pthread.h>

#include "runtime/topology.h"
#include "rig.h"

enum { BANKS = 4, STREAMS = 32 };

static atomic_bool blocked;
static atomic_int inside;
static pthread_t submitter;

/* The submitter runs so cheap an operation itself where the delay before it was over when it was sent. */
static agk_status block(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    if (pthread_equal(pthread_self(), submitter)) return AGK_OK;
    atomic_fetch_add(&inside, 1);
    CHECK_SOON(!atomic_load(&blocked));
    return AGK_OK;
}

/* All banks take part equally: streams are assigned to them in turn. */
static void each_bank_ends_its_own(int banks)
{
    ag_topology_pretend(64, banks);
    ag_pool *pool = rig_pool(2);
    uint64_t before[AG_MAX_BANKS];
    ag_stream *streams[STREAMS];
    for (int i = 0; i < AG_MAX_BANKS; ++i) before[i] = ag_timer_ended(i);
    for (int i = 0; i < STREAMS; ++i) {
        streams[i] = rig_stream(pool, 0);
        for (int k = 0; k < 3; ++k) rig_send(streams[i], rig_delay(200000));
    }
    for (int i = 0; i < STREAMS; ++i) rig_drain(streams[i]), ag_stream_unref(streams[i]);
    /* A delay that is already over when it would begin to wait needs no timer. */
    uint64_t all = 0;
    for (int i = 0; i < AG_MAX_BANKS; ++i) {
        const uint64_t ended = ag_timer_ended(i) - before[i];
        CHECK(i < banks || ended == 0);
        CHECK(ended <= (uint64_t)(STREAMS / banks * 3));
        all += ended;
    }
    CHECK(all <= STREAMS * 3);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

/* The thread that ends a delay also runs the next operation, if that is cheap. An operation that lasts for ever,
 * such as one whose pages must be read from a disk, holds up the thread of one bank. With one thread for all banks
 * no other delay would end. */
static void a_bank_that_is_held_up_holds_up_no_other(void)
{
    ag_topology_pretend(64, BANKS);
    ag_pool *pool = rig_pool(1);
    ag_plan *plan = rig_plan();
    rig_add(plan, block, 1, -1, NULL, 0);
    plan->cost = 10; /* so cheap that the timers' thread runs it */
    ag_stream *streams[BANKS];
    for (int i = 0; i < BANKS; ++i) streams[i] = rig_stream(pool, 1); /* one stream in each bank */
    atomic_store(&blocked, true);
    atomic_store(&inside, 0);
    submitter = pthread_self();
    while (atomic_load(&inside) == 0) { /* once more where this thread lost its core for longer than the delay */
        rig_send(streams[0], rig_delay(1000000));
        rig_send(streams[0], rig_plan_slot(plan, NULL));
        CHECK_SOON(atomic_load(&inside) == 1 || ag_stream_completed(streams[0]) == ag_stream_submitted(streams[0]));
    }
    op others[BANKS - 1];
    for (int round = 0; round < 20; ++round) {
        for (int i = 1; i < BANKS; ++i) others[i - 1] = rig_start(streams[i], rig_delay(1000000));
        for (int i = 1; i < BANKS; ++i) CHECK_EQ(rig_result(others[i - 1]), 0);
    }
    CHECK(ag_stream_completed(streams[0]) < ag_stream_submitted(streams[0]));
    atomic_store(&blocked, false);
    for (int i = 0; i < BANKS; ++i) rig_drain(streams[i]), ag_stream_unref(streams[i]);
    ag_plan_unref(plan);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

/* Delays in all banks, aborted, lost and stopped at random by several threads: each ends, and none early. */
typedef struct load {
    ag_pool *pool;
    uint64_t number;
} load;

static void *submit(void *argument)
{
    load *l = argument;
    rng r = rng_new(l->number);
    ag_error *lost = ag_error_new(AG_DEVICE_ERROR, "device", "test", NULL, "lost on purpose");
    for (int i = 0; i < SCALED(600); ++i) {
        ag_stream *streams[BANKS];
        op ops[BANKS][3];
        for (int k = 0; k < BANKS; ++k) {
            streams[k] = rig_stream(l->pool, 0);
            for (int n = 0; n < 3; ++n) {
                ops[k][n] = rig_start(streams[k], rig_delay(n == 2 ? 3600000000000u : rng_below(&r, 100000)));
            }
        }
        check_spin(rng_below(&r, 100000));
        for (int k = 0; k < BANKS; ++k) {
            const bool loses = rng_below(&r, 4) == 0;
            if (loses) {
                ag_stream_lose(streams[k], lost);
            } else if (rng_below(&r, 2) == 0) {
                ag_stream_abort_all(streams[k]);
            } else {
                rig_abort(ops[k][2]);
            }
            CHECK(rig_error(ops[k][2]) != NULL);
            CHECK_EQ(rig_error(ops[k][2])->code, loses ? AG_DEVICE_ERROR : AG_ABORTED);
            for (int n = 0; n < 3; ++n) {
                const ag_slot *slot = rig_slot_of(ops[k][n]);
                CHECK(rig_error(ops[k][n]) != NULL || slot->done - slot->started >= slot->u.delay.ns);
                rig_drop(ops[k][n]);
            }
            ag_stream_unref(streams[k]);
        }
    }
    ag_error_unref(lost);
    return NULL;
}

static void under_load(void)
{
    ag_topology_pretend(128, BANKS);
    ag_pool *pool = rig_pool(8);
    load loads[3];
    pthread_t threads[3];
    for (uint64_t i = 0; i < 3; ++i) {
        loads[i] = (load){pool, i};
        pthread_create(&threads[i], NULL, submit, &loads[i]);
    }
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    each_bank_ends_its_own(1);
    each_bank_ends_its_own(BANKS);
    each_bank_ends_its_own(AG_MAX_BANKS);
    a_bank_that_is_held_up_holds_up_no_other();
    under_load();
    return 0;
}
