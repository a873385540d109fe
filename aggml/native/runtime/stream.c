/* Stream: ordered operations of one backend. From top to bottom: slots, life, control; waking and parking; calls of
 * Python; how one operation is carried out; how it ends; which one is next.
 *
 * One thread at a time runs a stream (its state says which). It takes operations in the order of their tickets and
 * publishes each by raising `completed`. An operation that has to wait for something (another stream, a timer, a
 * Python thread, a release) parks the stream: the thread goes on with other work, and the thread that ends the wait
 * makes the stream ready again. While a stream is not idle it holds a reference to itself. Not here: enqueuing
 * (submit.c), the waits for its tickets (wake.c), which work a thread does that is no worker (stream_inline.c), plans
 * over several threads (plan_run.c), streams of devices to which operations are issued ahead (stream_ahead.c). */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "pool_state.h"
#include "rest.h"
#include "stream_inline.h"
#include "stream_state.h"

/* -- blocks and slots ----------------------------------------------------------------------------------------- */

ag_block *ag_block_new(void)
{
    ag_block *block = calloc(1, sizeof *block);
    if (block != NULL) atomic_init(&block->refs, 1);
    return block;
}

void ag_block_unref(ag_block *block)
{
    if (block == NULL || atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < AG_BLOCK_SLOTS; ++i) ag_error_unref(atomic_load(&block->slots[i].error));
    free(block);
}

bool ag_slot_copy(ag_slot *to, const ag_slot *from)
{
    size_t n = (size_t)from->n_reads + from->n_writes + from->n_partial;
    ag_storage **many = NULL;
    if (from->many != NULL) {
        many = malloc(n * sizeof *many);
        if (many == NULL) return false;
        memcpy(many, from->many, n * sizeof *many);
    }
    *to = *from;
    to->many = many;
    ag_storage **list = ag_slot_storages(to);
    for (size_t i = 0; i < n; ++i) ag_storage_ref(list[i]);
    if (to->kind == AG_KIND_PLAN) ag_plan_ref(to->u.plan.plan);
    if (to->kind == AG_KIND_WAIT) ag_stream_ref(to->u.wait.stream);
    if (to->kind == AG_KIND_FAIL) ag_error_ref(to->u.fail.error);
    return true;
}

void ag_slot_drop(ag_slot *slot)
{
    ag_storage **list = ag_slot_storages(slot);
    for (int i = 0; i < slot->n_reads + slot->n_writes + slot->n_partial; ++i) ag_storage_unref(list[i]);
    free(slot->many);
    slot->many = NULL;
    slot->n_reads = slot->n_writes = slot->n_partial = 0;
    if (slot->kind == AG_KIND_EXPERTS) {
        free(slot->u.experts.used);
        slot->u.experts.used = NULL;
    } else if (slot->kind == AG_KIND_PLAN) {
        ag_plan_unref(slot->u.plan.plan);
        slot->u.plan.plan = NULL;
    } else if (slot->kind == AG_KIND_WAIT) {
        ag_stream_unref(slot->u.wait.stream);
        slot->u.wait.stream = NULL;
    } else if (slot->kind == AG_KIND_FAIL) {
        ag_error_unref(slot->u.fail.error);
        slot->u.fail.error = NULL;
    }
}

/* -- rest --------------------------------------------------------------------------------------------------------
 *
 * Whatever the binding kept for the finished operations of a stream that came to rest can be released. A stream that
 * has nothing to do for now adds itself to a list, once, if something is kept for it. The code that releases kept
 * objects (binding/keep.cpp) then looks at these streams only, not at all streams: with 8,000 open ones that took 1.3
 * ms whenever a worker fell asleep. There is no lock: the list is taken as a whole. */

static _Atomic(ag_stream *) resting; /* a list linked by next_resting, with a reference to each stream */

void ag_stream_keeps(ag_stream *s, bool something)
{
    atomic_store(&s->keeps, something);
}

static void note_rest(ag_stream *s)
{
    if (!atomic_load(&s->keeps) || atomic_exchange(&s->in_resting, true)) return;
    ag_stream_ref(s);
    ag_stream *first = atomic_load(&resting);
    do {
        s->next_resting = first;
    } while (!atomic_compare_exchange_weak(&resting, &first, s));
}

bool ag_streams_rest(void)
{
    return atomic_load_explicit(&resting, memory_order_relaxed) != NULL;
}

