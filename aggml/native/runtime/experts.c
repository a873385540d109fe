/* Experts: copies those matrices of a stack that a tensor of indices names. The indices are read when the stream
 * gets to the operation, so the submitter need not wait for them. Before, those that the last run named can be copied
 * one by one; then only the others are left. Not here: when that is (stream.c). */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static int32_t id_at(const ag_experts *e, int64_t i, int64_t j)
{
    int32_t id;
    memcpy(&id, e->ids + i * e->ids_nb[0] + j * e->ids_nb[1], sizeof id);
    return id;
}

/* Guess number e->guess: whether its matrix is to be copied. A matrix that two ids name is copied once. */
static void look_at_guess(ag_slot *slot)
{
    const ag_experts *e = &slot->u.experts;
    ag_expert_history *h = e->history;
    const int32_t id = h->ids[e->guess];
    if (id < 0) return;
    for (int64_t i = 0; i < e->guess; ++i) {
        if (h->ids[i] == id) return;
    }
    if (atomic_load_explicit(&h->noted, memory_order_acquire)) {
        h->ids[e->guess] = -1;
        return;
    }
    e->used[id] = 1;
    slot->moved = e->size;
}

/* Leaves out what was guessed, and remembers what is named. */
static void use_history(ag_slot *slot)
{
    const ag_experts *e = &slot->u.experts;
    ag_expert_history *h = e->history;
    for (int64_t i = 0; i < h->n; ++i) {
        if (h->ids[i] < 0 || !e->used[h->ids[i]]) continue;
        e->used[h->ids[i]] = 0;
        slot->moved -= e->size;
    }
    for (int64_t i = 0; i < h->n; ++i) h->ids[i] = id_at(e, i % e->ids_ne[0], i / e->ids_ne[0]);
    atomic_store_explicit(&h->noted, false, memory_order_release);
}

ag_error *ag_experts_look(ag_slot *slot, const char *device)
{
    ag_experts *e = &slot->u.experts;
    char text[96];
    slot->moved = 0;
    slot->pace = 0;
    if (e->history != NULL && e->guess == AG_EXPERTS_NOTE) {
        atomic_store_explicit(&e->history->noted, true, memory_order_release);
        return NULL;
    }
    e->used = calloc(e->n > 0 ? (size_t)e->n : 1, 1);
    if (e->used == NULL) return ag_error_new(AG_NO_MEMORY, device, slot->operation, NULL, "no memory");
    if (e->history != NULL && e->guess >= 0) look_at_guess(slot);
    for (int64_t j = 0; j < e->ids_ne[1]; ++j) {
        for (int64_t i = 0; i < e->ids_ne[0]; ++i) {
            int32_t id = id_at(e, i, j);
            if (id < 0 || id >= e->n) {
                snprintf(text, sizeof text, "expert %d of %lld (at %lld, %lld of the ids)", id, (long long)e->n,
                         (long long)i, (long long)j);
                return ag_error_new(AG_OUT_OF_BOUNDS, device, slot->operation, NULL, text);
            }
            if (!e->used[id]) slot->moved += e->size;
            e->used[id] = 1;
        }
    }
    if (e->history != NULL && e->guess == AG_EXPERTS_NAMED) use_history(slot);
    double ns = (double)e->latency + (double)slot->moved * e->ns_per_byte;
    if (ns > 0 && (slot->moved > 0 || e->history == NULL)) slot->pace = (uint64_t)ns; /* nothing left: no transfer */
    return NULL;
}

void ag_experts_run(const ag_slot *slot)
{
    const ag_experts *e = &slot->u.experts;
    for (int64_t first = 0, end; first < e->n; first = end + 1) { /* neighbouring matrices are copied together */
        for (end = first; end < e->n && e->used[end]; ++end) continue;
        size_t at = (size_t)first * e->size, size = (size_t)(end - first) * e->size;
        if (size > 0) memcpy(e->dst + at, e->src + at, size);
    }
}
