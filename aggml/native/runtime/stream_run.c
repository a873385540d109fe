/* Running a stream: one operation after the other, by one thread at a time; how each begins, ends and fails.
 *
 * Not here: plans over several threads (plan_run.c), who waits for what (wake.c). */
#include <stdlib.h>
#include <time.h>

#include "stream_state.h"

static void note_failure(ag_stream *s, ag_error *error)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_failures == s->cap_failures) {
        size_t kept = 0;
        for (size_t i = 0; i < s->n_failures; ++i) { /* those that somebody saw meanwhile need not be kept */
            if (atomic_load(&s->failures[i]->seen)) {
                ag_error_unref(s->failures[i]);
            } else {
                s->failures[kept++] = s->failures[i];
            }
        }
        s->n_failures = kept;
        if (2 * kept >= s->cap_failures) { /* else half of the room is free again: looking through it was paid for */
            size_t cap = kept ? 2 * kept : 8;
            ag_error **grown = realloc(s->failures, cap * sizeof *grown);
            if (grown != NULL) {
                s->failures = grown;
                s->cap_failures = cap;
            }
        }
    }
    if (s->n_failures < s->cap_failures) s->failures[s->n_failures++] = ag_error_ref(error);
    pthread_mutex_unlock(&s->lock);
}

size_t ag_stream_take_failures(ag_stream *s, ag_error **out, size_t n)
{
    size_t taken = 0, i = 0;
    if (!ag_stream_lock(s)) return 0;
    for (; i < s->n_failures && taken < n; ++i) {
        if (atomic_exchange(&s->failures[i]->seen, true)) {
            ag_error_unref(s->failures[i]);
        } else {
            out[taken++] = s->failures[i];
        }
    }
    s->n_failures -= i;
    for (size_t k = 0; k < s->n_failures; ++k)
        s->failures[k] = s->failures[k + i]; /* not memmove: there may be no array */
    pthread_mutex_unlock(&s->lock);
    return taken;
}

/* Poison what the operation would have written in full; what it began to write and did not finish as well. */
static void poison_writes(ag_slot *slot, ag_error *error)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes; ++i)
        ag_storage_set_poison(ag_slot_storages(slot)[i], error);
    if (slot->kind != AG_KIND_PLAN) {
        /* A part that a copy or a call began: it cannot be known how far it got. One that never started is whole. */
        int first = slot->n_reads + slot->n_writes;
        for (int i = first; slot->started != 0 && !slot->derived && i < first + slot->n_partial; ++i) {
            ag_storage_set_poison(ag_slot_storages(slot)[i], error);
        }
        return;
    }
    const ag_plan *plan = slot->u.plan.plan;
    for (size_t i = 0; i < plan->n_writes; ++i) ag_storage_set_poison(plan->writes[i], error);
}

static void cure_writes(ag_slot *slot)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes; ++i)
        ag_storage_set_poison(ag_slot_storages(slot)[i], NULL);
    if (slot->kind != AG_KIND_PLAN) return;
    const ag_plan *plan = slot->u.plan.plan;
    for (size_t i = 0; i < plan->n_writes; ++i) ag_storage_set_poison(plan->writes[i], NULL);
}

/* What was packed of these storages is stale, also if the operation stopped half-way. */
static void note_writes(ag_slot *slot)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes + slot->n_partial; ++i)
        ag_storage_written(ag_slot_storages(slot)[i]);
    if (slot->kind != AG_KIND_PLAN) return;
    const ag_plan *plan = slot->u.plan.plan;
    for (size_t i = 0; i < plan->n_writes; ++i) ag_storage_written(plan->writes[i]);
    for (size_t i = 0; i < plan->n_partial; ++i) ag_storage_written(plan->partial[i]);
}

