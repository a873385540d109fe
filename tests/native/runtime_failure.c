/* Failures: their messages, which storages they poison, which operations fail because of them, which writes lift the
 * poison, which failures were never seen. */
#include "rig.h"

typedef struct rig {
    ag_pool *pool;
    ag_stream *stream;
    ag_storage *a, *b, *cache;
} rig;

static rig begin(int n_threads)
{
    rig t = {
        .pool = rig_pool(n_threads), .a = ag_storage_new("a"), .b = ag_storage_new("b"), .cache = ag_storage_new("c")};
    t.stream = rig_stream(t.pool, 0);
    return t;
}

static void end(rig *t)
{
    rig_drain(t->stream);
    ag_stream_unref(t->stream);
    ag_storage_unref(t->a);
    ag_storage_unref(t->b);
    ag_storage_unref(t->cache);
    rig_end(t->pool);
}

static bool poisoned_by(ag_storage *storage, const ag_error *expected)
{
    ag_error *error = ag_storage_poison(storage);
    bool same = error == expected;
    ag_error_unref(error);
    return same;
}

static size_t unseen(ag_stream *stream)
{
    ag_error *errors[8];
    size_t n = ag_stream_take_failures(stream, errors, 8);
    for (size_t i = 0; i < n; ++i) ag_error_unref(errors[i]);
    return n;
}

/* The step fails in chunk aux.i[1], with the status aux.i[2]. */
static agk_status maybe_fail(const agk_task *task, const agk_node *node, int64_t chunk)
{
    if (chunk != node->aux.i[1]) return AGK_OK;
    snprintf(task->message, AGK_MESSAGE, "chunk %d has the value 17", (int)chunk);
    return (agk_status)node->aux.i[2];
}

static agk_status never(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    CHECK(!"after a failure nothing more runs");
    return AGK_OK;
}

static ag_plan *failing_plan(uint32_t n_chunks, int64_t chunk, agk_status status, int writes_leaf)
{
    ag_plan *plan = rig_plan();
    rig_add(plan, maybe_fail, 4, -1, NULL, -1);
    rig_add(plan, maybe_fail, n_chunks, writes_leaf, NULL, chunk)->aux.i[2] = status;
    rig_add(plan, never, 2, -1, NULL, 0);
    return plan;
}

static void says_what_failed(int n_threads, uint32_t n_chunks)
{
    static const int codes[][2] = {{AGK_UNSUPPORTED, AG_UNSUPPORTED},
                                   {AGK_OUT_OF_BOUNDS, AG_OUT_OF_BOUNDS},
                                   {AGK_INVALID, AG_INVALID_ARGUMENT},
                                   {AGK_NO_MEMORY, AG_NO_MEMORY}};
    rig t = begin(n_threads);
    for (int i = 0; i < 4; ++i) {
        ag_plan *plan = failing_plan(n_chunks, n_chunks - 1, (agk_status)codes[i][0], -1);
        CHECK(ag_plan_seal(plan, NULL, 0, &t.a, 1, NULL, 0));
        op o = rig_start(t.stream, rig_plan_slot(plan, NULL));
        ag_error *error = rig_error(o);
        CHECK(error != NULL);
        CHECK_EQ(error->code, codes[i][1]);
        char expected[64];
        snprintf(expected, sizeof expected, "node 1 (cpy): chunk %d has the value 17", (int)n_chunks - 1);
        CHECK(strcmp(error->text, expected) == 0);
        CHECK(strcmp(error->tensor, "node-1") == 0);
        CHECK(strcmp(error->device, "stream") == 0);
        CHECK(poisoned_by(t.a, error));
        rig_drop(o);
        ag_plan_unref(plan);
    }
    CHECK_EQ(unseen(t.stream), 4);
    CHECK_EQ(unseen(t.stream), 0);
    end(&t);
}

