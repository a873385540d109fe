/* Delays and paced operations. They take their time without occupying a thread, an abort ends only the delay it is
 * meant for, and no deadline overflows. */
#include "rig.h"

static agk_status flag_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)node;
    (void)chunk;
    atomic_store((atomic_int *)task->arena, 1);
    return AGK_OK;
}

static ag_plan *flag_plan(void)
{
    ag_plan *plan = rig_plan();
    rig_add(plan, flag_step, 1, -1, NULL, 0);
    return plan;
}

static uint64_t duration(op o)
{
    return rig_slot_of(o)->done - rig_slot_of(o)->started;
}

static void take_their_time(rng *r)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *streams[8];
    op ops[8][10];
    uint64_t ns[8][10];
    for (int i = 0; i < 8; ++i) {
        streams[i] = rig_stream(pool, 0);
        for (int k = 0; k < 10; ++k) {
            ns[i][k] = rng_below(r, 3000000);
            ops[i][k] = rig_start(streams[i], rig_delay(ns[i][k]));
        }
    }
    for (int i = 0; i < 8; ++i) {
        for (int k = 0; k < 10; ++k) {
            CHECK(rig_error(ops[i][k]) == NULL);
            CHECK(duration(ops[i][k]) >= ns[i][k]);
            if (k > 0) CHECK(rig_slot_of(ops[i][k])->started >= rig_slot_of(ops[i][k - 1])->done);
        }
        for (int k = 0; k < 10; ++k) rig_drop(ops[i][k]);
        ag_stream_unref(streams[i]);
    }
    rig_end(pool);
}

/* The only thread of the pool runs another stream during a delay; an abort ends a long delay at once. */
static void occupy_no_thread(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *sleeping = rig_stream(pool, 0), *busy = rig_stream(pool, 0);
    ag_plan *plan = flag_plan();
    atomic_int ran = 0;
    op never = rig_start(sleeping, rig_delay(3600000000000u));
    /* a deadline beyond the range of the clock must not wrap round to an early one */
    op forever = rig_start(sleeping, rig_delay(UINT64_MAX));
    op later = rig_start(sleeping, rig_slot(AG_KIND_NOP));
    CHECK_EQ(rig_result(rig_start(busy, rig_plan_slot(plan, &ran))), 0);
    CHECK_EQ(atomic_load(&ran), 1);
    CHECK(!rig_done(never));
    rig_abort(never);
    CHECK_EQ(rig_result(never), AG_ABORTED);
    check_nap(2000);
    CHECK(!rig_done(forever));
    rig_abort(forever);
    CHECK_EQ(rig_result(forever), AG_ABORTED);
    CHECK_EQ(rig_result(later), 0);
    ag_plan_unref(plan);
    ag_stream_unref(sleeping);
    rig_drain(busy);
    ag_stream_unref(busy);
    rig_end(pool);
}

/* An abort that comes just as its delay ends must not shorten the next delay. */
static void abort_means_one_delay(rng *r)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    for (int i = 0; i < SCALED(400); ++i) {
        op first = rig_start(stream, rig_delay(50000));
        op second = rig_start(stream, rig_delay(2000000));
        check_spin(40000 + rng_below(r, 120000));
        rig_abort(first);
        CHECK_EQ(rig_error(second), 0);
        CHECK(duration(second) >= 2000000);
        rig_drop(first);
        rig_drop(second);
    }
    ag_stream_unref(stream);
    rig_end(pool);
}

/* An abort, of one delay or of all, aborts what was queued before it, even a delay that starts at that moment, and no
 * later one. */
static void abort_misses_none(rng *r, bool all)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = flag_plan();
    for (int i = 0; i < SCALED(3000); ++i) {
        atomic_int ran = 0;
        rig_send(stream, rig_plan_slot(plan, &ran));
        op doomed = rig_start(stream, rig_delay(3600000000000u));
        while (atomic_load(&ran) == 0 && rng_below(r, 1000) != 0) continue;
        check_spin(rng_below(r, 1500));
        if (all) {
            ag_stream_abort_all(stream);
        } else {
            rig_abort(doomed);
        }
        op later = rig_start(stream, rig_delay(100000));
        CHECK_EQ(rig_result(doomed), AG_ABORTED);
        CHECK(rig_error(later) == NULL);
        CHECK(duration(later) >= 100000);
        rig_drop(later);
    }
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* The times of paced operations add up, from the end of the operation before them. Each writes at the end of its
 * time; a failed or aborted one writes nothing. */
static void paces_add_up(rng *r)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *first = rig_stream(pool, 0), *second = rig_stream(pool, 0);
    uint8_t bytes[40] = {0};
    op ops[40];
    uint64_t total = 0, ns[40];
    for (int i = 0; i < 40; ++i) {
        ag_stream *stream = i < 20 ? first : second;
        if (i == 20) {
            rig_send(second, rig_wait_slot(first, AG_TAIL));
            rig_send(second, rig_slot(AG_KIND_NOP));
        }
        ag_slot slot = rig_fill(bytes + i, 1 + i, 1);
        slot.pace = ns[i] = rng_below(r, 1000000);
        ops[i] = rig_start(stream, slot);
    }
    for (int i = 0; i < 40; ++i) {
        total += ns[i];
        CHECK(rig_error(ops[i]) == NULL);
        /* of an operation submitted later the time counts from its submission */
        CHECK(rig_slot_of(ops[i])->done >= rig_slot_of(ops[0])->submitted + total);
        CHECK_EQ(bytes[i], 1 + i);
        rig_drop(ops[i]);
    }
    rig_drain(second);
    ag_stream_unref(first);
    ag_stream_unref(second);
    rig_end(pool);
}

static void paced_plan_runs_once_and_stops_early(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = flag_plan();
    atomic_int ran = 0, never = 0, held = 0;
    ag_slot slot = rig_plan_slot(plan, &ran);
    slot.pace = 3000000;
    op paced = rig_start(stream, slot);
    slot = rig_plan_slot(plan, &never);
    slot.pace = 3600000000000u;
    op doomed = rig_start(stream, slot);
    CHECK_EQ(rig_result(paced), 0);
    CHECK_EQ(atomic_load(&ran), 1);
    rig_abort(doomed);
    CHECK_EQ(rig_result(doomed), AG_ABORTED);
    CHECK_EQ(atomic_load(&never), 0);
    /* Time under a hold does not count as time of the operation. */
    ag_stream_hold(stream);
    slot = rig_plan_slot(plan, &held);
    slot.pace = 2000000;
    op later = rig_start(stream, slot);
    check_nap(3000);
    uint64_t released = ag_now();
    CHECK(ag_stream_release(stream));
    CHECK(rig_error(later) == NULL);
    CHECK(rig_slot_of(later)->done >= released + 2000000);
    rig_drop(later);
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(0);
    take_their_time(&r);
    occupy_no_thread();
    abort_means_one_delay(&r);
    abort_misses_none(&r, true);
    abort_misses_none(&r, false);
    paces_add_up(&r);
    paced_plan_runs_once_and_stops_early();
    return 0;
}
