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

/* Two threads share the calls of one stream. */
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
    ag_stream_close(s.stream); /* what is queued is served all the same */
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
    CHECK(!ag_stream_next_call(stream, UINT64_MAX, &ticket)); /* finished: whatever the limit */
    ag_stream_unref(stream);
    rig_end(pool);
}

static void *wait_long(void *argument)
{
    uint64_t ticket;
    CHECK(!ag_stream_next_call(argument, UINT64_MAX, &ticket));
    return NULL;
}

/* The stream runs dry after it was closed: a thread that waits for calls must hear of it. */
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
    CHECK(!rig_done(call)); /* it is the caller's to end */
    ag_stream_finish_call(stream, ag_error_new(AG_ABORTED, "device", "call", NULL, "gave up"));
    CHECK_EQ(rig_result(call), AG_ABORTED);
    ag_stream_unref(stream);
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    in_order();
    nothing_to_do();
    the_end_is_told();
    an_abort_is_seen_by_the_call();
    return 0;
}
