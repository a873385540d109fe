/* A simulated machine of many processors and two banks of memory: more threads than this machine has cores. Every
 * chunk is done once, even if a thread is late. The leader wakes a few threads, and these wake the others. Threads
 * begin with the chunks of their own range. Streams stay in their bank, and another bank takes over those for which
 * their own has no time. */
#include <pthread.h>

#include "runtime/topology.h"
#include "rig.h"

enum { MOST_CHUNKS = 600 };

static atomic_int inside;

static agk_status meet(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)chunk;
    atomic_fetch_add(&inside, 1);
    CHECK_SOON(atomic_load(&inside) >= (int)node->aux.i[1]);
    return AGK_OK;
}

typedef struct record {
    atomic_int done[MOST_CHUNKS];
    atomic_int all;
} record;

static agk_status once_each(const agk_task *task, const agk_node *node, int64_t chunk)
{
    record *r = (record *)task->arena + node->aux.i[1];
    atomic_fetch_add(&r->done[chunk], 1);
    atomic_fetch_add(&r->all, 1);
    return AGK_OK;
}

static ag_plan *one_step(agk_step_fn *run, uint32_t n_chunks, int64_t number)
{
    ag_plan *plan = rig_plan();
    rig_add(plan, run, n_chunks, -1, NULL, number);
    return plan;
}

static void all_asleep(ag_pool *pool)
{
    CHECK_SOON(ag_pool_sleepers(pool) == ag_pool_n_threads(pool));
}

static unsigned woke(const ag_pool *pool, int i)
{
    return atomic_load(&ag_pool_worker(pool, i)->woke);
}

/* All threads meet in one step. The leader is busy in its own chunk, after it has woken two threads in its bank and
 * one in each other bank. */
static void nobody_wakes_many(int n_threads, int banks)
{
    ag_topology_pretend(n_threads, banks);
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = one_step(meet, (uint32_t)n_threads, n_threads);
    for (int round = 0; round < 4; ++round) {
        unsigned before[AG_MAX_BANKS * 64], sum = 0, most = 0;
        all_asleep(pool);
        for (int i = 0; i < n_threads; ++i) before[i] = woke(pool, i);
        atomic_store(&inside, 0);
        CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, NULL))), 0);
        for (int i = 0; i < n_threads; ++i) {
            const unsigned mine = woke(pool, i) - before[i];
            sum += mine;
            most = mine > most ? mine : most;
        }
        /* the submitter woke the first thread, and one may not have been asleep again */
        CHECK(sum >= (unsigned)n_threads - 1 - 1);
        /* a woken thread wakes two, the leader also one in each other bank; each may wake one more after its chunk */
        CHECK(most <= (unsigned)(2 + banks));
    }
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

/* Steps of all sizes, alone and in one phase, while threads come and go: each chunk runs once, in the order of the
 * steps. */
static void each_chunk_once(int n_threads, int cores, int banks, int limit)
{
    enum { STEPS = 6 };
    static const uint32_t sizes[STEPS] = {2, 7, 600, 33, 1, 129};
    static record records[STEPS];
    ag_topology_pretend(cores, banks);
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *stream = rig_stream(pool, limit);
    for (int together = 0; together < 3; ++together) {
        ag_plan *plan = rig_plan();
        for (int i = 0; i < STEPS; ++i) rig_add(plan, once_each, sizes[i], -1, NULL, i);
        if (together == 1) plan->steps[1].n_together = 3; /* the second to the fourth step form one phase */
        if (together == 2) plan->steps[0].n_together = STEPS;
        for (int round = 0; round < SCALED(200); ++round) {
            memset(records, 0, sizeof records);
            CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, records))), 0);
            for (int i = 0; i < STEPS; ++i) {
                CHECK_EQ(atomic_load(&records[i].all), sizes[i]);
                for (uint32_t c = 0; c < sizes[i]; ++c) CHECK_EQ(atomic_load(&records[i].done[c]), 1);
            }
        }
        ag_plan_unref(plan);
    }
    ag_stream_unref(stream);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

static const ag_pool *home;

