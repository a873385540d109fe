/* What a thread that is not a worker carries out by itself. Not here: in which order operations are run
 * (stream.c). */
#include "stream_inline.h"

#include "stream_state.h"

/* Such a thread is usually an event loop that is about to await the result. It stops at an operation that may take
 * long, and after as much time as the hand-over would have taken. */
const ag_inline_limits ag_inline_submit = {.timer = false, .ns = 5000, .bytes = 16384, .plan_ns = 2000};

/* The thread of the timers runs cheap operations by itself, and then the next ones on other streams. So simulated
 * devices keep their rates even on a busy machine, where a worker is late by milliseconds. */
const ag_inline_limits ag_inline_timer = {.timer = true, .ns = 50000, .bytes = 131072, .plan_ns = 20000};

static _Thread_local ag_inline *inline_here; /* of this thread; NULL: it is not carrying out anything by itself */

static _Atomic(uint64_t) work[2]; /* estimated ns: of submitting threads, of the timers' threads */

uint64_t ag_inline_work(bool timer)
{
    return atomic_load_explicit(&work[timer], memory_order_relaxed);
}

void ag_inline_begin(ag_inline *here, const ag_inline_limits *limits, uint64_t now)
{
    *here = (ag_inline){.outer = inline_here, .limits = limits, .until = now + limits->ns};
    here->end = &here->first;
    inline_here = here;
}

ag_stream *ag_inline_next(ag_inline *here)
{
    ag_stream *s = here->first;
    if (s == NULL) return NULL;
    here->first = s->next_ready;
    if (here->first == NULL) here->end = &here->first;
    return s;
}

void ag_inline_end(ag_inline *here)
{
    inline_here = here->outer;
}

bool ag_inline_keep(ag_stream *s)
{
    ag_inline *here = inline_here;
    if (here == NULL) return false;
    s->next_ready = NULL;
    *here->end = s;
    here->end = &s->next_ready;
    return true;
}

enum { OPERATION_NS = 30, BYTES_PER_NS = 64 }; /* read from a cache, as in plan_cost.c */

static bool copy_is_present(ag_slot *slot)
{
    const uintptr_t first = (uintptr_t)slot->u.copy.src;
    if (slot->may_be_file && !ag_present(AG_MAY_BE_FILE, first, slot->u.copy.item)) return false;
    ag_storage **reads = ag_slot_storages(slot);
    for (int i = 0; i < slot->n_reads; ++i) {
        if (!ag_present(reads[i]->backing, first, slot->u.copy.item)) return false;
    }
    return true;
}

static bool plan_is_present(const ag_plan *plan, size_t most)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->n_file_parts; ++i) {
        const ag_file_part *part = &plan->file_parts[i];
        bytes += part->size;
        if (i == 4 || bytes > most || !ag_present(part->backing, part->first, part->size)) return false;
    }
    return true;
}

/* The estimated time of the operation at most; UINT64_MAX: this thread must not run it. */
static uint64_t price(ag_slot *slot, const ag_inline_limits *most)
{
    switch (slot->kind) {
    case AG_KIND_COPY:
        if (slot->u.copy.item > most->bytes || slot->u.copy.ne[0] != 1 || slot->u.copy.ne[1] != 1) return UINT64_MAX;
        return copy_is_present(slot) ? OPERATION_NS + slot->u.copy.item / (BYTES_PER_NS / 2) : UINT64_MAX;
    case AG_KIND_EXPERTS: return UINT64_MAX;
    case AG_KIND_FILL:
        return slot->u.fill.size <= most->bytes ? OPERATION_NS + slot->u.fill.size / BYTES_PER_NS : UINT64_MAX;
    case AG_KIND_PLAN: {
        const ag_plan *plan = slot->u.plan.plan;
        if (plan->cost > most->plan_ns || plan->scratch_size > 0) return UINT64_MAX;
        return plan_is_present(plan, most->bytes) ? OPERATION_NS + plan->cost : UINT64_MAX;
    }
    default: return OPERATION_NS;
    }
}

bool ag_inline_takes(ag_slot *slot)
{
    ag_inline *here = inline_here;
    if (here == NULL) return false;
    const uint64_t ns = price(slot, here->limits);
    if (ns > here->limits->ns - here->spent) return false;
    /* not checked for the first operation, since the thread has only just begun */
    if (here->spent > 0 && ag_now() > here->until) return false;
    here->spent += ns;
    /* counted before it is carried out, so that a thread that sees it done sees it counted */
    atomic_fetch_add_explicit(&work[here->limits->timer], ns, memory_order_relaxed);
    return true;
}
