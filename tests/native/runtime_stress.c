/* Everything at once for five seconds: submissions, joint ones, aborts, failures, holds, calls, watches, streams
 * that come and go, on two pools. In the end all operations are done, and those that succeeded are complete. */
#include <pthread.h>

#include "rig.h"

#define STREAMS 6
#define THREADS 3
#define HANDLES 32
#define SECONDS 5.0

#define N_STEPS 6
#define N_CHUNKS 5

typedef struct record { /* one run of the plan */
    atomic_uint ran[N_STEPS];
    int64_t fails; /* the step that fails, or -1 */
} record;

typedef struct handle {
    op o;
    record *rec; /* NULL if it is no plan */
} handle;

static ag_pool *pools[2];
static ag_plan *plans[STREAMS];
static ag_storage *storages[STREAMS];
static ag_error *made_up;
static atomic_bool stop, stop_keepers;
static atomic_uint counted[4]; /* plans that succeeded, were aborted, failed; notifications */

/* Streams are replaced now and then. A submitting thread holds the lock for reading, so that nothing is submitted to
 * a stream that was replaced. */
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static ag_stream *table[STREAMS];

static ag_stream *borrow(uint32_t i)
{
    return ag_stream_ref(table[i]);
}

static agk_status step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    record *rec = (record *)task->arena;
    int64_t i = node->aux.i[1];
    if (i > 0) CHECK(atomic_load(&rec->ran[i - 1]) == (i - 1) % 2 * (N_CHUNKS - 1) + 1);
    atomic_fetch_add(&rec->ran[i], 1);
    if (rec->fails == i && chunk == 0) {
        snprintf(task->message, AGK_MESSAGE, "on purpose");
        return AGK_OUT_OF_BOUNDS;
    }
    return AGK_OK;
}

static void make_plans(void)
{
    for (int k = 0; k < STREAMS; ++k) {
        plans[k] = rig_plan();
        for (int i = 0; i < N_STEPS; ++i) rig_add(plans[k], step, i % 2 ? N_CHUNKS : 1, i == 3 ? 0 : -1, NULL, i);
        storages[k] = ag_storage_new("storage");
        CHECK(ag_plan_seal(plans[k], NULL, 0, &storages[k], 1, NULL, 0));
    }
}

static ag_slot random_slot(rng *r, record **rec, ag_stream *other)
{
    ag_slot slot;
    uint32_t k = rng_below(r, STREAMS);
    *rec = NULL;
    switch (rng_below(r, 10)) {
    case 0: return rig_delay(rng_below(r, 200000));
    case 1: return rig_wait_slot(other, AG_TAIL);
    case 2:
        slot = rig_fail(made_up);
        rig_writes(&slot, storages[k]);
        return slot;
    case 3:
        slot = rig_slot(AG_KIND_NOP);
        rig_writes(&slot, storages[k]);
        return slot;
    case 4:
        slot = rig_slot(AG_KIND_NOP);
        rig_reads(&slot, storages[k]);
        return slot;
    case 5: return rig_slot(AG_KIND_CALL);
    default: break;
    }
    *rec = calloc(1, sizeof **rec);
    CHECK(*rec != NULL);
    (*rec)->fails = rng_below(r, 8) ? -1 : (int64_t)rng_below(r, N_STEPS);
    slot = rig_plan_slot(plans[k], *rec);
    if (rng_below(r, 2)) rig_reads(&slot, storages[rng_below(r, STREAMS)]);
    return slot;
}

static void settle(handle *h, ag_notifier *notifier)
{
    atomic_fetch_add(&counted[3], (unsigned)rig_sleep(h->o, notifier));
    CHECK(rig_done(h->o));
    ag_error *error = atomic_load(&rig_slot_of(h->o)->error);
    if (h->rec != NULL) {
        for (int i = 0; error == NULL && i < N_STEPS; ++i) {
            CHECK_EQ(atomic_load(&h->rec->ran[i]), i % 2 ? N_CHUNKS : 1);
        }
        if (error != NULL && error->code == AG_OUT_OF_BOUNDS) CHECK(strstr(error->text, "on purpose") != NULL);
        atomic_fetch_add(&counted[error == NULL ? 0 : error->code == AG_ABORTED ? 1 : 2], 1);
    }
    free(h->rec);
    rig_drop(h->o);
    ag_stream_unref(h->o.stream);
}

static handle submit_one(rng *r)
{
    ag_stream *stream = borrow(rng_below(r, STREAMS)), *other = borrow(rng_below(r, STREAMS));
    handle h;
    ag_slot slot = random_slot(r, &h.rec, other);
    h.o.stream = stream;
    ag_batch batch = {stream, &slot, 1, &h.o.block, &h.o.ticket};
    CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_OK);
    ag_stream_unref(other);
    return h;
}

/* Two streams at once, each ordered behind the other. */
static void submit_joint(rng *r)
{
    ag_stream *a = borrow(rng_below(r, STREAMS)), *b = borrow(rng_below(r, STREAMS));
    ag_slot first[2] = {rig_wait_slot(a, AG_TAIL), rig_delay(rng_below(r, 2) ? 0 : 20000)},
            second = rig_wait_slot(b, AG_TAIL);
    ag_block *blocks[3];
    uint64_t tickets[3];
    ag_batch batches[2] = {{b, first, 2, blocks, tickets}, {a, &second, 1, blocks + 2, tickets + 2}};
    CHECK_EQ(ag_submit(batches, 2), AG_SUBMIT_OK);
    for (int i = 0; i < 3; ++i) ag_block_unref(blocks[i]);
    ag_stream_unref(a);
    ag_stream_unref(b);
}

