/* Makes streams, slots and plans as the binding does; the steps of plans are functions of the tests.
 *
 * An `op` pins its block as a Future does, so that the slot can be read once it is done. */
#ifndef TEST_RIG_H
#define TEST_RIG_H

#include "runtime/runtime.h"
#include "check.h"

#include <poll.h>

static inline ag_pool *rig_pool(int n_threads)
{
    ag_pool_params params = {.n_threads = n_threads, .spin_us = 50};
    ag_pool *pool = ag_pool_new(&params);
    CHECK(pool != NULL);
    return pool;
}

static inline ag_stream *rig_stream(ag_pool *pool, int n_threads)
{
    ag_stream *stream = ag_stream_new("stream", pool, n_threads);
    CHECK(stream != NULL);
    return stream;
}

/* Joins all threads, so that nothing of the runtime runs while the process exits. */
static inline void rig_end(ag_pool *pool)
{
    ag_timer_stop();
    ag_pool_stop(pool);
    ag_pool_unref(pool);
}

static inline void rig_drain(ag_stream *stream)
{
    CHECK_SOON(ag_stream_completed(stream) == ag_stream_submitted(stream));
}

/* -- operations ----------------------------------------------------------------------------------------------- */

typedef struct op {
    ag_stream *stream; /* no reference */
    ag_block *block;
    uint64_t ticket;
} op;

static inline ag_slot rig_slot(ag_kind kind)
{
    ag_slot slot;
    memset(&slot, 0, sizeof slot);
    slot.kind = kind;
    slot.operation = "test";
    return slot;
}

static inline ag_slot rig_fill(void *dst, int value, size_t size)
{
    ag_slot slot = rig_slot(AG_KIND_FILL);
    slot.u.fill.dst = dst;
    slot.u.fill.value = value;
    slot.u.fill.size = size;
    return slot;
}

static inline ag_slot rig_copy(void *dst, const void *src, size_t size)
{
    ag_slot slot = rig_slot(AG_KIND_COPY);
    slot.u.copy = (ag_copy){.dst = dst, .src = src, .ne = {1, 1, 1, 1}, .item = size};
    return slot;
}

static inline ag_slot rig_delay(uint64_t ns)
{
    ag_slot slot = rig_slot(AG_KIND_DELAY);
    slot.u.delay.ns = ns;
    return slot;
}

static inline ag_slot rig_wait_slot(ag_stream *stream, uint64_t ticket)
{
    ag_slot slot = rig_slot(AG_KIND_WAIT);
    slot.u.wait.stream = ag_stream_ref(stream);
    slot.u.wait.ticket = ticket;
    return slot;
}

static inline ag_slot rig_fail(ag_error *error)
{
    ag_slot slot = rig_slot(AG_KIND_FAIL);
    slot.u.fail.error = ag_error_ref(error);
    return slot;
}

/* The steps get the arena as their task's: tests pass a record of the run through it. */
static inline ag_slot rig_plan_slot(ag_plan *plan, void *arena)
{
    ag_slot slot = rig_slot(AG_KIND_PLAN);
    slot.u.plan.plan = ag_plan_ref(plan);
    slot.u.plan.arena = (uintptr_t)arena;
    return slot;
}

/* To be called in this order: reads, writes in full, writes in part; three in all at most. */
static inline void rig_reads(ag_slot *slot, ag_storage *storage)
{
    slot->inline_storages[slot->n_reads++] = ag_storage_ref(storage);
}

static inline void rig_writes(ag_slot *slot, ag_storage *storage)
{
    slot->inline_storages[slot->n_reads + slot->n_writes++] = ag_storage_ref(storage);
}

static inline void rig_partial(ag_slot *slot, ag_storage *storage)
{
    slot->inline_storages[slot->n_reads + slot->n_writes + slot->n_partial++] = ag_storage_ref(storage);
}