static int bank_of_this_thread(void)
{
    for (int i = 0; i < ag_pool_n_threads(home); ++i) {
        if (pthread_equal(ag_pool_worker(home, i)->thread, pthread_self())) return ag_pool_worker(home, i)->bank;
    }
    return -1;
}

static agk_status at_home(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    CHECK_EQ(bank_of_this_thread(), chunk / 8);
    atomic_fetch_add(&inside, 1);
    CHECK_SOON(atomic_load(&inside) >= 16); /* each thread takes only one chunk */
    return AGK_OK;
}

/* Sixteen threads, sixteen chunks, none of which ends before all have begun. The threads of the first bank take the
 * first half of the chunks, those of the second bank the others, each time. */
static void threads_begin_at_home(void)
{
    ag_topology_pretend(16, 2);
    ag_pool *pool = rig_pool(16);
    home = pool;
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = one_step(at_home, 16, 0);
    for (int round = 0; round < 20; ++round) {
        unsigned before = 0, after = 0, taken = 0;
        for (int i = 0; i < 16; ++i) before += atomic_load(&ag_pool_worker(pool, i)->strayed);
        for (int i = 0; i < 16; ++i) taken += atomic_load(&ag_pool_worker(pool, i)->claimed);
        atomic_store(&inside, 0);
        CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, NULL))), 0);
        for (int i = 0; i < 16; ++i) after += atomic_load(&ag_pool_worker(pool, i)->strayed);
        for (int i = 0; i < 16; ++i) taken -= atomic_load(&ag_pool_worker(pool, i)->claimed);
        CHECK_EQ(after - before, 0);
        CHECK_EQ(0u - taken, 16);
    }
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

static atomic_bool blocked;

static agk_status block(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    atomic_fetch_add(&inside, 1);
    CHECK_SOON(!atomic_load(&blocked));
    return AGK_OK;
}