void ag_streams_at_rest(void (*see)(ag_stream *stream))
{
    for (ag_stream *s = atomic_exchange(&resting, NULL); s != NULL;) {
        ag_stream *next = s->next_resting;
        atomic_store(&s->in_resting, false); /* from here on it may add itself again */
        see(s);
        ag_stream_unref(s);
        s = next;
    }
}

static void forget_resting(void) /* in the child of a fork: they are the parent's */
{
    atomic_store(&resting, NULL);
}

void ag_stream_set_owner(ag_stream *s, void *owner)
{
    s->owner = owner;
}

void *ag_stream_owner(const ag_stream *s)
{
    return s->owner;
}

static bool is_time_over(ag_timer *timer, const void *slot);
static void on_time(ag_timer *timer, uint64_t ticket);
static const ag_timer_calls timer_calls = {.is_over = is_time_over, .on_time = on_time};

/* -- life ----------------------------------------------------------------------------------------------------- */

static ag_stream *make_stream(const char *name, ag_executor *executor)
{
    ag_at_fork(AG_FORK_REST, forget_resting);
    ag_stream *s = aligned_alloc(64, (sizeof *s + 63) & ~(size_t)63);
    if (s == NULL) return NULL;
    memset(s, 0, sizeof *s);
    ag_block *block = ag_block_new();
    if (block == NULL) {
        free(s);
        return NULL;
    }
    atomic_init(&s->refs, 1);
    s->generation = atomic_load(&ag_generation);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->executor = executor;
    s->bank = -1;
    ag_timer_init(&s->timer, &timer_calls);
    pthread_mutex_init(&s->lock, NULL);
    ag_cond_init(&s->call_cond);
    block->base = 1; /* ticket 0 is "nothing yet", always done */
    s->head = s->tail = s->cursor = block;
    atomic_init(&s->wanted, AG_TAIL);
    return s;
}

ag_stream *ag_stream_new(const char *name, ag_pool *pool, int n_threads)
{
    ag_stream *s = make_stream(name, ag_pool_executor(pool));
    if (s == NULL) return NULL;
    s->pool = ag_pool_ref(pool);
    atomic_init(&s->n_threads, n_threads);
    ag_living_add_stream(s);
    return s;
}

ag_stream *ag_stream_new_ahead(const char *name, ag_ahead *ahead)
{
    ag_stream *s = make_stream(name, &ahead->executor);
    if (s == NULL) return NULL;
    s->ahead = ahead;
    ag_living_add_stream(s);
    return s;
}

static void free_stream(ag_stream *s)
{
    ag_living_remove_stream(s);
    if (s->ahead != NULL) s->ahead->gone(s->ahead);
    for (size_t i = 0; i < s->n_failures; ++i) ag_error_unref(s->failures[i]);
    free(s->failures);
    ag_error_unref(atomic_load(&s->lost));
    while (s->spare != NULL) {
        ag_block *next = atomic_load(&s->spare->next);
        ag_block_unref(s->spare);
        s->spare = next;
    }
    ag_block_unref(s->head); /* everything is done, so head is the tail */
    pthread_cond_destroy(&s->call_cond);
    pthread_mutex_destroy(&s->lock);
    ag_pool *pool = s->pool;
    free(s);
    ag_pool_unref(pool);
}

void ag_stream_unref(ag_stream *stream)
{
    if (stream == NULL || atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1) return;
    /* the locks are the parent's: leave everything as it is */
    if (stream->generation != atomic_load(&ag_generation)) return;
    free_stream(stream);
}

ag_stream *ag_stream_ref(ag_stream *stream)
{
    return ag_stream_add_ref(stream);
}

uint64_t ag_stream_submitted(const ag_stream *stream)
{
    return atomic_load(&stream->submitted);
}
uint64_t ag_stream_completed(const ag_stream *stream)
{
    return atomic_load(&stream->completed);
}
int ag_stream_n_threads(const ag_stream *stream)
{
    return atomic_load(&stream->n_threads);
}
void ag_stream_set_n_threads(ag_stream *stream, int n)
{
    atomic_store(&stream->n_threads, n);
}
const char *ag_stream_name(const ag_stream *stream)
{
    return stream->name;
}
ag_error *ag_stream_lost(const ag_stream *stream)
{
    return atomic_load(&stream->lost);
}