/* End the current operation; takes the reference to `error`. Whether somebody waits for it. */
static bool complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    if (error != NULL) {
        poison_writes(slot, error);
        if (!slot->derived && error->code != AG_ABORTED) note_failure(s, error);
        atomic_store(&slot->error, error);
    } else {
        cure_writes(slot);
    }
    note_writes(slot);
    s->plan_step = 0;
    uint64_t now = ag_now();
    slot->done = now;
    if (slot->started == 0) slot->started = now;
    if (s->ahead == NULL && slot->pace == 0 && slot->kind != AG_KIND_NOP && slot->kind != AG_KIND_WAIT) s->clock = now;
    if (s->ahead == NULL && s->clock != AG_TAIL) atomic_store(&s->over, s->clock);
    ag_stream *other = NULL; /* that an operation waited for: let go of under the lock, see wait_graph.c */
    if (slot->kind == AG_KIND_WAIT) {
        pthread_mutex_lock(&s->lock);
        other = slot->u.wait.stream;
        slot->u.wait.stream = NULL;
        pthread_mutex_unlock(&s->lock);
    }
    ag_slot_drop(slot);
    ag_stream_unref(other);
    atomic_store(&s->completed, ticket);
    return ticket >= atomic_load(&s->wanted);
}

void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    if (complete(s, slot, ticket, error)) ag_stream_wake(s, ticket);
}

/* The slot of the next ticket, by the thread that runs the stream; the ring's reference moves on with it, under the lock:
 * others may be looking through the ring (wait_graph.c). */
ag_slot *ag_stream_current(ag_stream *s, uint64_t ticket)
{
    while (ticket - s->head->base >= AG_BLOCK_SLOTS) {
        ag_block *done = s->head;
        pthread_mutex_lock(&s->lock);
        s->head = atomic_load_explicit(&done->next, memory_order_acquire);
        pthread_mutex_unlock(&s->lock);
        ag_block_unref(done);
    }
    return &s->head->slots[ticket - s->head->base];
}

ag_error *ag_stream_aborted(ag_stream *s, const ag_slot *slot)
{
    ag_error *error =
        ag_error_new(AG_ABORTED, s->name, slot->operation, NULL, "stopped on request before it was finished");
    if (error != NULL) atomic_store(&error->seen, true); /* somebody asked for it */
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

/* What keeps the operation from starting, if anything does. */
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

typedef enum progress { DONE, GONE } progress; /* GONE: the stream is parked, yielded, or another thread has it */

/* Whether the call that this operation asked for has ended; tells once. */
static bool call_ended(ag_stream *s, ag_error **error)
{
    pthread_mutex_lock(&s->lock);
    bool ended = s->call == CALL_ENDED;
    if (ended) {
        *error = s->call_error;
        s->call_error = NULL;
        s->call = CALL_NONE;
    }
    pthread_mutex_unlock(&s->lock);
    return ended;
}

/* Ask the thread that serves calls; it has the stream from here on. `step` of the plan, or NO_STEP. */
static progress ask_call(ag_stream *s, const ag_slot *slot, uint64_t ticket, size_t step)
{
    pthread_mutex_lock(&s->lock);
    s->state = PARKED;
    s->call = CALL_ASKED;
    s->call_ticket = ticket;
    s->call_step = step;
    s->call_user = step != NO_STEP ? slot->u.plan.user : NULL;
    pthread_cond_broadcast(&s->call_cond);
    pthread_mutex_unlock(&s->lock);
    return GONE;
}

/* Back from the call that a step of a plan is: the plan goes on behind it, unless the call failed. */
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
    ag_stream_set_state(s, PARKED);
    /* From here on the stream may run elsewhere, unless no timer was set. */
    if (ag_timer_add(s, slot, ticket, deadline)) return GONE;
    ag_stream_set_state(s, RUNNING);
    *error = ag_error_new(AG_NO_MEMORY, s->name, slot->operation, NULL, "no timer could be set");
    return DONE;
}

static progress begin_delay(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (timer_is_over(s, slot, ticket, error)) return DONE;
    return sleep_until(s, slot, ticket, ag_after(slot->started, slot->u.delay.ns), error);
}

/* Let the rest of an operation's time pass. It counts from when all that it comes after would have been over, had no
 * thread to be woken: 0.1 ms a wake-up, late timers, the copying itself must not add up, or a device that is kept busy
 * would fall short of the rate that it pretends to. */
static progress keep_pace(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (timer_is_over(s, slot, ticket, error)) return DONE;
    uint64_t start = s->clock == AG_TAIL ? ag_now() : s->clock;
    if (start < slot->submitted) start = slot->submitted;
    s->clock = ag_after(start, slot->pace);
    return sleep_until(s, slot, ticket, s->clock, error);
}

