/* Streams share the pool: a long plan makes way for others between its steps, no plan has to wait until all others have
 * ended, and each stream gets the same time for each of its threads, however long its steps are.
 *
 * Progress is counted in steps, and time by the clock that the pool itself looks at, so the result is the same on a
 * busy machine. */
#include "rig.h"

enum { LONG_NS = 1000000 };

static atomic_int seen_progress; /* steps of the long plans that were done when the short plan ran */
static atomic_int progress;

static agk_status long_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)chunk;
    check_spin((uint32_t)node->aux.i[1]);
    atomic_fetch_add(&progress, 1);
    return AGK_OK;
}

static agk_status short_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    check_spin(5000);
    atomic_store(&seen_progress, atomic_load(&progress));
    return AGK_OK;
}

/* What a kind of step has taken, in ns, on all threads together, and the longest of them: the clock that the pool looks
 * at, so that a thread that lost its core meanwhile counts here as it does there. */
typedef struct taken {
    atomic_llong sum, most;
} taken;

static taken long_ones, short_ones;
static atomic_llong seen_sum, seen_most; /* of the long ones, when the last of the short ones ended */

static agk_status timed_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)chunk;
    taken *kind = node->aux.i[1] >= LONG_NS ? &long_ones : &short_ones;
    const double begun = check_seconds();
    check_spin((uint32_t)node->aux.i[1]);
    const long long ns = (long long)((check_seconds() - begun) * 1e9);
    atomic_fetch_add(&kind->sum, ns);
    long long most = atomic_load(&kind->most);
    while (ns > most && !atomic_compare_exchange_weak(&kind->most, &most, ns)) continue;
    if (kind == &short_ones) {
        atomic_store(&seen_sum, atomic_load(&long_ones.sum));
        atomic_store(&seen_most, atomic_load(&long_ones.most));
    }
    return AGK_OK;
}

static ag_plan *make_plan(agk_step_fn *run, int n_steps, uint32_t n_chunks, int64_t ns)
{
    ag_plan *plan = rig_plan();
    for (int i = 0; i < n_steps; ++i) rig_add(plan, run, n_chunks, -1, NULL, ns);
    return plan;
}

typedef struct scene {
    int pool_threads, n_long, long_threads, long_steps, short_threads;
    uint32_t long_chunks, short_chunks;
} scene;

/* Long plans fill the pool, then a short plan is submitted. It is done before the long ones are half done. */
static void short_one_passes(scene c)
{
    enum { MOST = 8 };
    ag_pool *pool = rig_pool(c.pool_threads);
    ag_stream *longs[MOST], *quick = rig_stream(pool, c.short_threads);
    ag_plan *long_plan = make_plan(long_step, c.long_steps, c.long_chunks, 50000);
    ag_plan *short_plan = make_plan(short_step, 5, c.short_chunks, 0);
    int total = c.n_long * c.long_steps * (int)c.long_chunks;
    atomic_store(&progress, 0);
    atomic_store(&seen_progress, 0);
    for (int i = 0; i < c.n_long; ++i) {
        longs[i] = rig_stream(pool, c.long_threads);
        rig_send(longs[i], rig_plan_slot(long_plan, NULL));
    }
    CHECK_SOON(atomic_load(&progress) > 0);
    CHECK_EQ(rig_result(rig_start(quick, rig_plan_slot(short_plan, NULL))), 0);
    CHECK(atomic_load(&seen_progress) < total / 2);
    for (int i = 0; i < c.n_long; ++i) {
        rig_drain(longs[i]);
        ag_stream_unref(longs[i]);
    }
    CHECK_EQ(atomic_load(&progress), total);
    ag_stream_unref(quick);
    ag_plan_unref(long_plan);
    ag_plan_unref(short_plan);
    rig_end(pool);
}

/* Plans of long steps on one thread each, and a plan of short steps that all threads share: when that one ends, the
 * others have had about as much time for a thread. If they took turns, whatever their steps take, each of them would
 * have run a step for each step of the shared plan: 140 in all, where 20 are fair. */
static void short_steps_get_their_time(int n_long, uint32_t chunks)
{
    enum { MOST = 8, STEPS = 100, SHORT_NS = 50000, THREADS = 2 };
    ag_pool *pool = rig_pool(THREADS);
    ag_stream *longs[MOST], *shared = rig_stream(pool, THREADS);
    ag_plan *long_plan = make_plan(timed_step, 1000, 1, LONG_NS);
    ag_plan *short_plan = make_plan(timed_step, STEPS, chunks, SHORT_NS);
    long_ones = short_ones = (taken){0};
    for (int i = 0; i < n_long; ++i) {
        longs[i] = rig_stream(pool, 1);
        rig_send(longs[i], rig_plan_slot(long_plan, NULL));
    }
    CHECK_SOON(atomic_load(&long_ones.sum) > n_long * (long long)LONG_NS);
    const long long before = atomic_load(&long_ones.sum);
    CHECK_EQ(rig_result(rig_start(shared, rig_plan_slot(short_plan, NULL))), 0);
    const long long each = (atomic_load(&seen_sum) - before) / n_long;
    const long long fair = atomic_load(&short_ones.sum) / THREADS;
    const long long longest = atomic_load(&seen_most) + atomic_load(&short_ones.most);
    CHECK(each < 2 * fair + 3 * longest);
    for (int i = 0; i < n_long; ++i) {
        ag_stream_abort_all(longs[i]);
        rig_drain(longs[i]);
        ag_stream_unref(longs[i]);
    }
    ag_stream_unref(shared);
    ag_plan_unref(long_plan);
    ag_plan_unref(short_plan);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    /* One thread, which alternates between the streams. */
    short_one_passes((scene){.pool_threads = 1, .n_long = 3, .long_steps = 2000, .long_chunks = 1, .short_chunks = 1});
    /* Plans of many chunks on all threads. */
    short_one_passes((scene){.pool_threads = 2, .n_long = 3, .long_steps = 500, .long_chunks = 4, .short_chunks = 1});
    /* More single-threaded plans than threads: the ready queue is never empty, and yet a plan with many chunks gets
     * on. */
    short_one_passes((scene){
        .pool_threads = 2, .n_long = 4, .long_threads = 1, .long_steps = 1500, .long_chunks = 1, .short_chunks = 6});
    short_steps_get_their_time(4, 2);
    short_steps_get_their_time(2, 4);
    short_steps_get_their_time(4, 1);
    return 0;
}
