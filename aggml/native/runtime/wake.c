/* The waits for tickets of a stream: event loops that wait for one, streams that are parked until one is done.
 *
 * Each stream has a heap of those that wait, ordered by ticket. So the cost of waiting, giving up and waking does not
 * depend on how many others wait there (giving up among 8,000 used to cost 47 us). Waits that are due go to a list of
 * the loop's notifier, so a loop that wakes looks at nothing else.
 *
 * A thread that waits first says which ticket it wants, then checks whether it is done. A thread that completes first
 * publishes, then checks what is wanted. So at least one of the two sees the other. Not here: when a stream parks, and
 * how it goes on (stream.c). */
#include "stream_state.h"

static ag_wait *first_of(const ag_stream *s)
{
    return (ag_wait *)s->waits.least; /* the node is its first member */
}

static void refresh_wanted(ag_stream *s)
{
    atomic_store(&s->wanted, s->waits.least != NULL ? s->waits.least->key : AG_TAIL);
}

bool ag_wait_take_due(ag_stream *s, uint64_t completed, ag_notifier **loops, size_t *n, ag_wait **streams)
{
    for (ag_wait *w = first_of(s); w != NULL && w->node.key <= completed; w = first_of(s)) {
        size_t at = 0;
        while (w->notifier != NULL && at < *n && loops[at] != w->notifier) ++at;
        if (at == AG_WAIT_LOOPS) {
            refresh_wanted(s);
            return false;
        }
        ag_heap_remove(&s->waits, &w->node);
        if (w->notifier == NULL) {
            w->next = NULL;
            *streams = w;
            streams = &w->next;
            continue;
        }
        if (at == *n) loops[(*n)++] = ag_notifier_ref(w->notifier);
        ag_notifier_put(w->notifier, w);
    }
    refresh_wanted(s);
    return true;
}

/* Looks at the first of them and some of those behind it: a wrong guess only wakes a loop a little too early or too
 * late. */
bool ag_stream_is_awaited_on(ag_stream *s, uint64_t completed, int cpu)
{
    bool found = false;
    if (cpu < 0) return false;
    pthread_mutex_lock(&s->lock);
    const ag_node *node = s->waits.least;
    for (int i = 0; node != NULL && i < 8 && !found; ++i) {
        const ag_wait *w = (const ag_wait *)node;
        found = node->key <= completed && w->notifier != NULL && ag_notifier_cpu(w->notifier) == cpu;
        node = i == 0 ? node->child : node->next;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool ag_wait_add(ag_wait *w, ag_stream *target, uint64_t ticket)
{
    ag_heap_add(&target->waits, &w->node, ticket);
    refresh_wanted(target);
    /* The completer publishes, then looks at `wanted`; this thread sets `wanted`, then looks: one of the two sees
     * the other. */
    if (ticket > atomic_load(&target->completed)) return true;
    ag_heap_remove(&target->waits, &w->node);
    refresh_wanted(target);
    return false;
}

bool ag_wait_arm(ag_wait *w, ag_stream *s, ag_notifier *notifier, uint64_t ticket)
{
    /* In the child of a fork nothing will ever be done; the caller has to check ag_stream_alive. */
    if (ticket <= atomic_load(&s->completed) || !ag_stream_lock(s)) return false;
    ag_notifier_here(notifier); /* after it was last woken, the loop may have moved to another core */
    const bool armed = ag_wait_add(w, s, ticket);
    if (armed) {
        w->stream = ag_stream_add_ref(s);
        w->notifier = ag_notifier_ref(notifier);
        w->state = AG_WAIT_ARMED;
    }
    pthread_mutex_unlock(&s->lock);
    return armed;
}

ag_stream *ag_wait_withdraw(ag_wait *w)
{
    ag_stream *s = w->stream;
    if (s == NULL) return NULL;
    if (ag_stream_lock(s)) {
        if (w->state == AG_WAIT_ARMED) {
            ag_heap_remove(&s->waits, &w->node);
            refresh_wanted(s);
        }
        ag_notifier_forget(w->notifier, w);
        pthread_mutex_unlock(&s->lock);
    }
    w->state = AG_WAIT_IDLE;
    w->stream = NULL;
    ag_notifier_unref(w->notifier);
    return s;
}

uint64_t ag_stream_compared(ag_stream *s)
{
    if (!ag_stream_lock(s)) return 0;
    const uint64_t compared = s->waits.compared;
    pthread_mutex_unlock(&s->lock);
    return compared;
}
