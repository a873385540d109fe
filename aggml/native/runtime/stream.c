/* Stream: ordered operations of one backend. Here: its life and its control.
 *
 * One thread at a time runs a stream (its state says which). It takes operations in the order of their tickets and
 * publishes each by raising `completed`. An operation that has to wait for something (another stream, a timer, a
 * Python thread, a release) parks the stream: the thread goes on with other work, and the thread that ends the wait
 * makes the stream ready again. While a stream is not idle it holds a reference to itself. Not here: enqueuing
 * (submit.c), running (stream_run.c), failing (stream_end.c), waiting and waking (wake.c), plans over several
 * threads (plan_run.c), streams of devices to which operations are issued ahead (stream_ahead.c). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stream_state.h"

ag_stream **ag_stream_link(ag_stream *stream)
{
    return &stream->next_ready;
}

int *ag_stream_bank(ag_stream *stream)
{
    return &stream->bank;
}

int ag_stream_timers(const ag_stream *stream)
{
    return stream->timers;
}

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

ag_storage **ag_slot_storages(ag_slot *slot)
{
    return slot->many != NULL ? slot->many : slot->few;
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

/* -- life ----------------------------------------------------------------------------------------------------- */

static ag_stream *stream_new(const char *name, ag_executor *executor)
{
    ag_runtime_init();
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
    s->timers = ag_timer_turn();
    pthread_mutex_init(&s->lock, NULL);
    ag_cond_init(&s->call_cond);
    block->base = 1; /* ticket 0 is "nothing yet", always done */
    s->head = s->tail = s->cursor = block;
    atomic_init(&s->wanted, AG_TAIL);
    return s;
}

ag_stream *ag_stream_new(const char *name, ag_pool *pool, int n_threads)
{
    ag_stream *s = stream_new(name, ag_pool_executor(pool));
    if (s == NULL) return NULL;
    s->pool = ag_pool_ref(pool);
    atomic_init(&s->n_threads, n_threads);
    ag_living_add_stream(s);
    return s;
}

ag_stream *ag_stream_new_ahead(const char *name, ag_ahead *ahead)
{
    ag_stream *s = stream_new(name, &ahead->executor);
    if (s == NULL) return NULL;
    s->ahead = ahead;
    ag_living_add_stream(s);
    return s;
}

ag_stream *ag_stream_ref(ag_stream *stream)
{
    atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    return stream;
}

static void stream_free(ag_stream *s)
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
    stream_free(stream);
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
    return stream->generation == atomic_load(&ag_generation);
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
    if (ag_stream_alive(s)) ag_timer_hurry(s, 0, AG_TAIL);
}

void ag_stream_abort(ag_stream *s, ag_block *block, uint64_t ticket)
{
    ag_slot *slot = &block->slots[ticket - block->base];
    atomic_store(&slot->abort, true);
    /* The pace of experts is found out while they run, so it must not be read from here. */
    if (slot->kind == AG_KIND_DELAY || slot->kind == AG_KIND_EXPERTS || slot->pace > 0)
        ag_timer_hurry(s, ticket, ticket);
}

void ag_stream_abort_all(ag_stream *s)
{
    if (!ag_stream_lock(s)) return;
    uint64_t last = s->appended;
    atomic_store(&s->abort_up_to, last);
    pthread_mutex_unlock(&s->lock);
    ag_timer_hurry(s, 0, last);
}

bool ag_stream_aborting(const ag_stream *s, const ag_slot *slot)
{
    if (atomic_load_explicit(&slot->abort, memory_order_relaxed)) return true;
    if (slot->kind != AG_KIND_PLAN && slot->kind != AG_KIND_DELAY && slot->kind != AG_KIND_CALL) return false;
    return atomic_load_explicit(&s->completed, memory_order_relaxed) <
           atomic_load_explicit(&s->abort_up_to, memory_order_relaxed);
}