bool ag_stream_alive(const ag_stream *stream)
{
    return ag_stream_here(stream);
}

bool ag_stream_closed(const ag_stream *stream)
{
    return atomic_load(&stream->closed);
}

/* -- control -------------------------------------------------------------------------------------------------- */

void ag_stream_close(ag_stream *s)
{
    if (!ag_stream_lock(s)) return;
    atomic_store(&s->closed, true);
    pthread_cond_broadcast(&s->call_cond);
    pthread_mutex_unlock(&s->lock);
}

void ag_stream_hold(ag_stream *s)
{
    if (!ag_stream_lock(s)) return;
    ++s->holds;
    pthread_mutex_unlock(&s->lock);
}

bool ag_stream_release(ag_stream *s)
{
    if (!ag_stream_lock(s)) return false;
    bool held = s->holds > 0;
    if (held) --s->holds;
    bool ready = s->holds == 0 && s->state == HELD;
    if (ready) s->state = READY;
    pthread_mutex_unlock(&s->lock);
    if (ready) s->executor->ready(s->executor, s);
    return held;
}

void ag_stream_lose(ag_stream *s, ag_error *error)
{
    ag_error *none = NULL;
    ag_error *mine = ag_error_ref(error);
    if (!atomic_compare_exchange_strong(&s->lost, &none, mine)) ag_error_unref(mine);
    /* a delay under way fails now; a wait fails when it ends */
    if (ag_stream_here(s)) ag_timer_hurry(&s->timer, 0, AG_TAIL);
}

void ag_stream_abort(ag_stream *s, ag_block *block, uint64_t ticket)
{
    ag_slot *slot = &block->slots[ticket - block->base];
    atomic_store(&slot->abort, true);
    /* The pace of experts is found out while they run, so it must not be read from here. */
    if ((slot->kind == AG_KIND_DELAY || slot->kind == AG_KIND_EXPERTS || slot->pace > 0) && ag_stream_here(s))
        ag_timer_hurry(&s->timer, ticket, ticket);
}

void ag_stream_abort_all(ag_stream *s)
{
    if (!ag_stream_lock(s)) return;
    uint64_t last = s->appended;
    atomic_store(&s->abort_up_to, last);
    pthread_mutex_unlock(&s->lock);
    ag_timer_hurry(&s->timer, 0, last);
}

void ag_streams_end(void)
{
    pthread_mutex_lock(&ag_locks[AG_LOCK_LIVING]);
    for (ag_stream *s = ag_living_streams(); s != NULL; s = s->next_living) {
        ag_stream_close(s);
        ag_stream_abort_all(s);
    }
    pthread_mutex_unlock(&ag_locks[AG_LOCK_LIVING]);
}

bool ag_stream_aborting(const ag_stream *s, const ag_slot *slot)
{
    return ag_is_aborting(s, slot);
}

/* -- parking and waking ------------------------------------------------------------------------------------------ */

/* Called by the thread that ended the wait: hands the stream back to the executor. */
static void unpark(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool ready = s->state == PARKED;
    if (ready) s->state = READY;
    pthread_mutex_unlock(&s->lock);
    if (!ready || (s->ahead == NULL && ag_inline_keep(s))) return;
    s->executor->ready(s->executor, s);
}

/* The same, called by the thread that runs it. */
static void hand_over(ag_stream *s)
{
    ag_stream_set_state(s, READY);
    s->executor->ready(s->executor, s);
}

void ag_stream_set_state(ag_stream *s, stream_state to)
{
    pthread_mutex_lock(&s->lock);
    s->state = to;
    pthread_mutex_unlock(&s->lock);
}

/* Wakes everything that waits for a ticket up to `completed`. */
static void wake(ag_stream *s, uint64_t completed)
{
    for (bool all = false; !all;) {
        ag_notifier *loops[AG_WAIT_LOOPS];
        size_t n = 0;
        ag_wait *streams = NULL;
        pthread_mutex_lock(&s->lock);
        all = ag_wait_take_due(s, completed, loops, &n, &streams);
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < n;
             ++i) { /* without the lock: the loop may take this core immediately, and then want the stream */
            ag_notifier_signal(loops[i]);
            ag_notifier_unref(loops[i]);
        }
        /* the entry belongs to the stream that is woken, so read its link before waking it */
        while (streams != NULL) {
            ag_stream *waiting = streams->parked;
            streams = streams->next;
            unpark(waiting);
        }
    }
}

