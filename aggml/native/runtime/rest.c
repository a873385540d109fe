/* Streams that came to rest: whatever the binding kept for their finished operations can be released.
 *
 * A stream that has nothing to do for now adds itself to a list, once, if something is kept for it. The code that
 * releases kept objects then looks at these streams only, not at all streams: with 8,000 open ones that took 1.3 ms
 * whenever a worker fell asleep. There is no lock: the list is taken as a whole. Not here: what is kept
 * (binding/keep.cpp). */
#include "rest.h"

#include "stream_state.h"

static _Atomic(ag_stream *) resting; /* a list linked by next_resting, with a reference to each stream */

void ag_stream_keeps(ag_stream *s, bool something)
{
    atomic_store(&s->keeps, something);
}

void ag_stream_note_rest(ag_stream *s)
{
    if (!atomic_load(&s->keeps) || atomic_exchange(&s->in_resting, true)) return;
    ag_stream_ref(s);
    ag_stream *first = atomic_load(&resting);
    do {
        s->next_resting = first;
    } while (!atomic_compare_exchange_weak(&resting, &first, s));
}

bool ag_streams_rest(void)
{
    return atomic_load_explicit(&resting, memory_order_relaxed) != NULL;
}

void ag_streams_at_rest(void (*see)(ag_stream *stream))
{
    for (ag_stream *s = atomic_exchange(&resting, NULL); s != NULL;) {
        ag_stream *next = s->next_resting;
        atomic_store(&s->in_resting, false); /* from here on it may add itself again */
        see(s);
        ag_stream_unref(s);
        s = next;
    }
}

void ag_rest_forked(void) /* in the child: they are the parent's */
{
    atomic_store(&resting, NULL);
}

void ag_stream_set_owner(ag_stream *s, void *owner)
{
    s->owner = owner;
}

void *ag_stream_owner(const ag_stream *s)
{
    return s->owner;
}