static inline op rig_start(ag_stream *stream, ag_slot slot)
{
    op o = {.stream = stream};
    ag_batch batch = {.stream = stream, .slots = &slot, .n = 1, .blocks = &o.block, .tickets = &o.ticket};
    CHECK_EQ(ag_submit(&batch, 1), AG_SUBMIT_OK);
    return o;
}

static inline bool rig_done(op o)
{
    return o.ticket <= ag_stream_completed(o.stream);
}

static inline void rig_wait(op o)
{
    CHECK_SOON(rig_done(o));
}

static inline ag_slot *rig_slot_of(op o)
{
    return &o.block->slots[o.ticket - o.block->base];
}

static inline ag_error *rig_error(op o) /* without a reference: the slot holds it */
{
    rig_wait(o);
    return atomic_load(&rig_slot_of(o)->error);
}

static inline void rig_abort(op o)
{
    ag_stream_abort(o.stream, o.block, o.ticket);
}

static inline void rig_drop(op o)
{
    ag_block_unref(o.block);
}

/* Waits as an event loop does: arm, sleep, drain, take. Also takes the other waits that are due for the notifier.
 * Returns how often it slept. */
static inline int rig_sleep(op o, ag_notifier *notifier)
{
    ag_wait wait = {0};
    int slept = 0;
    if (!ag_wait_arm(&wait, o.stream, notifier, o.ticket)) return 0;
    while (wait.stream != NULL) {
        struct pollfd fd = {.fd = ag_notifier_fd(notifier), .events = POLLIN};
        CHECK(poll(&fd, 1, PATIENCE_S * 1000) == 1); /* fails here if a wake-up was lost */
        ag_notifier_drain(notifier);
        while (ag_notifier_take(notifier) != NULL) continue;
        ++slept;
    }
    CHECK(rig_done(o));
    return slept;
}

/* Waits, releases the operation, returns the code of its failure, or 0. */
static inline int rig_result(op o)
{
    ag_error *error = rig_error(o);
    int code = error != NULL ? (int)error->code : 0;
    rig_drop(o);
    return code;
}

/* Starts an operation without keeping a reference: only the ring of the stream holds its slot. */
static inline void rig_send(ag_stream *stream, ag_slot slot)
{
    rig_drop(rig_start(stream, slot));
}

/* -- plans ---------------------------------------------------------------------------------------------------- */

/* A plan that goes to the pool: a submitting thread itself runs plans whose estimated cost is 2 us or less. */
static inline ag_plan *rig_plan(void)
{
    ag_plan *plan = ag_plan_new(0, 0);
    CHECK(plan != NULL);
    plan->cost = 1000000;
    return plan;
}

static inline void rig_add_step(ag_plan *plan, agk_step_fn *run, uint32_t n_chunks, int writes_leaf)
{
    plan->steps = realloc(plan->steps, (plan->n_steps + 1) * sizeof *plan->steps);
    CHECK(plan->steps != NULL);
    plan->steps[plan->n_steps++] =
        (ag_step){.run = run, .node = plan->nodes[plan->n_nodes - 1], .n_chunks = n_chunks, .writes_leaf = writes_leaf};
}

/* Adds a node of one step. aux.p[0] and aux.i[1] are free for the test. */
static inline agk_node *rig_add(ag_plan *plan, agk_step_fn *run, uint32_t n_chunks, int writes_leaf,
                                const void *context, int64_t number)
{
    plan->nodes = realloc(plan->nodes, (plan->n_nodes + 1) * sizeof *plan->nodes);
    plan->names = realloc(plan->names, (plan->n_nodes + 1) * sizeof *plan->names);
    agk_node *node = calloc(1, sizeof *node);
    CHECK(plan->nodes != NULL && plan->names != NULL && node != NULL);
    node->op = AGK_OP_cpy;
    node->aux.p[0] = context;
    node->aux.i[1] = number;
    node->number = (int32_t)plan->n_nodes;
    snprintf(plan->names[plan->n_nodes], AG_NAME, "node-%zu", plan->n_nodes);
    plan->nodes[plan->n_nodes++] = node;
    rig_add_step(plan, run, n_chunks, writes_leaf);
    return node;
}

#endif
