/* How one operation of a stream is carried out: poison that keeps it from starting, simulated time, work, calls.
 *
 * Not here: which operation is next (stream_run.c), how it ends (stream_end.c), the thread that serves calls
 * (stream_call.c), plans over several threads (plan_run.c). */
#include "stream_inline.h"
#include "stream_state.h"

ag_error *ag_stream_aborted(ag_stream *s, const ag_slot *slot)
{
    ag_error *error =
        ag_error_new(AG_ABORTED, s->name, slot->operation, NULL, "stopped on request before it was finished");
    /* the failure counts as seen, because the operation asked for it */
    if (error != NULL) atomic_store(&error->seen, true);
    return error;
}

static ag_error *poisoned(ag_storage **reads, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        ag_error *error = ag_storage_poison(reads[i]);
        if (error != NULL) return error;
    }
    return NULL;
}

ag_error *ag_slot_poisoned(ag_slot *slot)
{
    ag_error *error = poisoned(ag_slot_storages(slot), slot->n_reads);
    if (error == NULL && slot->kind == AG_KIND_PLAN) {
        error = poisoned(slot->u.plan.plan->reads, slot->u.plan.plan->n_reads);
    }
    return error;
}

/* The error that keeps the operation from starting, if there is one. */
static ag_error *refuse(ag_stream *s, ag_slot *slot)
{
    ag_error *lost = atomic_load(&s->lost);
    if (lost != NULL) {
        slot->derived = true;
        return ag_error_ref(lost);
    }
    if (slot->kind != AG_KIND_WAIT && ag_stream_aborting(s, slot)) return ag_stream_aborted(s, slot);
    ag_error *error = ag_slot_poisoned(slot);
    if (error != NULL) slot->derived = true;
    return error;
}

/* GONE: the stream is parked or has yielded, or another thread runs it */
typedef enum progress { DONE, GONE } progress;

/* A step of a plan that is a call has ended: the plan goes on behind it, unless the call failed. */
static void after_call(ag_stream *s, const ag_slot *slot, ag_error *error)
{
    if (error != NULL) {
        ag_plan_poison_leaf(slot->u.plan.plan, s->plan_step, AGK_UNSUPPORTED, error);
    } else {
        ++s->plan_step;
    }
}

/* Whether the time that the operation waits for is over; sets `error` if it was ended early. */
static bool timer_is_over(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (s->timer_fired != ticket) return false;
    ag_error *lost = atomic_load(&s->lost);
    if (lost != NULL) {
        slot->derived = true;
        *error = ag_error_ref(lost);
    } else if (ag_stream_aborting(s, slot)) {
        *error = ag_stream_aborted(s, slot);
    }
    return true;
}

static progress sleep_until(ag_stream *s, ag_slot *slot, uint64_t ticket, uint64_t deadline, ag_error **error)
{
    s->timer_fired = ticket;
    if (deadline <= ag_now()) return DONE;
    s->timer_fired = 0;
    ag_stream_note_rest(s);
    ag_stream_set_state(s, PARKED);
    /* From here on another thread may run the stream, unless no timer was set. */
    if (ag_timer_add(s, slot, ticket, deadline)) return GONE;
    ag_stream_set_state(s, RUNNING);
    *error = ag_error_new(AG_NO_MEMORY, s->name, slot->operation, NULL, "the system has no room for another timer");
    return DONE;
}

static progress begin_delay(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (timer_is_over(s, slot, ticket, error)) return DONE;
    return sleep_until(s, slot, ticket, ag_after(slot->started, slot->u.delay.ns), error);
}

/* Lets the rest of an operation's time pass. The time counts from the moment at which all earlier operations would
 * have been over if no thread had to be woken. Otherwise wake-ups of 0.1 ms, late timers and the copying itself
 * would add up, and a simulated device that is kept busy would fall short of its rate. */
static progress keep_pace(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (timer_is_over(s, slot, ticket, error)) return DONE;
    uint64_t start = s->clock == AG_TAIL ? ag_now() : s->clock;
    if (start < slot->submitted) start = slot->submitted;
    s->clock = ag_after(start, slot->pace);
    return sleep_until(s, slot, ticket, s->clock, error);
}