static void readers_fail_alike_until_cured(void)
{
    rig t = begin(2);
    int x = 1, y = 2, z = 0;
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "set", "a", "on purpose");
    ag_slot slot = rig_fail(error);
    rig_writes(&slot, t.a);
    op failed = rig_start(t.stream, slot);
    slot = rig_copy(&y, &x, sizeof x); /* from a to b: fails because of a's poison, and poisons b */
    rig_reads(&slot, t.a);
    rig_writes(&slot, t.b);
    op derived = rig_start(t.stream, slot);
    slot = rig_copy(&z, &y, sizeof y);
    rig_reads(&slot, t.b);
    rig_partial(&slot, t.cache); /* it never began, so this storage stays healthy */
    op second = rig_start(t.stream, slot);
    CHECK(rig_error(failed) == error && rig_error(derived) == error && rig_error(second) == error);
    CHECK_EQ(y, 2);
    CHECK_EQ(z, 0);
    CHECK(poisoned_by(t.a, error) && poisoned_by(t.b, error) && poisoned_by(t.cache, NULL));
    CHECK_EQ(unseen(t.stream), 1); /* failures caused by a poison are not reported again */
    slot = rig_copy(&y, &x, sizeof x);
    rig_partial(&slot, t.a); /* a write of a part does not lift the poison */
    CHECK_EQ(rig_result(rig_start(t.stream, slot)), 0);
    CHECK(poisoned_by(t.a, error));
    slot = rig_fill(&x, 0, sizeof x);
    rig_writes(&slot, t.a);
    CHECK_EQ(rig_result(rig_start(t.stream, slot)), 0);
    CHECK(poisoned_by(t.a, NULL));
    slot = rig_slot(AG_KIND_NOP); /* this is how `accept` works */
    rig_writes(&slot, t.b);
    CHECK_EQ(rig_result(rig_start(t.stream, slot)), 0);
    CHECK(poisoned_by(t.b, NULL));
    rig_drop(failed);
    rig_drop(derived);
    rig_drop(second);
    ag_error_unref(error);
    end(&t);
}

static void plans_read_and_cure(void)
{
    rig t = begin(3);
    ag_error *error = ag_error_new(AG_FOREIGN, "device", "set", "a", "on purpose");
    ag_plan *reader = rig_plan(), *writer = rig_plan();
    rig_add(reader, maybe_fail, 3, -1, NULL, -1);
    rig_add(writer, maybe_fail, 3, -1, NULL, -1);
    CHECK(ag_plan_seal(reader, &t.a, 1, &t.b, 1, NULL, 0));
    CHECK(ag_plan_seal(writer, NULL, 0, &t.b, 1, NULL, 0));
    ag_storage_set_poison(t.a, error);
    op o = rig_start(t.stream, rig_plan_slot(reader, NULL));
    CHECK(rig_error(o) == error && poisoned_by(t.b, error));
    rig_drop(o);
    CHECK_EQ(rig_result(rig_start(t.stream, rig_plan_slot(writer, NULL))), 0);
    CHECK(poisoned_by(t.b, NULL));
    ag_storage_set_poison(t.a, NULL);
    CHECK_EQ(rig_result(rig_start(t.stream, rig_plan_slot(reader, NULL))), 0);
    ag_plan_unref(reader);
    ag_plan_unref(writer);
    ag_error_unref(error);
    end(&t);
}

/* A leaf is poisoned if a kernel began to write it, but not by a check that failed before the first byte was
 * written. */
static void leaves(int n_threads)
{
    static const struct {
        agk_status status;
        bool poisons;
    } cases[] = {{AGK_OUT_OF_BOUNDS, false}, {AGK_INVALID, false}, {AGK_NO_MEMORY, true}, {AGK_UNSUPPORTED, true}};
    for (int i = 0; i < 4; ++i) {
        rig t = begin(n_threads);
        ag_plan *plan = failing_plan(5, 3, cases[i].status, 0);
        CHECK(ag_plan_seal(plan, NULL, 0, &t.a, 1, &t.cache, 1));
        op o = rig_start(t.stream, rig_plan_slot(plan, NULL));
        ag_error *error = rig_error(o);
        CHECK(error != NULL && poisoned_by(t.a, error));
        CHECK(poisoned_by(t.cache, cases[i].poisons ? error : NULL));
        rig_drop(o);
        ag_plan_unref(plan);
        end(&t);
    }
}

