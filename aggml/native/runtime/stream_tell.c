/* Decides when to wake a loop that waits for a small operation, while a worker goes on with operations queued behind
 * it.
 *
 * A loop that sleeps on this very core takes the core the moment it is woken, for 0.2 to 0.5 ms, and the queued
 * operations would wait that long; this happened in half of the decoding steps. So the loop is woken only when other
 * threads can go on with them: until then the ticket that it waits for is `due`. Not here: the waking itself
 * (wake.c), the point in a plan at which that is so (plan_run.c). */
#include "stream_tell.h"

#include "stream_state.h"

/* Whether a step that threads share comes within some us. A step of one chunk that prepares another step of its node
 * is short, or it would have been cut. */
static bool starts_wide(const ag_plan *plan)
{
    enum { COST = 20000 };
    uint64_t cost = 0;
    for (size_t i = 0; i < plan->n_steps && cost < COST; ++i) {
        const ag_step *step = &plan->steps[i];
        if (step->n_chunks > 1) return true;
        if (i + 1 == plan->n_steps || step->node != step[1].node) cost += ag_node_cost(step->node);
    }
    return false;
}

/* Whether other threads get work before long: from `ticket` on, the queue has small copies and then a plan that they
 * share. */
static bool work_follows(ag_stream *s, uint64_t ticket)
{
    enum { OPERATIONS = 12, BYTES = 16384 };
    const uint64_t last = atomic_load(&s->submitted);
    ag_block *block = s->head;
    for (int i = 0; i < OPERATIONS && ticket <= last; ++i, ++ticket) {
        while (ticket - block->base >= AG_BLOCK_SLOTS) block = atomic_load_explicit(&block->next, memory_order_acquire);
        const ag_slot *slot = &block->slots[ticket - block->base];
        if (slot->pace > 0) return false;
        if (slot->kind == AG_KIND_PLAN) {
            const ag_plan *plan = slot->u.plan.plan;
            return plan->device == NULL && starts_wide(plan);
        }
        if (slot->kind != AG_KIND_COPY || ag_copy_size(&slot->u.copy) > BYTES) return false;
    }
    return false;
}

bool ag_stream_tell_later(ag_stream *s, uint64_t ticket, uint64_t *due)
{
    if (!work_follows(s, ticket + 1) || (*due == 0 && !ag_stream_awaited_on(s, ticket, ag_relay_cpu()))) return false;
    if (*due == 0) ag_stream_ref(s);
    *due = ticket;
    return true;
}

void ag_stream_tell(ag_stream *s, uint64_t *due)
{
    const uint64_t ticket = *due;
    *due = 0;
    ag_stream_wake(s, ticket);
    ag_stream_unref(s);
}
