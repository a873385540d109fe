/* Stream: ordered operations of one backend. Enqueuing, running, completing, parking, failing.
 *
 * One thread at a time runs a stream (its state says so); it takes operations in the order of their tickets and
 * publishes each by raising `completed`. An operation that has to wait for something (another stream, a timer, a
 * Python thread, a release) parks the stream: the thread goes on with other work, whoever ends the wait makes the
 * stream ready again. While a stream is not idle it holds a reference to itself. Not here: plans over several
 * threads (threadpool.c). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "internal.h"

typedef enum state { IDLE, READY, RUNNING, PARKED, HELD } state;

typedef struct parked {
    struct parked *next;
    ag_stream *stream; /* waits for `ticket` of the stream in whose list this is */
    uint64_t ticket;
} parked;

typedef struct watch {
    struct watch *next;
    ag_notifier *notifier;
    uint64_t ticket;
} watch;

struct ag_stream {
    atomic_int refs;
    unsigned generation;
    char name[AG_NAME];
    ag_pool *pool;
    ag_executor *executor;
    atomic_int n_threads;

    pthread_mutex_t lock;
    state state;
    int holds;
    bool closed;
    uint64_t appended; /* under the lock; becomes `submitted` when a submission is complete */
    ag_block *tail;
    ag_block *spare; /* blocks made before a submission begins, so that it cannot fail halfway */
    parked *parked;
    watch *watches;
    ag_error **failures;
    size_t n_failures, cap_failures;
    _Atomic(ag_error *) lost;

    _Alignas(64) atomic_uint_fast64_t submitted;
    _Alignas(64) atomic_uint_fast64_t completed;
    atomic_uint_fast64_t wanted; /* the least ticket that anybody waits for */
    atomic_uint_fast64_t abort_up_to;

    /* owned by whoever runs the stream */
    ag_block *head;
    size_t plan_step;
    uint64_t timer_fired;
    parked self; /* this stream's entry in another one's list */

    pthread_cond_t call_cond;
    uint64_t call_ticket, call_taken, call_done;
    ag_error *call_error;

    ag_stream *next_ready; /* for the executor */
};

ag_stream **ag_stream_link(ag_stream *stream)
{
    return &stream->next_ready;
}

/* -- blocks and slots ----------------------------------------------------------------------------------------- */

static ag_block *block_new(void)
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

static ag_storage **storages(ag_slot *slot)
{
    return slot->many != NULL ? slot->many : slot->few;
}

