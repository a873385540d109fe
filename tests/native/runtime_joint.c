/* Joint submissions from several threads. Copies are ordered on both streams, and waits for the tails of streams
 * never form a cycle. */
#include <pthread.h>

#include "rig.h"

#define STREAMS 6
#define THREADS 3

static ag_stream *streams[STREAMS];
static atomic_int busy[STREAMS]; /* operations that use the memory of this stream at the moment */
static uint64_t memory[STREAMS]; /* not atomic: only the order of operations protects it */
static ag_plan *plans[STREAMS][STREAMS];
static atomic_uint copies;

/* Like a copy across backends: no other operation of either stream may run. */
static agk_status copy_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    int64_t from = node->aux.i[1], to = node->aux.i[2];
    (void)task;
    (void)chunk;
    CHECK_EQ(atomic_fetch_add(&busy[from], 1), 0);
    if (to != from) CHECK_EQ(atomic_fetch_add(&busy[to], 1), 0);
    memory[to] = memory[from] + 1;
    atomic_fetch_add(&copies, 1);
    if (to != from) atomic_fetch_sub(&busy[to], 1);
    atomic_fetch_sub(&busy[from], 1);
    return AGK_OK;
}

static void make_plans(void)
{
    for (int i = 0; i < STREAMS; ++i) {
        for (int j = 0; j < STREAMS; ++j) {
            plans[i][j] = rig_plan();
            rig_add(plans[i][j], copy_step, 1, -1, NULL, i)->aux.i[2] = j;
        }
    }
}

/* The target waits for all of the source's work, and copies; the source waits for the target up to the copy. */
static void copy_across(uint32_t from, uint32_t to)
{
    ag_slot on_target[2] = {rig_wait_slot(streams[from], AG_TAIL), rig_plan_slot(plans[from][to], NULL)};
    ag_slot on_source[1] = {rig_wait_slot(streams[to], AG_TAIL)};
    ag_block *blocks[3];
    uint64_t tickets[3];
    ag_batch batches[2] = {
        {.stream = streams[to], .slots = on_target, .n = 2, .blocks = blocks, .tickets = tickets},
        {.stream = streams[from], .slots = on_source, .n = 1, .blocks = blocks + 2, .tickets = tickets + 2}};
    CHECK_EQ(ag_submit(batches, 2), AG_SUBMIT_OK);
    for (int i = 0; i < 3; ++i) ag_block_unref(blocks[i]);
}

/* As above with tickets that were read before: ag_submit_if refuses if another thread has submitted meanwhile, and
 * is tried again. */
static void copy_by_tickets(uint32_t from, uint32_t to)
{
    ag_block *blocks[3];
    uint64_t tickets[3];
    for (;;) {
        ag_seen seen[2] = {{streams[from], ag_stream_submitted(streams[from])},
                           {streams[to], ag_stream_submitted(streams[to])}};
        ag_slot on_target[2] = {rig_wait_slot(streams[from], seen[0].ticket), rig_plan_slot(plans[from][to], NULL)};
        ag_slot on_source[1] = {rig_wait_slot(streams[to], seen[1].ticket + 2)};
        ag_batch batches[2] = {
            {.stream = streams[to], .slots = on_target, .n = 2, .blocks = blocks, .tickets = tickets},
            {.stream = streams[from], .slots = on_source, .n = 1, .blocks = blocks + 2, .tickets = tickets + 2}};
        ag_submit_status status = ag_submit_if(batches, 2, seen, 2);
        if (status == AG_SUBMIT_OK) break;
        CHECK_EQ(status, AG_SUBMIT_MOVED);
        for (int i = 0; i < 2; ++i) ag_slot_drop(&on_target[i]);
        ag_slot_drop(on_source);
    }
    CHECK_EQ(tickets[1], tickets[0] + 1);
    for (int i = 0; i < 3; ++i) ag_block_unref(blocks[i]);
}

/* All streams at once, each waiting for all others: more waits than fit on the submitter's stack. */
static void meet(void)
{
    ag_slot slots[STREAMS][STREAMS];
    ag_block *blocks[STREAMS][STREAMS];
    uint64_t tickets[STREAMS][STREAMS];
    ag_batch batches[STREAMS];
    for (int i = 0; i < STREAMS; ++i) {
        for (int j = 0; j < STREAMS; ++j) slots[i][j] = rig_wait_slot(streams[j], AG_TAIL);
        batches[i] = (ag_batch){streams[i], slots[i], STREAMS, blocks[i], tickets[i]};
    }
    CHECK_EQ(ag_submit(batches, STREAMS), AG_SUBMIT_OK);
    for (int i = 0; i < STREAMS; ++i) {
        for (int j = 0; j < STREAMS; ++j) ag_block_unref(blocks[i][j]);
    }
}