/* Give the stream, which this thread runs, back to its executor. */
static void hand_over(ag_stream *s)
{
    ag_stream_set_state(s, READY);
    s->executor->ready(s->executor, s);
}

/* What the host does by itself, whatever device the stream is of: fail, let time pass, have Python called, wait. */
static progress step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error)
{
    uint64_t over;
    switch (slot->kind) {
    case AG_KIND_FAIL: *error = ag_error_ref(slot->u.fail.error); return DONE;
    case AG_KIND_DELAY: return begin_delay(s, slot, ticket, error);
    case AG_KIND_CALL: return !first && call_ended(s, error) ? DONE : ask_call(s, slot, ticket, NO_STEP);
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

static uint64_t copied(const ag_copy *copy)
{
    return copy->item * (uint64_t)(copy->ne[0] * copy->ne[1] * copy->ne[2] * copy->ne[3]);
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
        slot->moved = copied(&slot->u.copy);
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
    if (!first && call_ended(s, error)) {
        after_call(s, slot, *error);
        if (*error != NULL) return DONE;
    }
    switch (ag_pool_run_plan(s->pool, worker, s, slot, &s->plan_step, due, error)) {
    case AG_RUN_FINISHED: return DONE;
    case AG_RUN_ELSEWHERE: return GONE;
    case AG_RUN_CALLS: return ask_call(s, slot, ticket, s->plan_step);
    case AG_RUN_YIELDED: break;
    }
    hand_over(s);
    return GONE;
}

/* True: there is nothing to run now and the stream has been given up. */
bool ag_stream_rest(ag_stream *s, uint64_t ticket)
{
    bool idle = false, held = false;
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->submitted) < ticket) {
        s->state = IDLE;
        idle = true;
        if (atomic_load(&s->closed)) pthread_cond_broadcast(&s->call_cond); /* no call will come any more */
    } else if (s->holds > 0) {
        s->state = HELD;
        s->clock = AG_TAIL; /* the time of a hold is no time */
        held = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (idle) ag_stream_unref(s);
    return idle || held;
}

static bool cheap(ag_slot *slot, const ag_inline *here)
{
    switch (slot->kind) {
    case AG_KIND_COPY: return slot->u.copy.item <= here->bytes && slot->u.copy.ne[0] == 1 && slot->u.copy.ne[1] == 1;
    case AG_KIND_EXPERTS: return false;
    case AG_KIND_FILL: return slot->u.fill.size <= here->bytes;
    case AG_KIND_PLAN: return slot->u.plan.plan->cost <= here->ns && slot->u.plan.plan->scratch_size == 0;
    default: return true;
    }
}

/* Whether a step that threads share comes within some us. A step of one chunk that prepares another one of its node is
 * short, or it would be cut. */
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

/* Whether other threads get work before long: what is queued from `ticket` on is small copies and then a plan that they
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
        if (slot->kind != AG_KIND_COPY || copied(&slot->u.copy) > BYTES) return false;
    }
    return false;
}

static void run_until_rest(ag_stream *s, ag_worker *worker, uint64_t *due)
{
    const ag_inline *here = worker == NULL ? ag_inline_here() : NULL;
    for (;;) {
        uint64_t ticket = atomic_load(&s->completed) + 1;
        if (atomic_load(&s->submitted) < ticket && ag_stream_rest(s, ticket)) return;
        ag_slot *slot = ag_stream_current(s, ticket);
        /* A hold keeps operations from starting; one that is under way (a yielded plan, a delay) goes on. */
        if (slot->started == 0 && ag_stream_rest(s, ticket)) return;
        if (worker == NULL && (here == NULL || !cheap(slot, here) || ag_now() > here->until)) {
            hand_over(s);
            return;
        }
        ag_error *error = NULL;
        if (step(s, slot, ticket, worker, due, &error) == GONE) return;
        const bool plan = slot->kind == AG_KIND_PLAN;
        const bool wanted = complete(s, slot, ticket, error);
        if (!wanted) continue;
        if (worker == NULL || plan || !work_follows(s, ticket + 1) ||
            (*due == 0 && !ag_stream_awaited_here(s, ticket))) {
            ag_stream_wake(s, ticket);
            continue;
        }
        if (*due == 0) ag_stream_ref(s);
        *due = ticket;
    }
}

