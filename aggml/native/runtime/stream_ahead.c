/* Streams of devices that take operations before earlier ones are done: one thread issues them, another settles them.
 *
 * The ring, the tickets and the rules are those of stream.c. The issuing thread hands over operations that need
 * no answer from earlier ones. If one needs an answer (something failed, a Python function, a delay), the thread
 * drains the device first, so that poison is tested and set in stream order. An operation may have been issued
 * before another one failed whose result it reads. It has then run on meaningless bytes: it fails when it is
 * settled, and what it wrote in part is poisoned as well. Not here: a device. */
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

/* How the issuing thread moves through the ring. The settling thread drops a block only after a ticket of a later
 * block has been issued; by then this cursor has left it. */
static ag_slot *next_slot(ag_stream *s, uint64_t ticket)
{
    while (ticket - s->cursor->base >= AG_BLOCK_SLOTS)
        s->cursor = atomic_load_explicit(&s->cursor->next, memory_order_acquire);
    return &s->cursor->slots[ticket - s->cursor->base];
}

static bool is_to_abort(ag_stream *s, const ag_slot *slot, uint64_t ticket)
{
    if (slot->kind == AG_KIND_WAIT) return false;
    if (atomic_load_explicit(&slot->abort, memory_order_relaxed)) return true;
    if (slot->kind != AG_KIND_PLAN && slot->kind != AG_KIND_DELAY && slot->kind != AG_KIND_CALL) return false;
    return ticket <= atomic_load_explicit(&s->abort_up_to, memory_order_relaxed);
}

/* The error that keeps the operation from starting, if there is one. */
static ag_error *refuse(ag_stream *s, ag_slot *slot, uint64_t ticket)
{
    ag_error *error = ag_error_ref(atomic_load(&s->lost));
    if (error == NULL && is_to_abort(s, slot, ticket)) return ag_stream_abort_error(s, slot);
    if (error == NULL && (error = ag_slot_poison(slot)) != NULL) {
        /* dropped, since an operation under way may clear the poison, or fail with another error */
        ag_error_unref(error);
        s->ahead->drain(s->ahead);
        error = ag_slot_poison(slot);
    }
    if (error != NULL) slot->derived = true;
    return error;
}

/* False: the stream is parked. Call this again when what it waits for has come. */
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
            /* waits here, before the plan is checked for an abort */
            if (slot->kind == AG_KIND_PLAN) s->ahead->admit(s->ahead);
            if (ag_stream_rest(s, ticket)) return; /* held */
        }
        ag_error *error = NULL;
        if (!begin(s, slot, ticket, &error)) return;
        if (error != NULL) s->ahead->drain(s->ahead); /* so that the next operation finds what this one poisons */
        s->issued = ticket;
        s->ahead->issue(s->ahead, s, slot, ticket, error);
    }
}

void ag_stream_settle(ag_stream *s, uint64_t ticket, ag_error *error, bool ran)
{
    ag_slot *slot = ag_stream_current(s, ticket);
    if (error == NULL && ran && (error = ag_slot_poison(slot)) != NULL) slot->derived = true;
    if (error != NULL && ran) {
        ag_storage **storages = ag_slot_storages(slot);
        for (int i = slot->n_reads + slot->n_writes; i < slot->n_reads + slot->n_writes + slot->n_partial; ++i)
            ag_storage_set_poison(storages[i], error);
        const ag_plan *plan = slot->kind == AG_KIND_PLAN ? slot->u.plan.plan : NULL;
        for (size_t i = 0; plan != NULL && i < plan->n_partial; ++i) ag_storage_set_poison(plan->partial[i], error);
    }
    ag_stream_complete(s, slot, ticket, error);
}
