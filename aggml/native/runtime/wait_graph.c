/* The graph of waits: whether a queued operation can only be done after a stream has gone on.
 *
 * A function in Python that blocks until an operation is done holds up its own stream. If that operation waits for
 * this stream, directly or through others, it would block for ever. This is checked once for each such wait, so the
 * rings are walked each time and nothing is kept. Not here: waiting (wake.c), which functions block
 * (call_thread.py). */
#include <stdlib.h>

#include "stream_state.h"

typedef struct place {
    ag_stream *stream; /* a reference */
    uint64_t ticket;   /* everything up to it has to be done */
} place;

typedef struct trail {
    place *places; /* each stream once */
    size_t n, cap, next;
    size_t *at; /* a hash table of 2 cap entries: 1 + the place of the stream, 0 if there is none */
    bool failed;
} trail;

/* The entry of a stream in the hash table, or the one where it would be. Without the table, with 8,000 streams each
 * would be compared with all. */
static size_t *entry_of(const trail *t, const ag_stream *stream)
{
    size_t i = (size_t)((uintptr_t)stream / 64 * 0x9e3779b97f4a7c15u >> 20) & (2 * t->cap - 1);
    while (t->at[i] != 0 && t->places[t->at[i] - 1].stream != stream) i = (i + 1) & (2 * t->cap - 1);
    return &t->at[i];
}

static bool make_room(trail *t)
{
    if (t->n < t->cap) return true;
    const size_t cap = t->cap ? 2 * t->cap : 16;
    size_t *at = calloc(2 * cap, sizeof *at);
    place *grown = at != NULL ? realloc(t->places, cap * sizeof *grown) : NULL;
    if (grown == NULL) {
        free(at);
        t->failed = true;
        return false;
    }
    free(t->at);
    t->places = grown;
    t->at = at;
    t->cap = cap;
    for (size_t i = 0; i < t->n; ++i) *entry_of(t, t->places[i].stream) = i + 1;
    return true;
}

/* Goes on to a place, unless that stream was already looked at up to this ticket, or has reached it. */
static void add(trail *t, ag_stream *stream, uint64_t ticket)
{
    if (ticket <= atomic_load(&stream->completed) || !make_room(t)) return;
    size_t *entry = entry_of(t, stream);
    if (*entry == 0) {
        t->places[t->n++] = (place){.stream = ag_stream_ref(stream), .ticket = ticket};
        *entry = t->n;
        return;
    }
    const size_t i = *entry - 1;
    if (t->places[i].ticket >= ticket) return;
    t->places[i].ticket = ticket;
    if (i >= t->next) return;
    place again = t->places[i]; /* it was looked at, but not as far, so look again */
    size_t *other = entry_of(t, t->places[t->next - 1].stream);
    t->places[i] = t->places[--t->next];
    t->places[t->next] = again;
    *other = i + 1;
    *entry = t->next + 1;
}

/* Collects what the unfinished operations of a stream wait for, up to a ticket. */
static void follow(trail *t, ag_stream *s, uint64_t ticket)
{
    place found[16];
    uint64_t from = 0;
    /* a few at a time: while one lock is held, no other lock is taken and no memory allocated */
    for (size_t n = 16; n == 16;) {
        n = 0;
        if (!ag_stream_lock(s)) return;
        uint64_t first = atomic_load(&s->completed) + 1;
        if (from < first) from = first;
        if (ticket > s->appended) ticket = s->appended;
        for (ag_block *block = s->head; block != NULL && n < 16; block = atomic_load(&block->next)) {
            uint64_t end = block->base + AG_BLOCK_SLOTS;
            for (; from >= block->base && from < end && from <= ticket && n < 16; ++from) {
                const ag_slot *slot = &block->slots[from - block->base];
                if (slot->kind != AG_KIND_WAIT || slot->u.wait.stream == NULL) continue;
                found[n++] = (place){.stream = ag_stream_ref(slot->u.wait.stream), .ticket = slot->u.wait.ticket};
            }
        }
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < n; ++i) {
            add(t, found[i].stream, found[i].ticket);
            ag_stream_unref(found[i].stream);
        }
    }
}

bool ag_stream_needs(const ag_edge *starts, size_t n_starts, const ag_edge *blocked, size_t n_blocked,
                     const ag_stream *target)
{
    trail t = {0};
    bool needs = false;
    for (size_t i = 0; i < n_starts; ++i) add(&t, starts[i].other, starts[i].ticket);
    while (t.next < t.n && !needs) {
        place at = t.places[t.next++];
        needs = at.stream == target;
        if (needs) break;
        follow(&t, at.stream, at.ticket);
        for (size_t i = 0; i < n_blocked; ++i) {
            if (blocked[i].stream == at.stream) add(&t, blocked[i].other, blocked[i].ticket);
        }
    }
    for (size_t i = 0; i < t.n; ++i) ag_stream_unref(t.places[i].stream);
    free(t.places);
    free(t.at);
    return needs; /* if memory ran out: the result so far */
}
