/* Aborts at any moment. The steps that ran are a prefix of the plan. A node that writes a leaf is either complete or
 * has not begun. Later operations succeed. */
#include "rig.h"

#define STEPS 24
#define CHUNKS 6
#define LEAF_EVERY 4 /* of each four steps, 2 and 3 are the two steps of one node, which writes a leaf */

typedef struct record {
    atomic_uint ran[STEPS];
    int64_t gate; /* 1 + the number of the step that waits until `open` is set; 0: none */
    atomic_bool entered, open;
} record;

static agk_status ran(record *rec, int64_t step)
{
    check_spin(300);
    if (rec->gate == step + 1) {
        atomic_store(&rec->entered, true);
        CHECK_SOON(atomic_load(&rec->open));
    }
    atomic_fetch_add(&rec->ran[step], 1);
    return AGK_OK;
}

static agk_status count(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    return ran((record *)task->arena, node->aux.i[1]);
}

/* for the second step of a node */
static agk_status count_next(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    return ran((record *)task->arena, node->aux.i[1] + 1);
}

static uint32_t chunks_of(int step)
{
    return step % 3 == 1 ? 1 : CHUNKS;
}

static bool leaf_first(int step)
{
    return step % LEAF_EVERY == 2;
}

static ag_plan *make_plan(ag_storage *out, ag_storage *cache)
{
    ag_plan *plan = rig_plan();
    for (int i = 0; i < STEPS; ++i) {
        rig_add(plan, count, chunks_of(i), leaf_first(i) ? 0 : -1, NULL, i);
        if (leaf_first(i)) rig_add_step(plan, count_next, chunks_of(++i), 0);
    }
    CHECK(ag_plan_seal(plan, NULL, 0, &out, 1, &cache, 1));
    return plan;
}

/* Checks that the steps that ran are a prefix; returns the number of complete steps. */
static int prefix(record *rec, bool whole)
{
    int n = 0;
    while (n < STEPS && atomic_load(&rec->ran[n]) == chunks_of(n)) ++n;
    if (whole) CHECK_EQ(n, STEPS);
    /* the abort skipped some chunks of step n */
    if (n < STEPS && atomic_load(&rec->ran[n]) != 0) CHECK(!leaf_first(n));
    if (n > 0 && n < STEPS) CHECK(!leaf_first(n - 1)); /* the second step of a node that writes a leaf must follow */
    for (int i = n + 1; i < STEPS; ++i) CHECK_EQ(atomic_load(&rec->ran[i]), 0);
    return n;
}

static bool poisoned(ag_storage *storage)
{
    ag_error *error = ag_storage_poison(storage);
    ag_error_unref(error);
    return error != NULL;
}

