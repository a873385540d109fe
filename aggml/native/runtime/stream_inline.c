/* What a thread that is no worker carries out by itself. Not here: in which order operations are run (stream_run.c). */
#include "stream_inline.h"

#include "stream_state.h"

/* It is usually an event loop that is about to await the result. It stops at an operation that may take long, and after as
 * much time as the hand-over would have taken. */
const ag_inline_limits ag_inline_submit = {.ns = 5000, .bytes = 16384, .plan_ns = 2000};

/* The thread of the timers does by itself what is cheap, and so what comes next on other streams: devices that are not
 * there keep their rates on a machine that is busy, where a worker is late by milliseconds. */
const ag_inline_limits ag_inline_timer = {.ns = 50000, .bytes = 131072, .plan_ns = 20000};

static _Thread_local ag_inline *inline_here; /* of this thread, if it carries out anything by itself */

void ag_inline_begin(ag_inline *here, const ag_inline_limits *limits)
{
    *here = (ag_inline){.outer = inline_here, .limits = limits, .until = ag_now() + limits->ns};
    here->end = &here->first;
    inline_here = here;
}

void ag_inline_end(ag_inline *here)
{
    while (here->first != NULL) {
        ag_stream *s = here->first;
        here->first = *ag_stream_link(s);
        if (here->first == NULL) here->end = &here->first;
        ag_stream_run(s, NULL);
    }
    inline_here = here->outer;
}

bool ag_inline_keep(ag_stream *s)
{
    ag_inline *here = inline_here;
    if (here == NULL) return false;
    *ag_stream_link(s) = NULL;
    *here->end = s;
    here->end = ag_stream_link(s);
    return true;
}

static bool cheap(const ag_slot *slot, const ag_inline_limits *most)
{
    switch (slot->kind) {
    case AG_KIND_COPY: return slot->u.copy.item <= most->bytes && slot->u.copy.ne[0] == 1 && slot->u.copy.ne[1] == 1;
    case AG_KIND_EXPERTS: return false;
    case AG_KIND_FILL: return slot->u.fill.size <= most->bytes;
    case AG_KIND_PLAN: return slot->u.plan.plan->cost <= most->plan_ns && slot->u.plan.plan->scratch_size == 0;
    default: return true;
    }
}

bool ag_inline_takes(const ag_slot *slot)
{
    const ag_inline *here = inline_here;
    return here != NULL && cheap(slot, here->limits) && ag_now() <= here->until;
}