static void *submit_on(void *argument)
{
    rng r = rng_new(1 + (uint64_t)(uintptr_t)argument);
    ag_notifier *notifier = ag_notifier_new();
    handle handles[HANDLES];
    int n = 0;
    while (!atomic_load(&stop)) {
        if (n == HANDLES) {
            while (n > HANDLES / 4) settle(&handles[--n], notifier);
        }
        pthread_rwlock_rdlock(&table_lock);
        handles[n++] = submit_one(&r);
        if (rng_below(&r, 8) == 0) submit_joint(&r);
        pthread_rwlock_unlock(&table_lock);
        if (rng_below(&r, 4) == 0) rig_abort(handles[rng_below(&r, (uint32_t)n)].o);
        if (rng_below(&r, 64) == 0) ag_stream_abort_all(handles[rng_below(&r, (uint32_t)n)].o.stream);
        if (rng_below(&r, 16) == 0) check_spin(rng_below(&r, 50000));
    }
    while (n > 0) settle(&handles[--n], notifier);
    ag_notifier_close(notifier);
    ag_notifier_unref(notifier);
    return NULL;
}

/* Holds, changes the number of threads, injects failures; replaces streams, whose queued work goes on. */
static void *meddle(void *argument)
{
    rng r = rng_new(100);
    (void)argument;
    while (!atomic_load(&stop)) {
        pthread_rwlock_rdlock(&table_lock);
        ag_stream *stream = borrow(rng_below(&r, STREAMS));
        pthread_rwlock_unlock(&table_lock);
        ag_stream_hold(stream);
        check_spin(rng_below(&r, 20000));
        ag_stream_set_n_threads(stream, (int)rng_below(&r, 4));
        CHECK(ag_stream_release(stream));
        ag_error *failures[4];
        size_t n = ag_stream_take_failures(stream, failures, 4);
        for (size_t k = 0; k < n; ++k) ag_error_unref(failures[k]);
        if (rng_below(&r, 8) == 0) {
            ag_pool *pool = pools[rng_below(&r, 2)];
            ag_pool_pause(pool);
            check_spin(rng_below(&r, 50000));
            ag_pool_resume(pool);
        }
        ag_stream_unref(stream);
        check_nap(rng_below(&r, 500));
    }
    return NULL;
}

static ag_stream *replace(uint32_t i, ag_pool *pool)
{
    ag_stream *fresh = ag_stream_new("fresh", pool, 0);
    CHECK(fresh != NULL);
    pthread_rwlock_wrlock(&table_lock);
    ag_stream *old = table[i];
    table[i] = fresh;
    pthread_rwlock_unlock(&table_lock);
    return old;
}

/* Carries out the calls of one stream of the table. Every 50 to 150 ms it replaces the stream, once that is empty. */
static void *keep_stream(void *argument)
{
    uint32_t i = (uint32_t)(uintptr_t)argument;
    rng r = rng_new(200 + i);
    while (!atomic_load(&stop_keepers)) {
        ag_stream *mine = borrow(i); /* only this thread replaces it */
        bool replaced = false;
        double until = check_seconds() + 0.05 + rng_below(&r, 100) * 1e-3;
        while (!(replaced || atomic_load(&stop_keepers)) || ag_stream_completed(mine) != ag_stream_submitted(mine)) {
            uint64_t ticket;
            if (ag_stream_next_call(mine, 1000000, &ticket)) {
                ag_stream_finish_call(mine, rng_below(&r, 8) ? NULL : ag_error_ref(made_up));
            }
            if (!replaced && check_seconds() > until) {
                ag_stream_unref(replace(i, pools[rng_below(&r, 2)]));
                replaced = true;
            }
        }
        ag_stream_unref(mine);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    pthread_t submitters[THREADS], keepers[STREAMS], meddler;
    pools[0] = rig_pool(1);
    pools[1] = rig_pool(3);
    made_up = ag_error_new(AG_DEVICE_ERROR, "device", "test", NULL, "made up");
    make_plans();
    for (int i = 0; i < STREAMS; ++i) table[i] = rig_stream(pools[i % 2], 0);
    for (uintptr_t i = 0; i < STREAMS; ++i) pthread_create(&keepers[i], NULL, keep_stream, (void *)i);
    for (uintptr_t i = 0; i < THREADS; ++i) pthread_create(&submitters[i], NULL, submit_on, (void *)i);
    pthread_create(&meddler, NULL, meddle, NULL);
    for (double end = check_seconds() + SECONDS; check_seconds() < end;) check_nap(10000);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; ++i) pthread_join(submitters[i], NULL);
    pthread_join(meddler, NULL);
    atomic_store(&stop_keepers, true);
    for (int i = 0; i < STREAMS; ++i) pthread_join(keepers[i], NULL);
    for (int i = 0; i < STREAMS; ++i) {
        rig_drain(table[i]);
        ag_stream_unref(table[i]);
        ag_plan_unref(plans[i]);
        ag_storage_unref(storages[i]);
    }
    printf("plans: %u whole, %u aborted, %u failed; %u notifications\n", atomic_load(&counted[0]),
           atomic_load(&counted[1]), atomic_load(&counted[2]), atomic_load(&counted[3]));
    CHECK(atomic_load(&counted[0]) > 0 && atomic_load(&counted[1]) > 0 && atomic_load(&counted[2]) > 0);
    rig_end(pools[0]);
    rig_end(pools[1]);
    ag_error_unref(made_up);
    return 0;
}
