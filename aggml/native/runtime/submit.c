/* Submitting: operations of one or several streams, enqueued in one step, all or nothing.
 *
 * Not here: running them (stream_run.c), though a submitting thread runs the cheapest ones itself. */
#include <stdlib.h>

#include "stream_inline.h"
#include "stream_state.h"

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
        ag_block *block = ag_block_new();
        if (block == NULL) return false;
        atomic_store(&block->next, s->spare);
        s->spare = block;
        have += AG_BLOCK_SLOTS;
    }
    return true;
}

/* Put a stream in its place, unless it is there. */
static size_t include(ag_stream **out, size_t count, ag_stream *s)
{
    size_t at = 0;
    while (at < count && out[at] < s) ++at;
    if (at < count && out[at] == s) return count;
    for (size_t m = count; m > at; --m) out[m] = out[m - 1];
    out[at] = s;
    return count + 1;
}

/* The streams concerned, each once, ordered by address: the order in which their locks are taken. */
static size_t involved(const ag_batch *batches, size_t n, const ag_seen *seen, size_t n_seen, ag_stream **out)
{
    size_t count = 0;
    for (size_t i = 0; i < n_seen; ++i) count = include(out, count, seen[i].stream);
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k <= batches[i].n; ++k) {
            ag_stream *s = batches[i].stream;
            if (k < batches[i].n) {
                const ag_slot *slot = &batches[i].slots[k];
                if (slot->kind != AG_KIND_WAIT || slot->u.wait.ticket != AG_TAIL) continue;
                s = slot->u.wait.stream;
            }
            count = include(out, count, s);
        }
    }
    return count;
}

static ag_submit_status check(ag_stream **streams, size_t count, const ag_batch *batches, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (atomic_load(&batches[i].stream->closed)) return AG_SUBMIT_CLOSED;
        if (atomic_load(&batches[i].stream->lost) != NULL) return AG_SUBMIT_LOST;
        for (size_t k = 0; k < batches[i].n; ++k) { /* a parent's ticket, which this process would wait for in vain */
            const ag_slot *slot = &batches[i].slots[k];
            if (slot->kind == AG_KIND_WAIT && !ag_stream_alive(slot->u.wait.stream)) return AG_SUBMIT_FORKED;
        }
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

/* Let the stream's runner see what was appended, and unlock. True: nobody runs it, that is for the caller to do. */
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

/* Carry out, of streams that nobody ran, what costs less than a hand-over. In the order of the submission: what comes later
 * waits for what came before. */
static void run_here(ag_stream **ready, size_t count, const ag_batch *batches, size_t n)
{
    ag_inline here;
    ag_inline_begin(&here, &ag_inline_submit);
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < count; ++j) {
            if (ready[j] == NULL || ready[j] != batches[i].stream) continue;
            ready[j] = NULL;
            ag_stream_run(batches[i].stream, NULL);
            break;
        }
    }
    ag_inline_end(&here);
}

static bool moved(const ag_seen *seen, size_t n_seen)
{
    for (size_t i = 0; i < n_seen; ++i) {
        if (seen[i].stream->appended != seen[i].ticket) return true;
    }
    return false;
}

ag_submit_status ag_submit(ag_batch *batches, size_t n)
{
    return ag_submit_if(batches, n, NULL, 0);
}

ag_submit_status ag_submit_if(ag_batch *batches, size_t n, const ag_seen *seen, size_t n_seen)
{
    ag_stream *small[16], **streams = small;
    size_t bound = n_seen;
    for (size_t i = 0; i < n; ++i) bound += 1 + batches[i].n;
    if (bound > 16 && (streams = malloc(bound * sizeof *streams)) == NULL) return AG_SUBMIT_NO_MEMORY;
    size_t count = involved(batches, n, seen, n_seen, streams);
    ag_submit_status status = AG_SUBMIT_OK;
    for (size_t j = 0; j < count; ++j) {
        if (!ag_stream_alive(streams[j])) status = AG_SUBMIT_FORKED;
    }
    if (status == AG_SUBMIT_OK) {
        for (size_t j = 0; j < count; ++j) pthread_mutex_lock(&streams[j]->lock);
        status = moved(seen, n_seen) ? AG_SUBMIT_MOVED : check(streams, count, batches, n);
        if (status == AG_SUBMIT_OK) append_all(batches, n);
        /* First those that got nothing: a slot may hold their last reference, and once published it may run. */
        for (size_t j = 0; j < count; ++j) {
            ag_stream *s = streams[j];
            if (atomic_load_explicit(&s->submitted, memory_order_relaxed) != s->appended) continue;
            pthread_mutex_unlock(&s->lock);
            streams[j] = NULL;
        }
        for (size_t j = 0; j < count; ++j) {
            if (streams[j] != NULL && !publish(streams[j])) streams[j] = NULL;
        }
        if (status == AG_SUBMIT_OK) run_here(streams, count, batches, n);
    }
    if (streams != small) free(streams);
    return status;
}
