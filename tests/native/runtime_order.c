/* Operations of every kind on one stream leave the same bytes as if they were carried out one after another. */
#include <pthread.h>

#include "rig.h"

#define AREA 65536

static uint8_t memory[AREA], model[AREA];
static atomic_uint calls_made;

/* Each chunk changes its own bytes, in a way whose result depends on the order of the steps. */
static void mix(uint8_t *area, int64_t number, int64_t n_chunks, int64_t chunk)
{
    for (int64_t i = chunk; i < AREA; i += n_chunks) area[i] = (uint8_t)(area[i] * 3 + number);
}

static agk_status mix_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    mix((uint8_t *)task->arena, node->aux.i[1], node->aux.i[2], chunk);
    return AGK_OK;
}

static ag_slot random_plan(rng *r)
{
    ag_plan *plan = rig_plan();
    for (uint32_t steps = 1 + rng_below(r, 3); steps > 0; --steps) {
        uint32_t n_chunks = rng_below(r, 2) ? 1 : 1 + rng_below(r, 9);
        agk_node *node = rig_add(plan, mix_step, n_chunks, -1, NULL, rng_below(r, 100));
        node->aux.i[2] = n_chunks;
        for (uint32_t c = 0; c < n_chunks; ++c) mix(model, node->aux.i[1], n_chunks, c);
    }
    ag_slot slot = rig_plan_slot(plan, memory);
    ag_plan_unref(plan);
    return slot;
}

static ag_slot random_copy(rng *r)
{
    uint32_t size = rng_below(r, 2) ? 64 : 20000; /* below and above the size that a submitting thread copies itself */
    uint32_t from = rng_below(r, AREA / 2 - size), to = AREA / 2 + rng_below(r, AREA / 2 - size);
    if (rng_below(r, 2)) {
        uint32_t t = from;
        from = to;
        to = t;
    }
    memcpy(model + to, model + from, size);
    return rig_copy(memory + to, memory + from, size);
}

static ag_slot random_fill(rng *r)
{
    uint32_t size = rng_below(r, 2) ? 16 : 20000, at = rng_below(r, AREA - size);
    int value = (int)rng_below(r, 256);
    memset(model + at, value, size);
    return rig_fill(memory + at, value, size);
}

static void call_body(uint8_t *area)
{
    for (int i = 0; i < AREA; i += 7) area[i] ^= 0x5a;
}

static void *serve_calls(void *argument)
{
    ag_stream *stream = argument;
    for (;;) {
        uint64_t ticket;
        if (!ag_stream_next_call(stream, 100000000, &ticket)) {
            if (ag_stream_closed(stream)) return NULL;
            continue;
        }
        CHECK_EQ(ticket, ag_stream_completed(stream) + 1);
        call_body(memory);
        atomic_fetch_add(&calls_made, 1);
        ag_stream_finish_call(stream, NULL);
    }
}

static ag_slot random_op(rng *r, ag_stream *other, ag_error *error)
{
    switch (rng_below(r, 12)) {
    case 0: return rig_slot(AG_KIND_NOP);
    case 1: return rig_fail(error);
    case 2: return rig_delay(rng_below(r, 50000));
    case 3: return rig_wait_slot(other, rng_below(r, 2) ? AG_TAIL : ag_stream_submitted(other));
    case 4: call_body(model); return rig_slot(AG_KIND_CALL);
    case 5:
    case 6:
    case 7: return random_plan(r);
    case 8:
    case 9: return random_fill(r);
    default: return random_copy(r);
    }
}

/* One submission of several slots; tickets are consecutive. */
static void submit_batch(rng *r, ag_stream *stream, ag_stream *other, ag_error *error)
{
    enum { MOST = 70 };
    ag_slot slots[MOST];
    ag_block *blocks[MOST];
    uint64_t tickets[MOST];
    size_t n = 1 + (rng_below(r, 2) ? rng_below(r, 3) : rng_below(r, MOST));
    for (size_t i = 0; i < n; ++i) slots[i] = random_op(r, other, error);
    uint64_t before = ag_stream_submitted(stream);
    ag_batch batch = {.stream = stream, .slots = slots, .n = n, .blocks = blocks, .tickets = tickets};
    CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_OK);
    for (size_t i = 0; i < n; ++i) {
        CHECK_EQ(tickets[i], before + 1 + i);
        CHECK(tickets[i] - blocks[i]->base < AG_BLOCK_SLOTS);
        ag_block_unref(blocks[i]);
    }
}

static void times_are_ordered(ag_stream *stream)
{
    op ops[40];
    for (int i = 0; i < 40; ++i) ops[i] = rig_start(stream, rig_slot(AG_KIND_NOP));
    uint64_t last = 0;
    for (int i = 0; i < 40; ++i) {
        rig_wait(ops[i]);
        const ag_slot *slot = rig_slot_of(ops[i]);
        CHECK(slot->submitted > 0 && slot->submitted <= slot->started && slot->started <= slot->done);
        CHECK(slot->done >= last);
        last = slot->done;
        rig_drop(ops[i]);
    }
}

static void run(rng *r, int n_threads)
{
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *stream = rig_stream(pool, 0), *other = rig_stream(pool, 0);
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "test", NULL, "on purpose");
    atomic_store(&error->seen, true);
    pthread_t server;
    CHECK_EQ(pthread_create(&server, NULL, serve_calls, stream), 0);
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < SCALED(40); ++i) {
            submit_batch(r, stream, other, error);
            if (rng_below(r, 3) == 0) rig_send(other, rig_delay(rng_below(r, 100000)));
        }
        rig_drain(stream);
        CHECK(memcmp(memory, model, AREA) == 0);
    }
    times_are_ordered(stream);
    rig_drain(other);
    ag_stream_close(stream);
    pthread_join(server, NULL);
    ag_stream_unref(stream);
    ag_stream_unref(other);
    rig_end(pool);
    ag_error_unref(error);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(0);
    for (int n_threads = 1; n_threads <= 3; ++n_threads) run(&r, n_threads);
    CHECK(atomic_load(&calls_made) > 0);
    return 0;
}
