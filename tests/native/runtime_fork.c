/* Fork. The child sees that inherited streams belong to the parent, no call on them blocks, and the child's own
 * pools work. The parent goes on. At the fork other threads hold locks that the child inherits. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

/* Limits of the sanitizers (GCC 12), not of the runtime. TSan does not support new threads in the child of a process
 * that had threads. ASan's allocator does not take its locks around a fork: if another thread allocates at that
 * moment, the child may hang in malloc. */
#if defined(__SANITIZE_THREAD__)
enum { CHILD_MAY_START_THREADS = false, CHILD_MAY_ALLOCATE = false };
#elif defined(__SANITIZE_ADDRESS__)
enum { CHILD_MAY_START_THREADS = true, CHILD_MAY_ALLOCATE = false };
#else
enum { CHILD_MAY_START_THREADS = true, CHILD_MAY_ALLOCATE = true };
#endif

static agk_status tick(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)node;
    (void)chunk;
    atomic_fetch_add((atomic_int *)task->arena, 1);
    return AGK_OK;
}

static agk_status meet(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    atomic_fetch_add((atomic_int *)task->arena, 1);
    CHECK_SOON(atomic_load((atomic_int *)task->arena) >= (int)node->aux.i[1]);
    return AGK_OK;
}

typedef struct inherited {
    ag_pool *pool;
    ag_stream *stream;
    ag_notifier *notifier;
    ag_storage *storage;
    op pending;
    ag_wait armed; /* a wait for `pending` */
    ag_plan *plan;
} inherited;

static atomic_bool stop;

/* Takes the locks of stream, pool, timers and poison as often as it can. */
static void *disturb(void *argument)
{
    inherited *p = argument;
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "test", NULL, "on purpose");
    atomic_int ticks = 0;
    while (!atomic_load(&stop)) {
        CHECK_EQ(rig_result(rig_start(p->stream, rig_slot(AG_KIND_NOP))), 0);
        rig_send(p->stream, rig_delay(100));
        rig_send(p->stream, rig_plan_slot(p->plan, &ticks));
        ag_wait wait = {0};
        ag_wait_arm(&wait, p->stream, p->notifier, ag_stream_submitted(p->stream));
        ag_wait_cancel(&wait);
        ag_storage_set_poison(p->storage, error);
        ag_storage_set_poison(p->storage, NULL);
    }
    rig_drain(p->stream);
    ag_error_unref(error);
    return NULL;
}

static void what_is_the_parents_is_refused(inherited *p)
{
    ag_stream *s = p->stream;
    CHECK(!ag_stream_alive(s));
    ag_slot slot = rig_slot(AG_KIND_NOP);
    op o;
    ag_batch batch = {s, &slot, 1, &o.block, &o.ticket};
    CHECK(ag_submit(&batch, 1) == AG_SUBMIT_FORKED);
    /* None of these calls may wait for a lock that a thread of the parent held. */
    (void)ag_stream_closed(s);
    ag_stream_hold(s);
    CHECK(!ag_stream_release(s));
    ag_stream_abort(s, p->pending.block, p->pending.ticket);
    ag_stream_abort_all(s);
    ag_wait wait = {0};
    CHECK(!ag_wait_arm(&wait, s, p->notifier, p->pending.ticket));
    ag_wait_cancel(&wait);
    ag_wait_cancel(&p->armed);
    CHECK(ag_notifier_take(p->notifier) == NULL);
    ag_error *errors[1];
    CHECK(ag_stream_take_failures(s, errors, 1) == 0);
    uint64_t ticket;
    CHECK(!ag_stream_next_call(s, UINT64_MAX, &ticket));
    ag_stream_close(s);
    CHECK(ag_notifier_fd(p->notifier) == -1);
    ag_notifier_signal(p->notifier);
    ag_notifier_close(p->notifier);
    CHECK(!ag_pool_grow(p->pool, 8, true));
    ag_pool_pause(p->pool);
    ag_pool_resume(p->pool);
    ag_pool_stop(p->pool);
    ag_storage_set_poison(p->storage, NULL);
}

