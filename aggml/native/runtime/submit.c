/* Submitting: operations for one or several streams are enqueued in one step, all or nothing.
 *
 * Not here: running them (stream.c), although a submitting thread runs the cheapest ones itself. */
#include <stdlib.h>

#include "stream_inline.h"
#include "stream_state.h"

/* Appends one slot. The caller holds the lock and has made enough spare blocks. */
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
        ag_block *block = ag_block_new();
        if (block == NULL) return false;
        atomic_store(&block->next, s->spare);
        s->spare = block;
        have += AG_BLOCK_SLOTS;
    }
    return true;
}

/* A stream that a submission is about. */
typedef struct party {
    ag_stream *stream;
    size_t slots; /* slots that it will receive */
    bool ready;   /* no thread runs it, so the submitter has to see to that */
} party;

static int by_address(const void *a, const void *b)
{
    const ag_stream *x = ((const party *)a)->stream, *y = ((const party *)b)->stream;
    return x < y ? -1 : x > y;
}

/* The index of the stream, or where it would be inserted: `n` parties are sorted by address. */
static size_t place_of(const party *parties, size_t n, const ag_stream *s)
{
    size_t low = 0;
    while (n > 0) {
        const size_t half = n / 2;
        if (parties[low + half].stream < s) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

/* The streams concerned, each once, ordered by address: the order in which their locks are taken. */
static size_t list_parties(const ag_batch *batches, size_t n, const ag_seen *seen, size_t n_seen, party *out)
{
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < n_seen; ++i) out[count++] = (party){.stream = seen[i].stream};
    for (size_t i = 0; i < n; ++i) {
        out[count++] = (party){.stream = batches[i].stream, .slots = batches[i].n};
        for (size_t k = 0; k < batches[i].n; ++k) {
            const ag_slot *slot = &batches[i].slots[k];
            if (slot->kind != AG_KIND_WAIT || slot->u.wait.ticket != AG_TAIL) continue;
            out[count++] = (party){.stream = slot->u.wait.stream};
        }
    }
    if (count > 1) qsort(out, count, sizeof *out, by_address);
    for (size_t i = 0; i < count; ++i) {
        if (kept > 0 && out[kept - 1].stream == out[i].stream) {
            out[kept - 1].slots += out[i].slots;
        } else {
            out[kept++] = out[i];
        }
    }
    return kept;
}

static ag_submit_status check(const party *parties, size_t count, const ag_batch *batches, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (atomic_load(&batches[i].stream->closed)) return AG_SUBMIT_CLOSED;
        if (batches[i].stream->pool != NULL && !ag_pool_takes(batches[i].stream->pool)) return AG_SUBMIT_CLOSED;
        if (atomic_load(&batches[i].stream->lost) != NULL) return AG_SUBMIT_LOST;
        /* a ticket of the parent, for which this process would wait in vain */
        for (size_t k = 0; k < batches[i].n; ++k) {
            const ag_slot *slot = &batches[i].slots[k];
            if (slot->kind == AG_KIND_WAIT && !ag_stream_alive(slot->u.wait.stream)) return AG_SUBMIT_FORKED;
        }
    }
    for (size_t j = 0; j < count; ++j) {
        if (!make_spare(parties[j].stream, parties[j].slots)) return AG_SUBMIT_NO_MEMORY;
    }
    return AG_SUBMIT_OK;
}

/* Sets the time of submission. */
static uint64_t append_all(ag_batch *batches, size_t n)
{
    const uint64_t now = ag_now();
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
    return now;
}

/* Makes the appended slots visible to the stream's runner, and unlocks. True: no thread runs it, so the caller has
 * to see to that. */
static bool publish(ag_stream *s)
{
    atomic_store(&s->submitted, s->appended);
    bool ready = s->state == IDLE;
    if (ready) {
        s->state = READY;
        ag_stream_ref(s);
    }
    pthread_mutex_unlock(&s->lock);
    return ready;
}

/* Runs operations that cost less than a hand-over, on streams that no thread was running. They run in the order of
 * the submission, because later ones wait for earlier ones. */
static void run_here(party *parties, size_t count, const ag_batch *batches, size_t n, uint64_t now)
{
    ag_inline here;
    ag_inline_begin(&here, &ag_inline_submit, now);
    for (size_t i = 0; i < n; ++i) {
        party *p = &parties[place_of(parties, count, batches[i].stream)];
        if (!p->ready) continue;
        p->ready = false;
        ag_stream_run(batches[i].stream, NULL);
    }
    ag_stream_run_inline(&here);
}

static bool has_moved(const ag_seen *seen, size_t n_seen)
{
    for (size_t i = 0; i < n_seen; ++i) {
        if (seen[i].stream->appended != seen[i].ticket) return true;
    }
    return false;
}

static ag_submit_status submit(party *parties, size_t count, ag_batch *batches, size_t n, const ag_seen *seen,
                               size_t n_seen)
{
    for (size_t j = 0; j < count; ++j) {
        if (!ag_stream_alive(parties[j].stream)) return AG_SUBMIT_FORKED;
    }
    for (size_t j = 0; j < count; ++j) pthread_mutex_lock(&parties[j].stream->lock);
    const ag_submit_status status = has_moved(seen, n_seen) ? AG_SUBMIT_MOVED : check(parties, count, batches, n);
    const uint64_t now = status == AG_SUBMIT_OK ? append_all(batches, n) : 0;
    /* First the streams that got nothing: a slot may hold their last reference, and it may run once it is published. */
    for (size_t j = 0; j < count; ++j) {
        party *p = &parties[j];
        if (status != AG_SUBMIT_OK || p->slots == 0) pthread_mutex_unlock(&p->stream->lock);
    }
    if (status != AG_SUBMIT_OK) return status;
    for (size_t j = 0; j < count; ++j) {
        if (parties[j].slots > 0) parties[j].ready = publish(parties[j].stream);
    }
    run_here(parties, count, batches, n, now);
    return status;
}

ag_submit_status ag_submit(ag_batch *batches, size_t n)
{
    return ag_submit_if(batches, n, NULL, 0);
}

ag_submit_status ag_submit_if(ag_batch *batches, size_t n, const ag_seen *seen, size_t n_seen)
{
    enum { ON_STACK = 16 };
    party on_stack[ON_STACK], *parties = on_stack;
    size_t bound = n_seen;
    for (size_t i = 0; i < n; ++i) {
        ++bound;
        for (size_t k = 0; k < batches[i].n; ++k) bound += batches[i].slots[k].kind == AG_KIND_WAIT;
    }
    if (bound > ON_STACK && (parties = malloc(bound * sizeof *parties)) == NULL) return AG_SUBMIT_NO_MEMORY;
    const size_t count = list_parties(batches, n, seen, n_seen, parties);
    const ag_submit_status status = submit(parties, count, batches, n, seen, n_seen);
    if (parties != on_stack) free(parties);
    return status;
}