void ag_stream_timer_fired(ag_stream *s, uint64_t ticket)
{
    ag_inline here;
    ag_inline_begin(&here, &ag_inline_timer, ag_now());
    /* The stream is parked, so no thread runs it, and this one may write the fields that its runner owns. */
    s->timer_fired = ticket;
    ag_stream_unpark(s);
    ag_inline_end(&here);
}

/* The part of an operation that the host does for any device: fail, let time pass, have Python called, wait. */
static progress step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error)
{
    uint64_t over;
    switch (slot->kind) {
    case AG_KIND_FAIL: *error = ag_error_ref(slot->u.fail.error); return DONE;
    case AG_KIND_DELAY: return begin_delay(s, slot, ticket, error);
    case AG_KIND_CALL:
        if (!first && ag_stream_call_ended(s, error)) return DONE;
        ag_stream_ask_call(s, slot, ticket, NO_STEP);
        return GONE;
    case AG_KIND_WAIT:
        if (ag_stream_park_for(s, slot->u.wait.stream, slot->u.wait.ticket)) return GONE;
        over = atomic_load(&slot->u.wait.stream->over);
        if (s->clock < over) s->clock = over;
        return DONE;
    case AG_KIND_NOP:
    case AG_KIND_COPY:
    case AG_KIND_EXPERTS:
    case AG_KIND_FILL:
    case AG_KIND_PLAN: break;
    }
    return DONE;
}

bool ag_stream_step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error)
{
    return step_of_host(s, slot, ticket, first, error) == DONE;
}

static progress step(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_worker *worker, uint64_t *due, ag_error **error)
{
    bool first = slot->started == 0;
    if (first) {
        *error = refuse(s, slot);
        if (*error != NULL) return DONE;
        slot->started = ag_now();
    }
    if (first && slot->kind == AG_KIND_EXPERTS) {
        *error = ag_experts_look(slot, s->name);
        if (*error != NULL) return DONE;
    }
    if (slot->pace > 0 && s->paced != ticket) {
        if (keep_pace(s, slot, ticket, error) == GONE) return GONE;
        if (*error != NULL) return DONE;
        s->paced = ticket;
    }
    switch (slot->kind) {
    case AG_KIND_NOP: return DONE;
    case AG_KIND_COPY:
        ag_copy_run(&slot->u.copy);
        slot->moved = ag_copy_size(&slot->u.copy);
        return DONE;
    case AG_KIND_EXPERTS: ag_experts_run(slot); return DONE;
    case AG_KIND_FILL:
        slot->moved = slot->u.fill.size;
        if (slot->u.fill.size > 0)
            memset(slot->u.fill.dst, slot->u.fill.value, slot->u.fill.size); /* dst may be NULL */
        return DONE;
    case AG_KIND_FAIL:
    case AG_KIND_DELAY:
    case AG_KIND_CALL:
    case AG_KIND_WAIT: return step_of_host(s, slot, ticket, first, error);
    case AG_KIND_PLAN: break;
    }
    if (slot->u.plan.plan->device != NULL) {
        *error =
            ag_error_new(AG_UNSUPPORTED, s->name, slot->operation, NULL, "the plan was compiled for another device");
        return DONE;
    }
    if (!first && ag_stream_call_ended(s, error)) {
        after_call(s, slot, *error);
        if (*error != NULL) return DONE;
    }
    switch (ag_pool_run_plan(s->pool, worker, s, slot, &s->plan_step, due, error)) {
    case AG_RUN_FINISHED: return DONE;
    case AG_RUN_ELSEWHERE: return GONE;
    case AG_RUN_CALLS: ag_stream_ask_call(s, slot, ticket, s->plan_step); return GONE;
    case AG_RUN_YIELDED: break;
    }
    ag_stream_hand_over(s);
    return GONE;
}

bool ag_stream_step(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_worker *worker, uint64_t *due, ag_error **error)
{
    return step(s, slot, ticket, worker, due, error) == DONE;
}
