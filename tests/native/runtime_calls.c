/* Calls: operations that a thread outside the pool carries out, in the order of the stream. */
#include <pthread.h>

#include "rig.h"

#define SECOND 1000000000u

static int order[4096];
static atomic_int n_order;

static agk_status note(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    order[atomic_fetch_add(&n_order, 1)] = 1;
    return AGK_OK;
}

typedef struct server {
    ag_stream *stream;
    ag_error *error;
} server;

static void *serve(void *argument)
{
    server *s = argument;
    uint64_t ticket;
    for (;;) {
        if (!ag_stream_next_call(s->stream, SECOND, &ticket)) {
            if (ag_stream_closed(s->stream) && ag_stream_completed(s->stream) == ag_stream_submitted(s->stream))
                return NULL;
            continue;
        }
        order[atomic_fetch_add(&n_order, 1)] = 2;
        ag_stream_finish_call(s->stream, ticket % 8 == 0 ? ag_error_ref(s->error) : NULL);
    }
}

/* Two threads carry out the calls of one stream. */
static void in_order(void)
{
    ag_pool *pool = rig_pool(2);
    server s = {.stream = rig_stream(pool, 0)};
    s.error = ag_error_new(AG_FOREIGN, "device", "call", NULL, "raised");
    ag_plan *plan = rig_plan();
    rig_add(plan, note, 1, -1, NULL, 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, serve, &s);
    const int n = SCALED(4000) / 2;
    for (int i = 0; i < n; ++i) {
        rig_send(s.stream, rig_plan_slot(plan, NULL));
        op o = rig_start(s.stream, rig_slot(AG_KIND_CALL));
        if (i % 16 == 0) {
            ag_error *error = rig_error(o);
            CHECK(error == (o.ticket % 8 == 0 ? s.error : NULL));
        }
        rig_drop(o);
    }
    ag_stream_close(s.stream); /* queued calls are still carried out */
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    CHECK_EQ(atomic_load(&n_order), 2 * n);
    for (int i = 0; i < 2 * n; ++i) CHECK_EQ(order[i], 1 + i % 2);
    ag_plan_unref(plan);
    ag_stream_unref(s.stream);
    ag_error_unref(s.error);
    rig_end(pool);
}

static void nothing_to_do(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    uint64_t ticket;
    double start = check_seconds();
    CHECK(!ag_stream_next_call(stream, 20000000, &ticket));
    CHECK(check_seconds() - start >= 0.02);
    ag_stream_close(stream);
    /* returns at once whatever the time limit: the stream has finished */
    CHECK(!ag_stream_next_call(stream, UINT64_MAX, &ticket));
    ag_stream_unref(stream);
    rig_end(pool);
}

static void *wait_long(void *argument)
{
    uint64_t ticket;
    CHECK(!ag_stream_next_call(argument, UINT64_MAX, &ticket));
    return NULL;
}

/* When a closed stream becomes empty, a thread that waits for its calls must be woken. */
static void the_end_is_told(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    pthread_t thread;
    rig_send(stream, rig_delay(20000000));
    pthread_create(&thread, NULL, wait_long, stream);
    ag_stream_close(stream);
    double start = check_seconds();
    pthread_join(thread, NULL);
    CHECK(check_seconds() - start < PATIENCE_S);
    ag_stream_unref(stream);
    rig_end(pool);
}