void ag_slot_drop(ag_slot *slot)
{
    ag_storage **list = storages(slot);
    for (int i = 0; i < slot->n_reads + slot->n_writes + slot->n_partial; ++i) ag_storage_unref(list[i]);
    free(slot->many);
    slot->many = NULL;
    slot->n_reads = slot->n_writes = slot->n_partial = 0;
    if (slot->kind == AG_KIND_PLAN) {
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

/* The slot of the next ticket, by the thread that runs the stream; the ring's reference moves on with it. */
static ag_slot *current(ag_stream *s, uint64_t ticket)
{
    while (ticket - s->head->base >= AG_BLOCK_SLOTS) {
        ag_block *done = s->head;
        s->head = atomic_load_explicit(&done->next, memory_order_acquire);
        ag_block_unref(done);
    }
    return &s->head->slots[ticket - s->head->base];
}

/* -- life ----------------------------------------------------------------------------------------------------- */

ag_stream *ag_stream_new(const char *name, ag_pool *pool, int n_threads)
{
    ag_runtime_init();
    ag_stream *s = aligned_alloc(64, (sizeof *s + 63) & ~(size_t)63);
    if (s == NULL) return NULL;
    memset(s, 0, sizeof *s);
    ag_block *block = block_new();
    if (block == NULL) {
        free(s);
        return NULL;
    }
    atomic_init(&s->refs, 1);
    s->generation = atomic_load(&ag_generation);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->pool = ag_pool_ref(pool);
    s->executor = ag_pool_executor(pool);
    atomic_init(&s->n_threads, n_threads);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&s->call_cond, &attributes);
    pthread_condattr_destroy(&attributes);
    block->base = 1; /* ticket 0 is "nothing yet", always done */
    s->head = s->tail = block;
    atomic_init(&s->wanted, AG_TAIL);
    return s;
}

ag_stream *ag_stream_ref(ag_stream *stream)
{
    atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    return stream;
}

static void stream_free(ag_stream *s)
{
    for (watch *w = s->watches; w != NULL;) {
        watch *next = w->next;
        ag_notifier_unref(w->notifier);
        free(w);
        w = next;
    }
    for (size_t i = 0; i < s->n_failures; ++i) ag_error_unref(s->failures[i]);
    free(s->failures);
    ag_error_unref(atomic_load(&s->lost));
    while (s->spare != NULL) {
        ag_block *next = atomic_load(&s->spare->next);
        ag_block_unref(s->spare);
        s->spare = next;
    }
    ag_block_unref(s->head); /* all is done, so head is the tail */
    pthread_cond_destroy(&s->call_cond);
    pthread_mutex_destroy(&s->lock);
    ag_pool *pool = s->pool;
    free(s);
    ag_pool_unref(pool);
}

void ag_stream_unref(ag_stream *stream)
{
    if (stream == NULL || atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1) return;
    if (stream->generation != atomic_load(&ag_generation)) return; /* the parent's locks: leave all as it is */
    stream_free(stream);
}

uint64_t ag_stream_submitted(const ag_stream *stream) { return atomic_load(&stream->submitted); }
uint64_t ag_stream_completed(const ag_stream *stream) { return atomic_load(&stream->completed); }
int ag_stream_n_threads(const ag_stream *stream) { return atomic_load(&stream->n_threads); }
void ag_stream_set_n_threads(ag_stream *stream, int n) { atomic_store(&stream->n_threads, n); }
const char *ag_stream_name(const ag_stream *stream) { return stream->name; }
ag_error *ag_stream_lost(const ag_stream *stream) { return atomic_load(&stream->lost); }

bool ag_stream_alive(const ag_stream *stream)
{
    return stream->generation == atomic_load(&ag_generation);
}

bool ag_stream_closed(const ag_stream *stream)
{
    ag_stream *s = (ag_stream *)stream; /* only the lock is touched */
    pthread_mutex_lock(&s->lock);
    bool closed = s->closed;
    pthread_mutex_unlock(&s->lock);
    return closed;
}

/* -- enqueuing ------------------------------------------------------------------------------------------------ */

/* Append one slot; the lock is held and enough spare blocks are there. */
static uint64_t append(ag_stream *s, const ag_slot *slot, uint64_t now, ag_block **block)
{
    uint64_t ticket = ++s->appended;
    if (ticket - s->tail->base == AG_BLOCK_SLOTS) {
        ag_block *next = s->spare;
        s->spare = atomic_load(&next->next);
        atomic_store(&next->next, NULL);
        next->base = ticket;
        atomic_store_explicit(&s->tail->next, next, memory_order_release);
        s->tail = next;
    }
    ag_slot *target = &s->tail->slots[ticket - s->tail->base];
    *target = *slot;
    target->submitted = now;
    atomic_fetch_add_explicit(&s->tail->refs, 1, memory_order_relaxed); /* for the handle */
    *block = s->tail;
    return ticket;
}

static bool make_spare(ag_stream *s, size_t slots)
{
    size_t used = s->appended + 1 - s->tail->base, have = AG_BLOCK_SLOTS - used;
    for (ag_block *b = s->spare; b != NULL; b = atomic_load(&b->next)) have += AG_BLOCK_SLOTS;
    while (have < slots) {
        ag_block *block = block_new();
        if (block == NULL) return false;
        atomic_store(&block->next, s->spare);
        s->spare = block;
        have += AG_BLOCK_SLOTS;
    }
    return true;
}

/* The streams concerned, each once, ordered by address: the order in which their locks are taken. */
static size_t involved(const ag_batch *batches, size_t n, ag_stream **out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k <= batches[i].n; ++k) {
            ag_stream *s = batches[i].stream;
            if (k < batches[i].n) {
                const ag_slot *slot = &batches[i].slots[k];
                if (slot->kind != AG_KIND_WAIT || slot->u.wait.ticket != AG_TAIL) continue;
                s = slot->u.wait.stream;
            }
            size_t at = 0;
            while (at < count && out[at] < s) ++at;
            if (at < count && out[at] == s) continue;
            for (size_t m = count; m > at; --m) out[m] = out[m - 1];
            out[at] = s;
            ++count;
        }
    }
    return count;
}