/* A leaf whose step failed to complete because a step of the same phase failed: some of its chunks may be missing. */
static void leaves_beside(void)
{
    rig t = begin(3);
    ag_plan *plan = rig_plan();
    rig_add(plan, maybe_fail, 3, 0, NULL, -1); /* in the phase before: complete */
    rig_add(plan, maybe_fail, 4, 1, NULL, -1);
    rig_add(plan, maybe_fail, 3, -1, NULL, 1)->aux.i[2] = AGK_NO_MEMORY;
    rig_add(plan, never, 2, -1, NULL, 0);
    ag_storage *partial[] = {t.cache, t.b};
    CHECK(ag_plan_seal(plan, NULL, 0, &t.a, 1, partial, 2));
    plan->steps[1].n_together = 2;
    op o = rig_start(t.stream, rig_plan_slot(plan, NULL));
    ag_error *error = rig_error(o);
    CHECK(error != NULL && strcmp(error->tensor, "node-2") == 0);
    CHECK(poisoned_by(t.a, error) && poisoned_by(t.b, error) && poisoned_by(t.cache, NULL));
    rig_drop(o);
    ag_plan_unref(plan);
    end(&t);
}

static void partial_copies_that_began(void)
{
    rig t = begin(1);
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "set", "a", "on purpose");
    ag_slot slot = rig_fail(error); /* a device in Python reports a write that failed midway like this */
    rig_partial(&slot, t.cache);
    CHECK_EQ(rig_result(rig_start(t.stream, slot)), AG_DEVICE_ERROR);
    CHECK(poisoned_by(t.cache, error));
    ag_storage_set_poison(t.cache, NULL);
    ag_stream_hold(t.stream);
    slot = rig_delay(1);
    rig_partial(&slot, t.cache);
    op o = rig_start(t.stream, slot);
    rig_abort(o);
    ag_stream_release(t.stream);
    CHECK_EQ(rig_result(o), AG_ABORTED);
    CHECK(poisoned_by(t.cache, NULL)); /* healthy: it was aborted before it started */
    ag_error_unref(error);
    end(&t);
}

static void failures_seen_are_not_told(void)
{
    rig t = begin(1);
    ag_error *taken[8];
    CHECK_EQ(ag_stream_take_failures(t.stream, taken, 8), 0);
    ag_error *errors[20];
    for (int i = 0; i < 20; ++i) {
        errors[i] = ag_error_new(AG_DEVICE_ERROR, "device", "set", "a", "on purpose");
        rig_send(t.stream, rig_fail(errors[i]));
        if (i % 2) atomic_store(&errors[i]->seen, true);
    }
    rig_drain(t.stream);
    size_t n = ag_stream_take_failures(t.stream, taken, 8);
    CHECK_EQ(n, 8);
    for (size_t i = 0; i < n; ++i) {
        CHECK(taken[i] == errors[2 * i] && atomic_load(&taken[i]->seen));
        ag_error_unref(taken[i]);
    }
    CHECK_EQ(unseen(t.stream), 2);
    for (int i = 0; i < 20; ++i) ag_error_unref(errors[i]);
    end(&t);
}

static void a_lost_stream_fails_all(void)
{
    rig t = begin(2);
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "lost", NULL, "unplugged");
    ag_error *other = ag_error_new(AG_DEVICE_ERROR, "device", "lost", NULL, "unplugged again");
    ag_stream_hold(t.stream);
    ag_slot slot = rig_slot(AG_KIND_NOP);
    rig_writes(&slot, t.a);
    op queued = rig_start(t.stream, slot);
    ag_stream_lose(t.stream, error);
    ag_stream_lose(t.stream, other);
    ag_stream_release(t.stream);
    CHECK(rig_error(queued) == error && poisoned_by(t.a, error) && ag_stream_lost(t.stream) == error);
    rig_drop(queued);
    slot = rig_slot(AG_KIND_NOP);
    op o;
    ag_batch batch = {t.stream, &slot, 1, &o.block, &o.ticket};
    CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_LOST);
    ag_error_unref(error);
    ag_error_unref(other);
    end(&t);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    says_what_failed(1, 1);
    says_what_failed(1, 7);
    says_what_failed(3, 1);
    says_what_failed(3, 7);
    readers_fail_alike_until_cured();
    plans_read_and_cure();
    leaves(1);
    leaves(3);
    leaves_beside();
    partial_copies_that_began();
    failures_seen_are_not_told();
    a_lost_stream_fails_all();
    return 0;
}