/* Parks `s` until `ticket` of `target` is done. False: it is done already, and `s` goes on. */
static bool park_for(ag_stream *s, ag_stream *target, uint64_t ticket)
{
    if (ticket <= atomic_load(&target->completed)) return false;
    note_rest(s);
    ag_stream_set_state(s, PARKED);
    s->self = (ag_wait){.parked = s};
    pthread_mutex_lock(&target->lock);
    const bool done = !ag_wait_add(&s->self, target, ticket);
    pthread_mutex_unlock(&target->lock);
    if (!done) return true;
    ag_stream_set_state(s, RUNNING);
    return false;
}

/* -- when to wake --------------------------------------------------------------------------------------------------
 *
 * A loop that waits for a small operation, and sleeps on this very core, takes the core the moment it is woken, for 0.2
 * to 0.5 ms. Operations queued behind it would wait that long; this happened in half of the decoding steps. So the loop
 * is woken only when other threads can go on with them: until then the ticket that it waits for is `due`. That is 0, or
 * a ticket that is done, with a reference to the stream. */

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

static bool wake_later(ag_stream *s, uint64_t ticket, uint64_t *due)
{
    if (!work_follows(s, ticket + 1) || (*due == 0 && !ag_stream_is_awaited_on(s, ticket, ag_cpu_here()))) return false;
    if (*due == 0) ag_stream_ref(s);
    *due = ticket;
    return true;
}

/* Wakes those that wait for the ticket, and drops the reference. */
static void wake_due(ag_stream *s, uint64_t *due)
{
    const uint64_t ticket = *due;
    *due = 0;
    wake(s, ticket);
    ag_stream_unref(s);
}

void ag_wait_cancel(ag_wait *wait)
{
    ag_stream_unref(ag_wait_withdraw(wait));
}

ag_wait *ag_notifier_take(ag_notifier *notifier)
{
    ag_wait *wait = ag_notifier_next_due(notifier);
    if (wait == NULL) return NULL;
    ag_stream *stream = wait->stream;
    wait->stream = NULL;
    ag_stream_unref(stream);
    ag_notifier_unref(notifier); /* the caller has a reference of its own */
    return wait;
}

/* -- calls: operations that are functions in Python ---------------------------------------------------------------
 *
 * The stream asks for a call, and a thread of Python (call_thread.py) takes the call and ends it. */

/* Takes the result of the call that the operation asked for; true only once for each call. */
static bool take_call_result(ag_stream *s, ag_error **error)
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

/* From here on the stream belongs to the thread that serves calls. `step` of the plan, or NO_STEP. */
static void ask_call(ag_stream *s, const ag_slot *slot, uint64_t ticket, size_t step)
{
    note_rest(s);
    pthread_mutex_lock(&s->lock);
    s->state = PARKED;
    s->call = CALL_ASKED;
    s->call_ticket = ticket;
    s->call_step = step;
    s->call_user = step != NO_STEP ? slot->u.plan.user : slot->u.call.user;
    pthread_cond_broadcast(&s->call_cond);
    pthread_mutex_unlock(&s->lock);
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
    bool taken = s->call == CALL_TAKEN, of_plan = taken && s->call_step != NO_STEP;
    *user = taken ? s->call_user : NULL;
    if (of_plan) *step_of_plan = s->call_step;
    pthread_mutex_unlock(&s->lock);
    return of_plan;
}

void ag_stream_finish_call(ag_stream *s, ag_error *error)
{
    if (!ag_stream_lock(s)) {
        ag_error_unref(error);
        return;
    }
    if (s->call != CALL_TAKEN) { /* no call was taken, so none can end */
        pthread_mutex_unlock(&s->lock);
        ag_error_unref(error);
        return;
    }
    s->call = CALL_ENDED;
    s->call_error = error;
    pthread_mutex_unlock(&s->lock);
    unpark(s);
}

/* -- how one operation is carried out: poison that keeps it from starting, simulated time, work, calls ------------- */

ag_error *ag_stream_abort_error(ag_stream *s, const ag_slot *slot)
{
    ag_error *error =
        ag_error_new(AG_ABORTED, s->name, slot->operation, NULL, "stopped on request before it was finished");
    /* the failure counts as seen, because the operation asked for it */
    if (error != NULL) atomic_store(&error->seen, true);
    return error;
}