static void *submit_many(void *argument)
{
    rng r = rng_new(1 + (uint64_t)(uintptr_t)argument);
    for (int i = 0; i < SCALED(5000); ++i) {
        uint32_t from = rng_below(&r, STREAMS), to = rng_below(&r, STREAMS);
        if (from == to) {
            rig_send(streams[to], rig_plan_slot(plans[to][to], NULL));
        } else if (rng_below(&r, 2)) {
            copy_across(from, to);
        } else {
            copy_by_tickets(from, to);
        }
        if (rng_below(&r, 50) == 0) meet();
    }
    return NULL;
}

/* If one stream is closed the whole submission is refused: the other stream gets nothing of it. */
static void all_or_nothing(void)
{
    uint64_t before = ag_stream_submitted(streams[0]);
    ag_stream_close(streams[1]);
    ag_slot slots[2] = {rig_slot(AG_KIND_NOP), rig_slot(AG_KIND_NOP)};
    ag_block *blocks[2] = {NULL, NULL};
    uint64_t tickets[2];
    ag_batch batches[2] = {{streams[0], &slots[0], 1, &blocks[0], &tickets[0]},
                           {streams[1], &slots[1], 1, &blocks[1], &tickets[1]}};
    CHECK_EQ(ag_submit(batches, 2), AG_SUBMIT_CLOSED);
    CHECK(blocks[0] == NULL);
    CHECK_EQ(ag_stream_submitted(streams[0]), before);
}

/* One submission to thousands of streams, in any order, each waiting for another one. Then a search who waits for
 * whom along the whole chain of streams, whose links must each be found at once. */
#if defined(__SANITIZE_THREAD__)
enum { MANY = 60 }; /* the number of locks that TSan lets one thread hold */
#else
enum { MANY = 4096 };
#endif

static void thousands_at_once(void)
{
    static ag_stream *many[MANY];
    static ag_slot slots[MANY][2];
    static ag_block *blocks[MANY][2];
    static uint64_t tickets[MANY][2];
    static ag_batch batches[MANY];
    ag_pool *pool = rig_pool(2);
    rng r = rng_new(7);
    for (int i = 0; i < MANY; ++i) {
        many[i] = rig_stream(pool, 0);
        const int k = (int)rng_below(&r, (uint32_t)i + 1);
        ag_stream *swap = many[k];
        many[k] = many[i];
        many[i] = swap;
    }
    ag_stream_hold(many[0]);
    for (int i = 0; i < MANY; ++i) {
        slots[i][0] = i > 0 ? rig_wait_slot(many[i - 1], AG_TAIL) : rig_slot(AG_KIND_NOP);
        slots[i][1] = rig_slot(AG_KIND_NOP);
        batches[i] = (ag_batch){many[i], slots[i], 2, blocks[i], tickets[i]};
    }
    CHECK_EQ(ag_submit(batches, MANY), AG_SUBMIT_OK);
    ag_edge last = {.other = many[MANY - 1], .ticket = 2}, first = {.other = many[0], .ticket = 2};
    CHECK(ag_stream_needs(&last, 1, NULL, 0, many[0]));
    CHECK(ag_stream_needs(&last, 1, NULL, 0, many[MANY / 2]));
    CHECK(!ag_stream_needs(&first, 1, NULL, 0, many[1]));
    ag_stream_release(many[0]);
    for (int i = 0; i < MANY; ++i) {
        rig_drain(many[i]);
        CHECK_EQ(ag_stream_submitted(many[i]), 2);
        ag_block_unref(blocks[i][0]);
        ag_block_unref(blocks[i][1]);
        ag_stream_unref(many[i]);
    }
    rig_end(pool);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    make_plans();
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        ag_pool *pool = rig_pool(n_threads);
        pthread_t threads[THREADS];
        for (int i = 0; i < STREAMS; ++i) streams[i] = rig_stream(pool, 0);
        for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, submit_many, (void *)(uintptr_t)i);
        for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
        for (int i = 0; i < STREAMS; ++i) rig_drain(streams[i]);
        all_or_nothing();
        for (int i = 0; i < STREAMS; ++i) ag_stream_unref(streams[i]);
        rig_end(pool);
    }
    thousands_at_once();
    CHECK_EQ(atomic_load(&copies), 2 * THREADS * SCALED(5000));
    for (int i = 0; i < STREAMS * STREAMS; ++i) ag_plan_unref(plans[i / STREAMS][i % STREAMS]);
    return 0;
}
