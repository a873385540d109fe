/* Streams of devices that take operations ahead of their completion: issued by one thread, settled by another.
 *
 * The same ring, tickets and rules as in stream_run.c. The issuing thread hands over what needs no answer from those
 * before it; where it needs one (something failed, a Python function, a delay), it drains the device first, so that
 * poison is tested and set in stream order. What was issued before an operation that it reads failed has run on bytes
 * of no meaning: it fails when it is settled, and what it wrote in part is poisoned as well. Not here: a device. */
#include "stream_state.h"

ag_ahead *ag_stream_ahead(const ag_stream *s)
{
    return s->ahead;
}

bool ag_stream_stands(ag_stream *s)
{
    if (!ag_stream_lock(s)) return true;
    bool stands = s->state == PARKED || s->state == HELD;
    pthread_mutex_unlock(&s->lock);
    return stands;
}

/* The issuing thread's way through the ring. The settling thread drops a block only after a ticket of a later one has
 * been issued, when this cursor has left it. */
static ag_slot *next_slot(ag_stream *s, uint64_t ticket)
{
    while (ticket - s->cursor->base >= AG_BLOCK_SLOTS)
        s->cursor = atomic_load_explicit(&s->cursor->next, memory_order_acquire);
    return &s->cursor->slots[ticket - s->cursor->base];
}

static bool asked_to_abort(ag_stream *s, const ag_slot *slot, uint64_t ticket)
{
    if (slot->kind == AG_KIND_WAIT) return false;
    if (atomic_load_explicit(&slot->abort, memory_order_relaxed)) return true;
    if (slot->kind != AG_KIND_PLAN && slot->kind != AG_KIND_DELAY && slot->kind != AG_KIND_CALL) return false;
    return ticket <= atomic_load_explicit(&s->abort_up_to, memory_order_relaxed);
}

/* What keeps the operation from starting, if anything does. */
static ag_error *refuse(ag_stream *s, ag_slot *slot, uint64_t ticket)
{
    ag_error *error = ag_error_ref(atomic_load(&s->lost));
    if (error == NULL && asked_to_abort(s, slot, ticket)) return ag_stream_aborted(s, slot);
    if (error == NULL && (error = ag_slot_poisoned(slot)) != NULL) {
        ag_error_unref(error); /* unless something under way cures it, or fails with another one */
        s->ahead->drain(s->ahead);
        error = ag_slot_poisoned(slot);
    }
    if (error != NULL) slot->derived = true;
    return error;
}

/* False: parked. Then the same again, when what it waits for has come. */
static bool begin(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    bool first = slot->started == 0;
    if (first) {
        *error = refuse(s, slot, ticket);
        if (*error != NULL) return true;
        if (slot->kind == AG_KIND_CALL || slot->kind == AG_KIND_DELAY) s->ahead->drain(s->ahead);
        slot->started = ag_now();
        if (slot->kind == AG_KIND_WAIT && s->ahead->follow != NULL &&
            s->ahead->follow(s->ahead, slot->u.wait.stream, slot->u.wait.ticket))
            return true;
    }
    return ag_stream_step_of_host(s, slot, ticket, first, error);
}

void ag_stream_run_ahead(ag_stream *s)
{
    ag_stream_set_state(s, RUNNING);
    for (;;) {
        uint64_t ticket = s->issued + 1;
        if (atomic_load(&s->submitted) < ticket && ag_stream_rest(s, ticket)) return;
        ag_slot *slot = next_slot(s, ticket);
        if (slot->started == 0) {
            if (slot->kind == AG_KIND_PLAN) s->ahead->admit(s->ahead); /* before it is asked whether it is aborted */
            if (ag_stream_rest(s, ticket)) return;                     /* held */
        }
        ag_error *error = NULL;
        if (!begin(s, slot, ticket, &error)) return;
        if (error != NULL) s->ahead->drain(s->ahead); /* so that what comes next finds what it poisons */
        s->issued = ticket;
        s->ahead->issue(s->ahead, s, slot, ticket, error);
    }
}

void ag_stream_settle(ag_stream *s, uint64_t ticket, ag_error *error, bool ran)
{
    ag_slot *slot = ag_stream_current(s, ticket);
    if (error == NULL && ran && (error = ag_slot_poisoned(slot)) != NULL) slot->derived = true;
    if (error != NULL && ran) {
        ag_storage **storages = ag_slot_storages(slot);
        for (int i = slot->n_reads + slot->n_writes; i < slot->n_reads + slot->n_writes + slot->n_partial; ++i)
            ag_storage_set_poison(storages[i], error);
        const ag_plan *plan = slot->kind == AG_KIND_PLAN ? slot->u.plan.plan : NULL;
        for (size_t i = 0; plan != NULL && i < plan->n_partial; ++i) ag_storage_set_poison(plan->partial[i], error);
    }
    ag_stream_complete(s, slot, ticket, error);
}