static ag_submit_status check(ag_stream **streams, size_t count, const ag_batch *batches, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (batches[i].stream->closed) return AG_SUBMIT_CLOSED;
        if (atomic_load(&batches[i].stream->lost) != NULL) return AG_SUBMIT_LOST;
    }
    for (size_t j = 0; j < count; ++j) {
        size_t slots = 0;
        for (size_t i = 0; i < n; ++i) {
            if (batches[i].stream == streams[j]) slots += batches[i].n;
        }
        if (!make_spare(streams[j], slots)) return AG_SUBMIT_NO_MEMORY;
    }
    return AG_SUBMIT_OK;
}

static void append_all(ag_batch *batches, size_t n)
{
    uint64_t now = ag_now();
    for (size_t i = 0; i < n; ++i) {
        ag_stream *s = batches[i].stream;
        for (size_t k = 0; k < batches[i].n; ++k) {
            ag_slot *slot = &batches[i].slots[k];
            if (slot->kind == AG_KIND_WAIT && slot->u.wait.ticket == AG_TAIL) {
                slot->u.wait.ticket = slot->u.wait.stream == s ? 0 : slot->u.wait.stream->appended;
            }
            batches[i].tickets[k] = append(s, slot, now, &batches[i].blocks[k]);
        }
    }
}

ag_submit_status ag_submit(ag_batch *batches, size_t n)
{
    ag_stream *small[16], **streams = small;
    size_t bound = 0;
    for (size_t i = 0; i < n; ++i) bound += 1 + batches[i].n;
    if (bound > 16 && (streams = malloc(bound * sizeof *streams)) == NULL) return AG_SUBMIT_NO_MEMORY;
    size_t count = involved(batches, n, streams);
    ag_submit_status status = AG_SUBMIT_OK;
    for (size_t j = 0; j < count; ++j) {
        if (!ag_stream_alive(streams[j])) status = AG_SUBMIT_FORKED;
    }
    if (status == AG_SUBMIT_OK) {
        for (size_t j = 0; j < count; ++j) pthread_mutex_lock(&streams[j]->lock);
        status = check(streams, count, batches, n);
        if (status == AG_SUBMIT_OK) append_all(batches, n);
        for (size_t j = 0; j < count; ++j) {
            ag_stream *s = streams[j];
            bool ready = false;
            if (status == AG_SUBMIT_OK && atomic_load_explicit(&s->submitted, memory_order_relaxed) != s->appended) {
                atomic_store(&s->submitted, s->appended);
                ready = s->state == IDLE;
                if (ready) {
                    s->state = READY;
                    ag_stream_ref(s);
                }
            }
            pthread_mutex_unlock(&s->lock);
            if (!ready) streams[j] = NULL;
        }
        for (size_t j = 0; j < count; ++j) {
            if (streams[j] != NULL) ag_stream_run(streams[j], NULL);
        }
    }
    if (streams != small) free(streams);
    return status;
}

/* -- waking and parking --------------------------------------------------------------------------------------- */

static void unpark(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool ready = s->state == PARKED;
    if (ready) s->state = READY;
    pthread_mutex_unlock(&s->lock);
    if (ready) s->executor->ready(s->executor, s);
}

static void park(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->state = PARKED;
    pthread_mutex_unlock(&s->lock);
}

static void set_running(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->state = RUNNING;
    pthread_mutex_unlock(&s->lock);
}