/* `worker` is NULL on a thread that is none: that one does the cheap operations at the head, for a while (ag_inline).
 *
 * A loop that sleeps on this very core takes it the moment it is woken, for 0.2 to 0.5 ms, and what is queued would wait
 * that long: half of the steps of a generation did. So it is woken once other threads can go on: `due` is the ticket that
 * it waits for, and means a reference to the stream. */
static void run_on(ag_stream *s, ag_worker *worker)
{
    uint64_t due = 0;
    run_until_rest(s, worker, &due);
    if (due != 0) ag_stream_tell(s, &due);
}

void ag_stream_run(ag_stream *stream, ag_worker *worker)
{
    if (stream->ahead != NULL) { /* a submitting thread: what the device does may block, so it is done elsewhere */
        stream->executor->ready(stream->executor, stream);
        return;
    }
    ag_stream_set_state(stream, RUNNING);
    run_on(stream, worker);
}

void ag_stream_plan_finished(ag_stream *stream, ag_worker *worker, ag_error *error)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    ag_stream_complete(stream, ag_stream_current(stream, ticket), ticket, error);
    run_on(stream, worker);
}

void ag_stream_plan_yielded(ag_stream *stream, size_t step_reached)
{
    stream->plan_step = step_reached;
    hand_over(stream);
}

void ag_stream_plan_calls(ag_stream *stream, size_t step_reached)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    stream->plan_step = step_reached;
    ask_call(stream, ag_stream_current(stream, ticket), ticket, step_reached);
}

/* -- what others ended: a timer, a Python thread */

/* The thread of the timers does by itself what is cheap, and so what comes next on other streams: devices that are not
 * there keep their rates on a machine that is busy, where a worker is late by milliseconds. */
#define TIMER_NS 50000
#define TIMER_BYTES 131072
#define TIMER_PLAN_NS 20000

void ag_stream_timer_fired(ag_stream *s, uint64_t ticket)
{
    ag_inline here;
    ag_inline_begin(&here, TIMER_NS, TIMER_BYTES, TIMER_PLAN_NS);
    /* Parked, so nobody runs the stream: this thread may write what its runner owns. */
    s->timer_fired = ticket;
    ag_stream_unpark(s);
    ag_inline_end(&here);
}

bool ag_stream_next_call(ag_stream *s, uint64_t timeout_ns, uint64_t *ticket)
{
    uint64_t deadline = ag_after(ag_now(), timeout_ns);
    if (!ag_stream_lock(s)) return false;
    while (s->call != CALL_ASKED) {
        bool finished = atomic_load(&s->closed) && atomic_load(&s->completed) == s->appended;
        if (finished || ag_cond_wait_until(&s->call_cond, &s->lock, deadline) != 0) {
            pthread_mutex_unlock(&s->lock);
            return false;
        }
    }
    s->call = CALL_TAKEN;
    *ticket = s->call_ticket;
    pthread_mutex_unlock(&s->lock);
    return true;
}

bool ag_stream_call_step(ag_stream *s, size_t *step_of_plan, void **user)
{
    if (!ag_stream_lock(s)) return false;
    bool of_plan = s->call == CALL_TAKEN && s->call_step != NO_STEP;
    if (of_plan) {
        *step_of_plan = s->call_step;
        *user = s->call_user;
    }
    pthread_mutex_unlock(&s->lock);
    return of_plan;
}

void ag_stream_finish_call(ag_stream *s, ag_error *error)
{
    if (!ag_stream_lock(s)) {
        ag_error_unref(error);
        return;
    }
    if (s->call != CALL_TAKEN) { /* nothing was taken, so nothing can end */
        pthread_mutex_unlock(&s->lock);
        ag_error_unref(error);
        return;
    }
    s->call = CALL_ENDED;
    s->call_error = error;
    pthread_mutex_unlock(&s->lock);
    ag_stream_unpark(s);
}