static void an_abort_is_seen_by_the_call(void)
{
    ag_pool *pool = rig_pool(1);
    ag_stream *stream = rig_stream(pool, 0);
    uint64_t ticket;
    op call = rig_start(stream, rig_slot(AG_KIND_CALL));
    CHECK(ag_stream_next_call(stream, SECOND, &ticket));
    CHECK_EQ(ticket, call.ticket);
    CHECK(!ag_stream_aborting(stream, rig_slot_of(call)));
    rig_abort(call);
    CHECK(ag_stream_aborting(stream, rig_slot_of(call)));
    CHECK(!rig_done(call)); /* only the thread that carries it out ends it */
    ag_stream_finish_call(stream, ag_error_new(AG_ABORTED, "device", "call", NULL, "gave up"));
    CHECK_EQ(rig_result(call), AG_ABORTED);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* Plans with calls among their steps: each call runs in its turn and gets the plan's parameters; a failure ends the
 * plan. */
enum { PART = 12, STEPS = 6 };

typedef struct partly {
    atomic_int done, wrong, served;
    int fail_at; /* the number of the call that fails; -1: none */
    ag_stream *stream;
    ag_error *error;
} partly;

static agk_status between(const agk_task *task, const agk_node *node, int64_t chunk)
{
    partly *p = (partly *)task->arena;
    (void)chunk;
    if (atomic_load(&p->served) != node->aux.i[1]) atomic_store(&p->wrong, 1);
    atomic_fetch_add(&p->done, 1);
    return AGK_OK;
}

static void *serve_steps(void *argument)
{
    ag_stream *stream = argument;
    uint64_t ticket;
    size_t step;
    void *user;
    while (ag_stream_next_call(stream, PATIENCE_S * (uint64_t)SECOND, &ticket)) {
        CHECK(ag_stream_call_step(stream, &step, &user));
        partly *p = user;
        int n = atomic_fetch_add(&p->served, 1);
        if (atomic_load(&p->done) != (n + 1) * (PART + 1)) atomic_store(&p->wrong, 1);
        CHECK_EQ(step, (size_t)n * 3 + 2);
        ag_stream_finish_call(stream, n == p->fail_at ? ag_error_ref(p->error) : NULL);
    }
    return NULL;
}

static void steps_that_are_calls(int n_threads)
{
    enum { RUNS = 40, STREAMS = 3 };
    ag_pool *pool = rig_pool(n_threads);
    ag_plan *plan = rig_plan();
    for (int i = 0; i < STEPS; ++i) {
        rig_add(plan, between, 1, -1, NULL, i);
        rig_add(plan, between, PART, -1, NULL, i);
        if (i + 1 < STEPS) rig_add(plan, AGK_CALL_OUT, 1, -1, NULL, i);
    }
    ag_error *error = ag_error_new(AG_FOREIGN, "device", "call", NULL, "raised");
    static partly runs[STREAMS][RUNS];
    memset(runs, 0, sizeof runs);
    ag_stream *streams[STREAMS];
    pthread_t threads[STREAMS];
    op ops[STREAMS][RUNS];
    for (int i = 0; i < STREAMS; ++i) {
        streams[i] = rig_stream(pool, 0);
        pthread_create(&threads[i], NULL, serve_steps, streams[i]);
    }
    for (int k = 0; k < RUNS; ++k) {
        for (int i = 0; i < STREAMS; ++i) {
            partly *p = &runs[i][k];
            p->fail_at = k % 4 == 3 ? k % (STEPS - 1) : -1;
            p->error = error;
            ag_slot slot = rig_plan_slot(plan, p);
            slot.u.plan.user = p;
            ops[i][k] = rig_start(streams[i], slot);
        }
    }
    for (int i = 0; i < STREAMS; ++i) {
        rig_drain(streams[i]);
        ag_stream_close(streams[i]);
        pthread_join(threads[i], NULL);
        for (int k = 0; k < RUNS; ++k) {
            partly *p = &runs[i][k];
            int served = p->fail_at >= 0 ? p->fail_at + 1 : STEPS - 1;
            CHECK_EQ(atomic_load(&p->wrong), 0);
            CHECK_EQ(atomic_load(&p->served), served);
            CHECK_EQ(atomic_load(&p->done), (p->fail_at >= 0 ? served : STEPS) * (PART + 1));
            CHECK(rig_error(ops[i][k]) == (p->fail_at >= 0 ? error : NULL));
            rig_drop(ops[i][k]);
        }
        ag_stream_unref(streams[i]);
    }
    ag_plan_unref(plan);
    ag_error_unref(error);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    in_order();
    nothing_to_do();
    the_end_is_told();
    an_abort_is_seen_by_the_call();
    steps_that_are_calls(1);
    steps_that_are_calls(3);
    return 0;
}