static void refresh_wanted(ag_stream *s)
{
    uint64_t least = AG_TAIL;
    for (watch *w = s->watches; w != NULL; w = w->next) least = w->ticket < least ? w->ticket : least;
    for (parked *p = s->parked; p != NULL; p = p->next) least = p->ticket < least ? p->ticket : least;
    atomic_store(&s->wanted, least);
}

/* Wake all that waits for a ticket up to `completed`. */
static void wake(ag_stream *s, uint64_t completed)
{
    pthread_mutex_lock(&s->lock);
    parked *due = NULL;
    for (parked **p = &s->parked; *p != NULL;) {
        if ((*p)->ticket <= completed) {
            parked *entry = *p;
            *p = entry->next;
            entry->next = due;
            due = entry;
        } else {
            p = &(*p)->next;
        }
    }
    for (watch **w = &s->watches; *w != NULL;) {
        if ((*w)->ticket <= completed) {
            watch *entry = *w;
            *w = entry->next;
            ag_notifier_signal(entry->notifier);
            ag_notifier_unref(entry->notifier);
            free(entry);
        } else {
            w = &(*w)->next;
        }
    }
    refresh_wanted(s);
    pthread_mutex_unlock(&s->lock);
    while (due != NULL) { /* the entry belongs to the stream that wakes: read on before waking it */
        ag_stream *waiting = due->stream;
        due = due->next;
        unpark(waiting);
    }
}

/* Park `s` until `ticket` of `target` is done. False: it is done already and `s` runs on. */
static bool park_for(ag_stream *s, ag_stream *target, uint64_t ticket)
{
    if (ticket <= atomic_load(&target->completed)) return false;
    park(s);
    pthread_mutex_lock(&target->lock);
    s->self = (parked){.next = target->parked, .stream = s, .ticket = ticket};
    target->parked = &s->self;
    refresh_wanted(target);
    /* The completer publishes, then looks at `wanted`; we set `wanted`, then look: one of us sees the other. */
    bool done = ticket <= atomic_load(&target->completed);
    if (done) {
        for (parked **p = &target->parked; *p != NULL; p = &(*p)->next) {
            if (*p == &s->self) {
                *p = s->self.next;
                break;
            }
        }
        refresh_wanted(target);
    }
    pthread_mutex_unlock(&target->lock);
    if (!done) return true;
    set_running(s);
    return false;
}

bool ag_stream_watch(ag_stream *s, ag_notifier *notifier, uint64_t ticket)
{
    if (ticket <= atomic_load(&s->completed)) return true;
    pthread_mutex_lock(&s->lock);
    watch *w = s->watches;
    while (w != NULL && w->notifier != notifier) w = w->next;
    if (w == NULL) {
        w = malloc(sizeof *w);
        if (w == NULL) {
            pthread_mutex_unlock(&s->lock);
            return true; /* the caller looks again instead of sleeping for ever */
        }
        *w = (watch){.next = s->watches, .notifier = ag_notifier_ref(notifier), .ticket = ticket};
        s->watches = w;
    } else if (ticket < w->ticket) {
        w->ticket = ticket;
    }
    refresh_wanted(s);
    bool done = ticket <= atomic_load(&s->completed);
    pthread_mutex_unlock(&s->lock);
    if (done) wake(s, atomic_load(&s->completed)); /* the completer may have missed us: fire ourselves */
    return done;
}

void ag_stream_unwatch(ag_stream *s, ag_notifier *notifier)
{
    pthread_mutex_lock(&s->lock);
    for (watch **w = &s->watches; *w != NULL; w = &(*w)->next) {
        if ((*w)->notifier == notifier) {
            watch *entry = *w;
            *w = entry->next;
            ag_notifier_unref(entry->notifier);
            free(entry);
            break;
        }
    }
    refresh_wanted(s);
    pthread_mutex_unlock(&s->lock);
}

/* -- completing ----------------------------------------------------------------------------------------------- */