static void at_random_moments(rng *r, int pool_threads, int n_threads)
{
    ag_pool *pool = rig_pool(pool_threads);
    ag_stream *stream = rig_stream(pool, n_threads);
    ag_storage *out = ag_storage_new("out"), *cache = ag_storage_new("cache");
    ag_plan *plan = make_plan(out, cache);
    for (int i = 0; i < SCALED(1500); ++i) {
        record first = {0}, second = {0};
        op doomed = rig_start(stream, rig_plan_slot(plan, &first));
        op healthy = rig_start(stream, rig_plan_slot(plan, &second));
        check_spin(rng_below(r, 60000));
        rig_abort(doomed);
        rig_wait(doomed);
        ag_error *error = rig_error(doomed);
        prefix(&first, error == NULL);
        if (error != NULL) {
            CHECK_EQ(error->code, AG_ABORTED);
            CHECK(atomic_load(&error->seen));
        }
        rig_drop(doomed);
        CHECK_EQ(rig_result(healthy), 0);
        prefix(&second, true);
        CHECK(!poisoned(out) && !poisoned(cache));
    }
    ag_error *failures[1];
    CHECK_EQ(ag_stream_take_failures(stream, failures, 1), 0);
    ag_plan_unref(plan);
    ag_storage_unref(out);
    ag_storage_unref(cache);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* An abort within each step: a node that writes a leaf still runs its second step; other steps end where they are. */
static void inside_each_step(int n_threads)
{
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *stream = rig_stream(pool, 0);
    ag_storage *out = ag_storage_new("out"), *cache = ag_storage_new("cache");
    ag_plan *plan = make_plan(out, cache);
    for (int step = 0; step < STEPS; ++step) {
        record rec = {.gate = step + 1};
        op o = rig_start(stream, rig_plan_slot(plan, &rec));
        CHECK_SOON(atomic_load(&rec.entered));
        rig_abort(o);
        atomic_store(&rec.open, true);
        ag_error *error = rig_error(o);
        int whole = prefix(&rec, false);
        if (step % LEAF_EVERY >= 2) {
            CHECK_EQ(whole, step - step % LEAF_EVERY + LEAF_EVERY);
        } else {
            CHECK(whole == step || whole == step + 1);
        }
        if (whole < STEPS) CHECK_EQ(error->code, AG_ABORTED);
        CHECK_EQ(poisoned(out), error != NULL);
        CHECK(!poisoned(cache));
        rig_drop(o);
    }
    ag_plan_unref(plan);
    ag_storage_unref(out);
    ag_storage_unref(cache);
    ag_stream_unref(stream);
    rig_end(pool);
}

static void before_the_start(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_storage *out = ag_storage_new("out"), *cache = ag_storage_new("cache");
    ag_plan *plan = make_plan(out, cache);
    record rec = {0};
    ag_stream_hold(stream);
    op plan_op = rig_start(stream, rig_plan_slot(plan, &rec));
    ag_slot set = rig_slot(AG_KIND_NOP);
    rig_writes(&set, cache);
    op mark = rig_start(stream, set);
    rig_abort(plan_op);
    rig_abort(mark); /* operations of any kind can be aborted before they start */
    CHECK(!rig_done(plan_op));
    CHECK(ag_stream_release(stream));
    CHECK_EQ(rig_error(plan_op)->code, AG_ABORTED);
    CHECK_EQ(prefix(&rec, false), 0);
    CHECK(poisoned(out));
    rig_drop(plan_op);
    CHECK_EQ(rig_result(mark), AG_ABORTED);
    CHECK(poisoned(cache)); /* by the mark, which writes it in full; the plan had not begun to write it */
    ag_plan_unref(plan);
    ag_storage_unref(out);
    ag_storage_unref(cache);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* abort_all aborts the plans, delays and calls that are queued now. Copies, marks and later operations go on. */
static void all_that_is_queued(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_storage *out = ag_storage_new("out"), *cache = ag_storage_new("cache");
    ag_plan *plan = make_plan(out, cache);
    record first = {0}, second = {0};
    char from[4] = "abc", to[4] = "";
    ag_stream_hold(stream);
    op queued = rig_start(stream, rig_plan_slot(plan, &first));
    op delay = rig_start(stream, rig_delay(1000000000000u));
    op call = rig_start(stream, rig_slot(AG_KIND_CALL));
    op copy = rig_start(stream, rig_copy(to, from, 4));
    ag_stream_abort_all(stream);
    op later = rig_start(stream, rig_plan_slot(plan, &second));
    ag_stream_release(stream);
    CHECK_EQ(rig_result(queued), AG_ABORTED);
    CHECK_EQ(rig_result(delay), AG_ABORTED);
    CHECK_EQ(rig_result(call), AG_ABORTED);
    CHECK_EQ(rig_result(copy), 0);
    CHECK(strcmp(to, "abc") == 0);
    CHECK_EQ(rig_result(later), 0);
    prefix(&second, true);
    ag_plan_unref(plan);
    ag_storage_unref(out);
    ag_storage_unref(cache);
    ag_stream_unref(stream);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(0);
    at_random_moments(&r, 1, 1);
    at_random_moments(&r, 3, 1);
    at_random_moments(&r, 3, 3);
    inside_each_step(1);
    inside_each_step(3);
    before_the_start();
    all_that_is_queued();
    return 0;
}
