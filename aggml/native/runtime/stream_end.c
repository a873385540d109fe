/* How an operation of a stream ends: its results are marked good or poisoned, and a failure is kept until somebody saw
 * it.
 *
 * Not here: how it is carried out (stream_step.c), which threads are woken then (wake.c, stream_tell.c). */
#include <stdio.h>
#include <stdlib.h>

#include "stream_state.h"

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

bool ag_stream_end(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
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
    if (ticket == atomic_load(&s->submitted)) ag_stream_note_rest(s);
    return ticket >= atomic_load(&s->wanted);
}

void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    if (ag_stream_end(s, slot, ticket, error)) ag_stream_wake(s, ticket);
}