static void note_failure(ag_stream *s, ag_error *error)
{
    pthread_mutex_lock(&s->lock);
    size_t kept = 0;
    for (size_t i = 0; i < s->n_failures; ++i) { /* those that somebody saw meanwhile need not be kept */
        if (atomic_load(&s->failures[i]->seen)) {
            ag_error_unref(s->failures[i]);
        } else {
            s->failures[kept++] = s->failures[i];
        }
    }
    s->n_failures = kept;
    if (kept == s->cap_failures) {
        size_t cap = kept ? 2 * kept : 8;
        ag_error **grown = realloc(s->failures, cap * sizeof *grown);
        if (grown != NULL) {
            s->failures = grown;
            s->cap_failures = cap;
        }
    }
    if (kept < s->cap_failures) s->failures[s->n_failures++] = ag_error_ref(error);
    pthread_mutex_unlock(&s->lock);
}

size_t ag_stream_take_failures(ag_stream *s, ag_error **out, size_t n)
{
    size_t taken = 0, i = 0;
    pthread_mutex_lock(&s->lock);
    for (; i < s->n_failures && taken < n; ++i) {
        if (atomic_exchange(&s->failures[i]->seen, true)) {
            ag_error_unref(s->failures[i]);
        } else {
            out[taken++] = s->failures[i];
        }
    }
    memmove(s->failures, s->failures + i, (s->n_failures - i) * sizeof *s->failures);
    s->n_failures -= i;
    pthread_mutex_unlock(&s->lock);
    return taken;
}

/* Poison what the operation would have written in full; what it began to write and did not finish as well. */
static void poison_writes(ag_slot *slot, ag_error *error)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes; ++i) ag_storage_set_poison(storages(slot)[i], error);
    if (slot->kind != AG_KIND_PLAN) {
        /* A part that a copy or a call began: it cannot be known how far it got. One that never started is whole. */
        int first = slot->n_reads + slot->n_writes;
        for (int i = first; slot->started != 0 && !slot->derived && i < first + slot->n_partial; ++i) {
            ag_storage_set_poison(storages(slot)[i], error);
        }
        return;
    }
    const ag_plan *plan = slot->u.plan.plan;
    for (size_t i = 0; i < plan->n_writes; ++i) ag_storage_set_poison(plan->writes[i], error);
}

static void cure_writes(ag_slot *slot)
{
    for (int i = slot->n_reads; i < slot->n_reads + slot->n_writes; ++i) ag_storage_set_poison(storages(slot)[i], NULL);
    if (slot->kind != AG_KIND_PLAN) return;
    const ag_plan *plan = slot->u.plan.plan;
    for (size_t i = 0; i < plan->n_writes; ++i) ag_storage_set_poison(plan->writes[i], NULL);
}

/* End the current operation; takes the reference to `error`. */
static void complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    if (error != NULL) {
        poison_writes(slot, error);
        if (!slot->derived && error->code != AG_ABORTED) note_failure(s, error);
        atomic_store(&slot->error, error);
    } else {
        cure_writes(slot);
    }
    s->plan_step = 0;
    slot->done = ag_now();
    if (slot->started == 0) slot->started = slot->done;
    ag_slot_drop(slot);
    atomic_store(&s->completed, ticket);
    if (ticket >= atomic_load(&s->wanted)) wake(s, ticket);
}

/* -- running -------------------------------------------------------------------------------------------------- */

