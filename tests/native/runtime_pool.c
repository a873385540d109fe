/* The pool itself: pausing, growing, stopping, the number of threads that a plan may use. */
#include "rig.h"

static atomic_int inside, most, total;

static agk_status meet(const agk_task *task, const agk_node *node, int64_t chunk)
{
    int everybody = (int)node->aux.i[1];
    (void)task;
    (void)chunk;
    atomic_fetch_add(&inside, 1);
    CHECK_SOON(atomic_load(&inside) >= everybody);
    return AGK_OK;
}

static agk_status crowd(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    int now = atomic_fetch_add(&inside, 1) + 1, before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) continue;
    check_spin(2000);
    atomic_fetch_sub(&inside, 1);
    atomic_fetch_add(&total, 1);
    return AGK_OK;
}

static ag_plan *plan_of(agk_step_fn *run, int n_steps, uint32_t n_chunks, int64_t number)
{
    ag_plan *plan = rig_plan();
    for (int i = 0; i < n_steps; ++i) rig_add(plan, run, n_chunks, -1, NULL, number);
    return plan;
}

/* As many chunks as threads, and none ends before all have begun: every thread takes part, the new ones as well. */
static void grows(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    for (int n = 1; n <= 4; ++n) {
        CHECK(ag_pool_grow(pool, n, true));
        CHECK_EQ(ag_pool_n_threads(pool), n);
        atomic_store(&inside, 0);
        ag_plan *plan = plan_of(meet, 1, (uint32_t)n, n);
        CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, NULL))), 0);
        ag_plan_unref(plan);
    }
    CHECK(ag_pool_grow(pool, 2, true)); /* growing to fewer threads changes nothing */
    CHECK_EQ(ag_pool_n_threads(pool), 4);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* A stream that asks for more threads for itself does not change how many threads the others use. */
static void grows_for_one(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *others = rig_stream(pool, 0), *own = rig_stream(pool, 4);
    CHECK(ag_pool_grow(pool, 4, false));
    CHECK_EQ(ag_pool_n_threads(pool), 4);
    CHECK_EQ(ag_pool_width(pool), 2);
    ag_plan *plan = plan_of(meet, 1, 4, 4);
    atomic_store(&inside, 0);
    CHECK_EQ(rig_result(rig_start(own, rig_plan_slot(plan, NULL))), 0); /* all four threads meet */
    ag_plan_unref(plan);
    plan = plan_of(crowd, 6, 12, 0);
    atomic_store(&inside, 0);
    atomic_store(&most, 0);
    for (int i = 0; i < SCALED(200); ++i) rig_send(others, rig_plan_slot(plan, NULL));
    rig_drain(others);
    CHECK(atomic_load(&most) <= 2);
    ag_plan_unref(plan);
    ag_stream_unref(own);
    ag_stream_unref(others);
    rig_end(pool);
}

static void no_more_threads_than_allowed(void)
{
    ag_pool *pool = rig_pool(4);
    ag_plan *plan = plan_of(crowd, 6, 12, 0);
    for (int limit = 1; limit <= 3; ++limit) {
        ag_stream *stream = rig_stream(pool, limit);
        CHECK_EQ(ag_stream_n_threads(stream), limit);
        atomic_store(&inside, 0);
        atomic_store(&most, 0);
        atomic_store(&total, 0);
        const int n = SCALED(200);
        for (int i = 0; i < n; ++i) rig_send(stream, rig_plan_slot(plan, NULL));
        rig_drain(stream);
        CHECK(atomic_load(&most) <= limit);
        CHECK_EQ(atomic_load(&total), n * 72);
        ag_stream_unref(stream);
    }
    ag_plan_unref(plan);
    rig_end(pool);
}

static void pauses(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = plan_of(crowd, 2, 3, 0);
    for (int i = 0; i < 20; ++i) {
        check_nap(i % 2 ? 500 : 0); /* the threads sleep, or still look for work */
        rig_drain(stream);
        atomic_store(&total, 0);
        ag_pool_pause(pool);
        for (int k = 0; ag_pool_sleepers(pool) < 2; ++k) { /* paused threads must not spin */
            CHECK(k < 5000);
            check_nap(1000);
        }
        CHECK(ag_pool_paused(pool));
        op o = rig_start(stream, rig_plan_slot(plan, NULL));
        CHECK_EQ(rig_result(o), 0); /* submitting work ends the pause */
        CHECK_EQ(atomic_load(&total), 6);
        CHECK(!ag_pool_paused(pool));
        if (i % 4 == 0) ag_pool_resume(pool); /* resuming twice does no harm */
    }
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* A stopped pool starts no more threads: nobody would join them. */
static void stops_for_good(void)
{
    for (int i = 0; i < SCALED(100); ++i) {
        ag_pool *pool = rig_pool(1 + i % 4);
        ag_pool_stop(pool);
        ag_pool_stop(pool);
        CHECK(!ag_pool_grow(pool, 6, true));
        ag_pool_unref(pool);
    }
}

static void masks_and_priorities(void)
{
    for (int priority = -1; priority <= 1; ++priority) {
        ag_pool_params params = {.n_threads = 2, .priority = priority, .has_mask = true, .strict = priority == 0};
        params.mask[0] = 1;
        ag_pool *pool = ag_pool_new(&params);
        CHECK(pool != NULL);
        ag_stream *stream = rig_stream(pool, 0);
        ag_plan *plan = plan_of(crowd, 2, 3, 0);
        CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, NULL))), 0);
        ag_plan_unref(plan);
        ag_stream_unref(stream);
        rig_end(pool);
    }
    CHECK(ag_usable_cpus() >= 1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    grows();
    grows_for_one();
    no_more_threads_than_allowed();
    pauses();
    stops_for_good();
    masks_and_priorities();
    return 0;
}