/* All threads of one bank are busy: threads of the other bank run its queued work. */
static void a_bank_without_time_is_helped(void)
{
    enum { THREADS = 4, STREAMS = 64 };
    ag_topology_pretend(THREADS, 2);
    ag_pool *pool = rig_pool(THREADS);
    ag_plan *hold = one_step(block, 1, 0), *quick = one_step(once_each, 1, 0);
    static record done;
    ag_stream *blocker = rig_stream(pool, 1), *streams[STREAMS];
    ag_stream *more[THREADS - 2];
    memset(&done, 0, sizeof done);
    atomic_store(&blocked, true);
    atomic_store(&inside, 0);
    rig_send(blocker, rig_plan_slot(hold, NULL));
    for (int i = 0; i < THREADS - 2; ++i) {
        more[i] = rig_stream(pool, 1);
        rig_send(more[i], rig_plan_slot(hold, NULL));
    }
    CHECK_SOON(atomic_load(&inside) == THREADS - 1); /* only one thread is free, in one of the banks */
    for (int i = 0; i < STREAMS; ++i) {
        streams[i] = rig_stream(pool, 1);
        rig_send(streams[i], rig_plan_slot(quick, &done));
    }
    for (int i = 0; i < STREAMS; ++i) rig_drain(streams[i]);
    CHECK_EQ(atomic_load(&done.all), STREAMS);
    atomic_store(&blocked, false);
    rig_drain(blocker);
    for (int i = 0; i < STREAMS; ++i) ag_stream_unref(streams[i]);
    for (int i = 0; i < THREADS - 2; ++i) rig_drain(more[i]), ag_stream_unref(more[i]);
    ag_stream_unref(blocker);
    ag_plan_unref(hold);
    ag_plan_unref(quick);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

/* Many streams with plans of many chunks, submitted by several threads and aborted at random, while threads of the
 * pool end. */
typedef struct load {
    ag_pool *pool;
    ag_plan *plan;
    uint64_t number;
} load;

static void *submit(void *argument)
{
    load *l = argument;
    rng r = rng_new(l->number);
    static record thrown[8];
    ag_stream *streams[6];
    for (int i = 0; i < 6; ++i) streams[i] = rig_stream(l->pool, (int)rng_below(&r, 4) * 7);
    for (int i = 0; i < SCALED(1500); ++i) {
        ag_stream *s = streams[rng_below(&r, 6)];
        if (rng_below(&r, 3) == 0) rig_send(s, rig_wait_slot(streams[rng_below(&r, 6)], AG_TAIL));
        op o = rig_start(s, rig_plan_slot(l->plan, thrown));
        if (rng_below(&r, 8) == 0) rig_abort(o);
        if (rng_below(&r, 64) == 0) check_nap(600); /* long enough for some threads to fall asleep */
        rig_drop(o);
    }
    for (int i = 0; i < 6; ++i) rig_drain(streams[i]), ag_stream_unref(streams[i]);
    return NULL;
}

static void under_load(void)
{
    ag_topology_pretend(64, 4);
    ag_pool *pool = rig_pool(40);
    ag_plan *plan = rig_plan();
    rig_add(plan, once_each, 40, -1, NULL, 0);
    rig_add(plan, once_each, 1, -1, NULL, 1);
    rig_add(plan, once_each, 97, -1, NULL, 2);
    load loads[3];
    pthread_t threads[3];
    for (uint64_t i = 0; i < 3; ++i) {
        loads[i] = (load){pool, plan, i};
        pthread_create(&threads[i], NULL, submit, &loads[i]);
    }
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    ag_plan_unref(plan);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

/* A buffer is divided into equal parts of whole pages, one for each bank. */
static void pages_are_placed_by_parts(void)
{
    ag_topology_pretend(64, 2);
    char *data = aligned_alloc(4096, 10 * 4096);
    CHECK_EQ(ag_place(data, 10 * 4096), 2);
    CHECK_EQ(ag_place(data, 4096), 0); /* too small to be divided */
    CHECK_EQ(ag_place_part(10 * 4096, 0, 2), 0);
    CHECK_EQ(ag_place_part(10 * 4096, 1, 2), 5 * 4096);
    CHECK_EQ(ag_place_part(10 * 4096, 2, 2), 10 * 4096);
    CHECK_EQ(ag_place_part(9 * 4096 + 1, 2, 2), 10 * 4096);
    ag_topology_pretend(0, 0);
    CHECK_EQ(ag_place(data, 10 * 4096) > 0, ag_banks() > 1);
    memset(data, 1, 10 * 4096);
    free(data);
}

enum { NEIGHBOURS = 30 };

typedef struct taken {
    atomic_int n;
    int turn[NEIGHBOURS]; /* how many chunks were begun before */
    pthread_t by[NEIGHBOURS];
} taken;

static agk_status note(const agk_task *task, const agk_node *node, int64_t chunk)
{
    taken *t = (taken *)task->arena;
    (void)node;
    t->turn[chunk] = atomic_fetch_add(&t->n, 1);
    t->by[chunk] = pthread_self();
    CHECK_SOON(atomic_load(&t->n) >= 3); /* nobody goes on before each of the three threads has begun */
    return AGK_OK;
}

/* Three threads begin with the chunks 0, 10 and 20, and each goes on with the next one, even where two threads take
 * chunks of the same ten in the end. */
static void a_thread_takes_neighbours(void)
{
    ag_topology_pretend(3, 1);
    ag_pool *pool = rig_pool(3);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = one_step(note, NEIGHBOURS, 0);
    for (int round = 0; round < 20; ++round) {
        taken t = {0};
        CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, &t))), 0);
        CHECK_EQ(atomic_load(&t.n), NEIGHBOURS);
        for (int i = 0; i < NEIGHBOURS; ++i) {
            if (i % 10 == 0)
                CHECK(t.turn[i] < 3);
            else if (pthread_equal(t.by[i], t.by[i - 1]))
                CHECK(t.turn[i] > t.turn[i - 1]);
        }
    }
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
    ag_topology_pretend(0, 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    pages_are_placed_by_parts();
    nobody_wakes_many(16, 1);
    nobody_wakes_many(64, 1);
    nobody_wakes_many(64, 2);
    each_chunk_once(2, 2, 1, 0);
    each_chunk_once(24, 24, 1, 0);
    each_chunk_once(24, 24, 2, 0);
    each_chunk_once(24, 8, 4, 19);
    each_chunk_once(128, 128, 2, 0);
    threads_begin_at_home();
    a_thread_takes_neighbours();
    a_bank_without_time_is_helped();
    under_load();
    return 0;
}
