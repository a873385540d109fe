/* Experts: copies those matrices of a stack that a tensor of indices names. The indices are read when the stream
 * gets to the operation, so the submitter need not wait for them. Not here: when that is (stream.c). */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static int32_t id_at(const ag_experts *e, int64_t i, int64_t j)
{
    int32_t id;
    memcpy(&id, e->ids + i * e->ids_nb[0] + j * e->ids_nb[1], sizeof id);
    return id;
}

ag_error *ag_experts_look(ag_slot *slot, const char *device)
{
    ag_experts *e = &slot->u.experts;
    char text[96];
    slot->moved = 0;
    e->used = calloc(e->n > 0 ? (size_t)e->n : 1, 1);
    if (e->used == NULL) return ag_error_new(AG_NO_MEMORY, device, slot->operation, NULL, "no memory");
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
    double ns = (double)e->latency + (double)slot->moved * e->ns_per_byte;
    slot->pace = ns > 0 ? (uint64_t)ns : 0;
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