static ag_error *first_poison(ag_storage **reads, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        ag_error *error = ag_storage_poison(reads[i]);
        if (error != NULL) return error;
    }
    return NULL;
}

ag_error *ag_slot_poison(ag_slot *slot)
{
    ag_error *error = first_poison(ag_slot_storages(slot), slot->n_reads);
    if (error == NULL && slot->kind == AG_KIND_PLAN) {
        error = first_poison(slot->u.plan.plan->reads, slot->u.plan.plan->n_reads);
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
    if (slot->kind != AG_KIND_WAIT && ag_is_aborting(s, slot)) return ag_stream_abort_error(s, slot);
    ag_error *error = ag_slot_poison(slot);
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
static bool sleep_is_over(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (s->timer_fired != ticket) return false;
    ag_error *lost = atomic_load(&s->lost);
    if (lost != NULL) {
        slot->derived = true;
        *error = ag_error_ref(lost);
    } else if (ag_is_aborting(s, slot)) {
        *error = ag_stream_abort_error(s, slot);
    }
    return true;
}

static progress sleep_until(ag_stream *s, ag_slot *slot, uint64_t ticket, uint64_t deadline, ag_error **error)
{
    s->timer_fired = ticket;
    if (deadline <= ag_now()) return DONE;
    s->timer_fired = 0;
    note_rest(s);
    ag_stream_set_state(s, PARKED);
    ag_stream_ref(s); /* until it fires */
    /* From here on another thread may run the stream, unless no timer was set. */
    if (ag_timer_add(&s->timer, ticket, deadline, slot)) return GONE;
    ag_stream_unref(s);
    ag_stream_set_state(s, RUNNING);
    *error = ag_error_new(AG_NO_MEMORY, s->name, slot->operation, NULL, "the system has no room for another timer");
    return DONE;
}

static progress begin_delay(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (sleep_is_over(s, slot, ticket, error)) return DONE;
    return sleep_until(s, slot, ticket, ag_after(slot->started, slot->u.delay.ns), error);
}

/* Lets the rest of an operation's time pass. The time counts from the moment at which all earlier operations would
 * have been over if no thread had to be woken. Otherwise wake-ups of 0.1 ms, late timers and the copying itself
 * would add up, and a simulated device that is kept busy would fall short of its rate. */
static progress keep_pace(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (sleep_is_over(s, slot, ticket, error)) return DONE;
    uint64_t start = s->clock == AG_TAIL ? ag_now() : s->clock;
    if (start < slot->submitted) start = slot->submitted;
    s->clock = ag_after(start, slot->pace);
    return sleep_until(s, slot, ticket, s->clock, error);
}

static ag_stream *sleeper(ag_timer *timer)
{
    return (ag_stream *)((char *)timer - offsetof(ag_stream, timer));
}

/* For the timers, which hold their lock: an abort was set before ag_timer_hurry took it, or this thread sees it. */
static bool is_time_over(ag_timer *timer, const void *slot)
{
    const ag_stream *s = sleeper(timer);
    return ag_is_aborting(s, slot) || atomic_load(&s->lost) != NULL;
}

static void on_time(ag_timer *timer, uint64_t ticket)
{
    ag_stream *s = sleeper(timer);
    ag_inline here;
    ag_inline_begin(&here, &ag_inline_timer, ag_now());
    /* The stream is parked, so no thread runs it, and this one may write the fields that its runner owns. */
    s->timer_fired = ticket;
    unpark(s);
    ag_stream_run_inline(&here);
    ag_stream_unref(s);
}

/* The part of an operation that the host does for any device: fail, let time pass, have Python called, wait. */
static progress step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error)
{
    uint64_t over;
    switch (slot->kind) {
    case AG_KIND_FAIL: *error = ag_error_ref(slot->u.fail.error); return DONE;
    case AG_KIND_DELAY: return begin_delay(s, slot, ticket, error);
    case AG_KIND_CALL:
        if (!first && take_call_result(s, error)) return DONE;
        ask_call(s, slot, ticket, NO_STEP);
        return GONE;
    case AG_KIND_WAIT:
        if (park_for(s, slot->u.wait.stream, slot->u.wait.ticket)) return GONE;
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

/* Runs the plan from `plan_step` on. A step that several threads share wakes a loop that waits for `due` when this
 * thread leaves the stream, before it takes a chunk that others would then wait for. On one thread there is no such
 * step, so the loop is woken first. */
static ag_run_result run_plan(ag_stream *s, ag_slot *slot, ag_worker *worker, uint64_t *due, ag_error **error)
{
    ag_run *run = ag_run_take(s->pool, worker, s);
    if (run != NULL) return ag_run_begin(s->pool, worker, run, s, slot, &s->plan_step, error);
    if (*due != 0) wake_due(s, due);
    return ag_run_alone(s->pool, worker, s, slot, &s->plan_step, error);
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
    if (!first && take_call_result(s, error)) {
        after_call(s, slot, *error);
        if (*error != NULL) return DONE;
    }
    switch (run_plan(s, slot, worker, due, error)) {
    case AG_RUN_FINISHED: return DONE;
    case AG_RUN_ELSEWHERE: return GONE;
    case AG_RUN_CALLS: ask_call(s, slot, ticket, s->plan_step); return GONE;
    case AG_RUN_YIELDED: break;
    }
    hand_over(s);
    return GONE;
}

/* False: the stream is parked or has yielded, or another thread runs it. */
static bool do_step(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_worker *worker, uint64_t *due, ag_error **error)
{
    return step(s, slot, ticket, worker, due, error) == DONE;
}

/* -- how an operation ends: its results are good or poisoned, and a failure is kept until somebody saw it ---------- */

enum { MOST_UNSEEN = 1024 }; /* failures that a stream keeps; of further ones only their number */

static void note_failure(ag_stream *s, ag_error *error)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_failures == MOST_UNSEEN && s->more_failures % 64 != 0) { /* the list was looked through not long ago */
        ++s->more_failures;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    if (s->n_failures == s->cap_failures) {
        size_t kept = 0;
        for (size_t i = 0; i < s->n_failures; ++i) { /* failures that somebody saw in the meantime need not be kept */
            if (atomic_load(&s->failures[i]->seen)) {
                ag_error_unref(s->failures[i]);
            } else {
                s->failures[kept++] = s->failures[i];
            }
        }
        s->n_failures = kept;
        if (2 * kept >= s->cap_failures &&
            /* else half of the room is free again, which makes up for looking through the list */
            kept < MOST_UNSEEN) {
            size_t cap = kept ? 2 * kept : 8;
            ag_error **grown = realloc(s->failures, cap * sizeof *grown);
            if (grown != NULL) {
                s->failures = grown;
                s->cap_failures = cap;
            }
        }
    }
    if (s->n_failures < s->cap_failures) {
        s->failures[s->n_failures++] = ag_error_ref(error);
    } else {
        ++s->more_failures;
    }
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
    if (taken < n && s->more_failures > 0) { /* one error stands for all failures that were not kept */
        char text[96];
        snprintf(text, sizeof text, "%llu more operations failed; the stream has not kept their errors",
                 (unsigned long long)s->more_failures);
        ag_error *more = ag_error_new(AG_DEVICE_ERROR, s->name, "failures", "", text);
        if (more != NULL) {
            atomic_store(&more->seen, true);
            out[taken++] = more;
            s->more_failures = 0;
        }
    }
    s->n_failures -= i;
    for (size_t k = 0; k < s->n_failures; ++k)
        s->failures[k] = s->failures[k + i]; /* not memmove: there may be no array */
    pthread_mutex_unlock(&s->lock);
    return taken;
}

/* Poisons what the operation would have written in full, and also what it began to write and did not finish. */
static void poison_writes(ag_slot *slot, ag_error *error)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes; ++i)
        ag_storage_set_poison(ag_slot_storages(slot)[i], error);
    if (slot->kind != AG_KIND_PLAN) {
        /* A copy or a call began to write a part, and it is unknown how far it got. If it never started, the part is
         * whole. */
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

/* Packed copies of these storages are stale, even if the operation stopped half-way. */
static void note_writes(ag_slot *slot)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes + slot->n_partial; ++i)
        ag_storage_written(ag_slot_storages(slot)[i]);
    if (slot->kind != AG_KIND_PLAN) return;
    const ag_plan *plan = slot->u.plan.plan;
    for (size_t i = 0; i < plan->n_writes; ++i) ag_storage_written(plan->writes[i]);
    for (size_t i = 0; i < plan->n_partial; ++i) ag_storage_written(plan->partial[i]);
}