static ag_error *aborted(ag_stream *s, const ag_slot *slot)
{
    ag_error *error = ag_error_new(AG_ABORTED, s->name, slot->operation, NULL, "stopped on request before it was finished");
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

/* What keeps the operation from starting, if anything does. */
static ag_error *refuse(ag_stream *s, ag_slot *slot)
{
    ag_error *lost = atomic_load(&s->lost);
    if (lost != NULL) {
        slot->derived = true;
        return ag_error_ref(lost);
    }
    if (slot->kind != AG_KIND_WAIT && ag_stream_aborting(s, slot)) return aborted(s, slot);
    ag_error *error = poisoned(storages(slot), slot->n_reads);
    if (error == NULL && slot->kind == AG_KIND_PLAN) {
        error = poisoned(slot->u.plan.plan->reads, slot->u.plan.plan->n_reads);
    }
    if (error != NULL) slot->derived = true;
    return error;
}

typedef enum progress { DONE, GONE } progress; /* GONE: the stream is parked, yielded, or another thread has it */

static progress begin_call(ag_stream *s, uint64_t ticket, ag_error **error)
{
    pthread_mutex_lock(&s->lock);
    if (s->call_done == ticket) {
        *error = s->call_error;
        s->call_error = NULL;
        pthread_mutex_unlock(&s->lock);
        return DONE;
    }
    s->state = PARKED;
    s->call_ticket = ticket;
    pthread_cond_broadcast(&s->call_cond);
    pthread_mutex_unlock(&s->lock);
    return GONE;
}

static progress begin_delay(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error **error)
{
    if (s->timer_fired == ticket) {
        if (ag_stream_aborting(s, slot)) *error = aborted(s, slot);
        return DONE;
    }
    uint64_t deadline = slot->started + slot->u.delay.ns;
    if (deadline <= ag_now()) return DONE;
    park(s);
    /* From here on the stream may run elsewhere, unless no timer was set. */
    if (ag_timer_add(s, ticket, deadline, &slot->abort)) return GONE;
    set_running(s);
    *error = ag_error_new(AG_NO_MEMORY, s->name, slot->operation, NULL, "no timer could be set");
    return DONE;
}

/* Give the stream, which this thread runs, back to its executor. */
static void hand_over(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->state = READY;
    pthread_mutex_unlock(&s->lock);
    s->executor->ready(s->executor, s);
}

static progress step(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_worker *worker, ag_error **error)
{
    bool first = slot->started == 0;
    if (first) {
        *error = refuse(s, slot);
        if (*error != NULL) return DONE;
        slot->started = ag_now();
    }
    switch (slot->kind) {
    case AG_KIND_NOP: return DONE;
    case AG_KIND_COPY: ag_copy_run(&slot->u.copy); return DONE;
    case AG_KIND_FILL: memset(slot->u.fill.dst, slot->u.fill.value, slot->u.fill.size); return DONE;
    case AG_KIND_FAIL: *error = ag_error_ref(slot->u.fail.error); return DONE;
    case AG_KIND_DELAY: return begin_delay(s, slot, ticket, error);
    case AG_KIND_CALL: return begin_call(s, ticket, error);
    case AG_KIND_WAIT: return park_for(s, slot->u.wait.stream, slot->u.wait.ticket) ? GONE : DONE;
    case AG_KIND_PLAN: break;
    }
    switch (ag_pool_run_plan(s->pool, worker, s, slot, &s->plan_step, error)) {
    case AG_RUN_FINISHED: return DONE;
    case AG_RUN_ELSEWHERE: return GONE;
    case AG_RUN_YIELDED: break;
    }
    hand_over(s);
    return GONE;
}

/* True: there is nothing to run now and the stream has been given up. */
static bool rest(ag_stream *s, uint64_t ticket)
{
    bool idle = false, held = false;
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->submitted) < ticket) {
        s->state = IDLE;
        idle = true;
    } else if (s->holds > 0) {
        s->state = HELD;
        held = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (idle) ag_stream_unref(s);
    return idle || held;
}

/* A submitting thread carries out what costs less than a hand-over: waking a sleeping worker alone takes 5 to 25 us,
 * and this thread is usually an event loop that is about to await the result. */
#define INLINE_NS 2000
#define INLINE_BYTES 16384

static bool cheap(ag_slot *slot)
{
    switch (slot->kind) {
    case AG_KIND_COPY: return slot->u.copy.item <= INLINE_BYTES && slot->u.copy.ne[0] == 1 && slot->u.copy.ne[1] == 1;
    case AG_KIND_FILL: return slot->u.fill.size <= INLINE_BYTES;
    case AG_KIND_PLAN: return slot->u.plan.plan->cost <= INLINE_NS && slot->u.plan.plan->scratch_size == 0;
    default: return true;
    }
}