static void what_is_its_own_works(inherited *p)
{
    atomic_int ticks = 0;
    ag_pool *pool = rig_pool(3);
    ag_stream *stream = rig_stream(pool, 0);
    ag_notifier *notifier = ag_notifier_new();
    CHECK(notifier != NULL && ag_stream_alive(stream));
    rig_send(stream, rig_plan_slot(p->plan, &ticks)); /* a plan is plain memory, so the child can use it */
    op o = rig_start(stream, rig_delay(1000000));
    rig_sleep(o, notifier);
    rig_drain(stream);
    CHECK(atomic_load(&ticks) == 4);
    /* A wait for an operation that only the parent can end is refused: it would last for ever. */
    ag_slot slot = rig_wait_slot(p->stream, UINT64_MAX - 1);
    op never;
    ag_batch batch = {stream, &slot, 1, &never.block, &never.ticket};
    CHECK(ag_submit(&batch, 1) == AG_SUBMIT_FORKED);
    ag_slot_drop(&slot);
    rig_drop(o);
    ag_notifier_unref(notifier);
    ag_stream_unref(stream);
    rig_end(pool);
}

static void child(inherited *p, bool own)
{
    alarm(PATIENCE_S); /* kills a child that hangs, which the parent notices */
    what_is_the_parents_is_refused(p);
    if (own) what_is_its_own_works(p);
    rig_drop(p->pending);
    ag_stream_unref(p->stream);
    ag_pool_unref(p->pool);
    _exit(0);
}

/* Waits until workers and timer have started and sleep: a starting thread allocates, which ASan cannot bear at a
 * fork. */
static void let_all_settle(inherited *p)
{
    atomic_int inside = 0;
    ag_plan *plan = rig_plan();
    int n = ag_pool_n_threads(p->pool);
    rig_add(plan, meet, (uint32_t)n, -1, NULL, n);
    CHECK_EQ(rig_result(rig_start(p->stream, rig_plan_slot(plan, &inside))), 0);
    CHECK_EQ(rig_result(rig_start(p->stream, rig_delay(1000000))), 0);
    ag_plan_unref(plan);
    check_nap(20000);
}

static void fork_once(inherited *p, bool own)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) child(p, own);
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(!WIFSIGNALED(status)); /* SIGALRM: the child hung */
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK(ag_stream_alive(p->stream));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    inherited p = {
        .pool = rig_pool(2), .notifier = ag_notifier_new(), .storage = ag_storage_new("s"), .plan = rig_plan()};
    p.stream = rig_stream(p.pool, 0);
    ag_stream *sleeping = rig_stream(p.pool, 0);
    rig_add(p.plan, tick, 4, -1, NULL, 0);
    p.pending = rig_start(sleeping, rig_delay(3600000000000u));
    CHECK(ag_wait_arm(&p.armed, sleeping, p.notifier, p.pending.ticket));
    let_all_settle(&p);
    for (int i = 0; i < SCALED(40); ++i) fork_once(&p, CHILD_MAY_START_THREADS);
    pthread_t thread;
    pthread_create(&thread, NULL, disturb, &p);
    for (int i = 0; i < SCALED(100); ++i) {
        check_nap(200);
        fork_once(&p, CHILD_MAY_START_THREADS && CHILD_MAY_ALLOCATE);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    rig_abort(p.pending);
    CHECK_EQ(rig_result(p.pending), AG_ABORTED);
    ag_wait_cancel(&p.armed);
    ag_stream_unref(sleeping);
    ag_stream_unref(p.stream);
    ag_plan_unref(p.plan);
    ag_storage_unref(p.storage);
    ag_notifier_unref(p.notifier);
    rig_end(p.pool);
    return 0;
}