/* Ends the current operation and takes over the reference to `error`. Returns whether any thread waits for it. */
static bool end_operation(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
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
    /* the stream that an operation waited for: its reference is dropped under the lock, see wait_graph.c */
    ag_stream *other = NULL;
    if (slot->kind == AG_KIND_WAIT) {
        pthread_mutex_lock(&s->lock);
        other = slot->u.wait.stream;
        slot->u.wait.stream = NULL;
        pthread_mutex_unlock(&s->lock);
    }
    ag_slot_drop(slot);
    ag_stream_unref(other);
    atomic_store(&s->completed, ticket);
    if (ticket == atomic_load(&s->submitted)) note_rest(s);
    return ticket >= atomic_load(&s->wanted);
}

void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    if (end_operation(s, slot, ticket, error)) wake(s, ticket);
}

/* -- which operation is next --------------------------------------------------------------------------------------- */

/* The slot of the next ticket, for the thread that runs the stream. The ring's reference moves on with it, under the
 * lock, because other threads may be looking through the ring (wait_graph.c). */
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

/* True: there is nothing to run now, and this thread does not run the stream any more. */
bool ag_stream_rest(ag_stream *s, uint64_t ticket)
{
    bool idle = false, held = false;
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->submitted) < ticket) {
        s->state = IDLE;
        idle = true;
        if (atomic_load(&s->closed)) pthread_cond_broadcast(&s->call_cond); /* no further call will come */
    } else if (s->holds > 0) {
        s->state = HELD;
        s->clock = AG_TAIL; /* time during which the stream was held does not count */
        held = true;
        note_rest(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (idle) ag_stream_unref(s);
    return idle || held;
}

static void run_until_rest(ag_stream *s, ag_worker *worker, uint64_t *due)
{
    for (;;) {
        uint64_t ticket = atomic_load(&s->completed) + 1;
        if (atomic_load(&s->submitted) < ticket && ag_stream_rest(s, ticket)) return;
        if (worker != NULL && ag_pool_stopping(s->pool)) return; /* the process is ending */
        ag_slot *slot = ag_stream_current(s, ticket);
        /* A hold keeps operations from starting. One that is under way (a yielded plan, a delay) goes on. */
        if (slot->started == 0 && ag_stream_rest(s, ticket)) return;
        if (worker == NULL && !ag_inline_takes(slot)) {
            hand_over(s);
            return;
        }
        ag_error *error = NULL;
        if (!do_step(s, slot, ticket, worker, due, &error)) return;
        const bool plan = slot->kind == AG_KIND_PLAN;
        if (!end_operation(s, slot, ticket, error)) continue;
        if (worker != NULL && !plan && wake_later(s, ticket, due)) continue;
        wake(s, ticket);
    }
}

/* `worker` is NULL on a thread that is not a worker. Such a thread runs the cheap operations at the head, for a
 * limited time (stream_inline.h). */
static void run_on(ag_stream *s, ag_worker *worker)
{
    uint64_t due = 0;
    run_until_rest(s, worker, &due);
    if (due != 0) wake_due(s, &due);
}

void ag_stream_run(ag_stream *stream, ag_worker *worker)
{
    /* on a submitting thread: the device's functions may block, so they are called elsewhere */
    if (stream->ahead != NULL) {
        stream->executor->ready(stream->executor, stream);
        return;
    }
    ag_stream_set_state(stream, RUNNING);
    run_on(stream, worker);
}

void ag_stream_run_inline(ag_inline *here)
{
    for (ag_stream *s; (s = ag_inline_next(here)) != NULL;) ag_stream_run(s, NULL);
    ag_inline_end(here);
}

void ag_stream_finish_plan(ag_stream *stream, ag_worker *worker, ag_error *error)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    ag_stream_complete(stream, ag_stream_current(stream, ticket), ticket, error);
    run_on(stream, worker);
}

void ag_stream_yield_plan(ag_stream *stream, size_t step_reached)
{
    stream->plan_step = step_reached;
    hand_over(stream);
}

void ag_stream_call_of_plan(ag_stream *stream, size_t step_reached)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    stream->plan_step = step_reached;
    ask_call(stream, ag_stream_current(stream, ticket), ticket, step_reached);
}