/* `worker` is NULL on a submitting thread: that one does the cheap operations at the head, for INLINE_NS at most. */
static void run_on(ag_stream *s, ag_worker *worker)
{
    uint64_t until = worker == NULL ? ag_now() + INLINE_NS : 0;
    for (;;) {
        uint64_t ticket = atomic_load(&s->completed) + 1;
        if (atomic_load(&s->submitted) < ticket && rest(s, ticket)) return;
        ag_slot *slot = current(s, ticket);
        /* A hold keeps operations from starting; one that is under way (a yielded plan, a delay) goes on. */
        if (slot->started == 0 && rest(s, ticket)) return;
        if (worker == NULL && (!cheap(slot) || ag_now() > until)) {
            hand_over(s);
            return;
        }
        ag_error *error = NULL;
        if (step(s, slot, ticket, worker, &error) == GONE) return;
        complete(s, slot, ticket, error);
    }
}

void ag_stream_run(ag_stream *stream, ag_worker *worker)
{
    set_running(stream);
    run_on(stream, worker);
}

void ag_stream_plan_finished(ag_stream *stream, ag_worker *worker, ag_error *error)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    complete(stream, current(stream, ticket), ticket, error);
    run_on(stream, worker);
}

void ag_stream_plan_yielded(ag_stream *stream, size_t step_reached)
{
    stream->plan_step = step_reached;
    hand_over(stream);
}

/* -- control -------------------------------------------------------------------------------------------------- */

void ag_stream_close(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    pthread_cond_broadcast(&s->call_cond);
    pthread_mutex_unlock(&s->lock);
}

void ag_stream_hold(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    ++s->holds;
    pthread_mutex_unlock(&s->lock);
}

bool ag_stream_release(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
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
}

void ag_stream_abort(ag_stream *s, ag_block *block, uint64_t ticket)
{
    ag_slot *slot = &block->slots[ticket - block->base];
    atomic_store(&slot->abort, true);
    if (slot->kind == AG_KIND_DELAY && ticket == atomic_load(&s->completed) + 1) ag_timer_hurry(s);
}

void ag_stream_abort_all(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->abort_up_to, s->appended);
    pthread_mutex_unlock(&s->lock);
    ag_timer_hurry(s);
}

bool ag_stream_aborting(const ag_stream *s, const ag_slot *slot)
{
    if (atomic_load_explicit(&slot->abort, memory_order_relaxed)) return true;
    if (slot->kind != AG_KIND_PLAN && slot->kind != AG_KIND_DELAY && slot->kind != AG_KIND_CALL) return false;
    return atomic_load_explicit(&s->completed, memory_order_relaxed) <
           atomic_load_explicit(&s->abort_up_to, memory_order_relaxed);
}

void ag_stream_timer_fired(ag_stream *s, uint64_t ticket)
{
    /* Parked, so nobody runs the stream: this thread may write what its runner owns. */
    s->timer_fired = ticket;
    unpark(s);
}

bool ag_stream_next_call(ag_stream *s, uint64_t timeout_ns, uint64_t *ticket)
{
    uint64_t deadline = ag_now() + timeout_ns;
    struct timespec at = {.tv_sec = (time_t)(deadline / 1000000000u), .tv_nsec = (long)(deadline % 1000000000u)};
    pthread_mutex_lock(&s->lock);
    while (s->call_ticket == s->call_taken) {
        bool finished = s->closed && atomic_load(&s->completed) == s->appended;
        if (finished || pthread_cond_timedwait(&s->call_cond, &s->lock, &at) != 0) {
            pthread_mutex_unlock(&s->lock);
            return false;
        }
    }
    s->call_taken = *ticket = s->call_ticket;
    pthread_mutex_unlock(&s->lock);
    return true;
}

void ag_stream_finish_call(ag_stream *s, ag_error *error)
{
    pthread_mutex_lock(&s->lock);
    s->call_done = s->call_taken;
    s->call_error = error;
    pthread_mutex_unlock(&s->lock);
    unpark(s);
}
