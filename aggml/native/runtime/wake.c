/* Waiting and waking: streams parked on each other's tickets, event loops that wait for tickets.
 *
 * Each stream has a heap of those that wait, ordered by ticket. So the cost of waiting, giving up and waking does not
 * depend on how many others wait there (giving up among 8,000 used to cost 47 us). Waits that are due go to a list of
 * the loop's notifier, so a loop that wakes looks at nothing else.
 *
 * A thread that waits first says which ticket it wants, then checks whether it is done. A thread that completes
 * first publishes, then checks what is wanted. So at least one of the two sees the other. */
#include "stream_inline.h"
#include "stream_state.h"

void ag_stream_unpark(ag_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool ready = s->state == PARKED;
    if (ready) s->state = READY;
    pthread_mutex_unlock(&s->lock);
    if (!ready || (s->ahead == NULL && ag_inline_keep(s))) return;
    s->executor->ready(s->executor, s);
}

void ag_stream_hand_over(ag_stream *s)
{
    ag_stream_set_state(s, READY);
    s->executor->ready(s->executor, s);
}

void ag_stream_set_state(ag_stream *s, stream_state to)
{
    pthread_mutex_lock(&s->lock);
    s->state = to;
    pthread_mutex_unlock(&s->lock);
}

static ag_wait *first_of(const ag_stream *s)
{
    return (ag_wait *)s->waits.least; /* the node is its first member */
}

static void refresh_wanted(ag_stream *s)
{
    atomic_store(&s->wanted, s->waits.least != NULL ? s->waits.least->key : AG_TAIL);
}

enum { LOOPS = 8 }; /* loops that are signalled together */

/* Takes what is due out of the heap. Waits of loops go to their notifiers, which are noted, with a reference, to be
 * signalled; parked streams go into a list. False: there are more loops than room. The lock is held. */
static bool take_due(ag_stream *s, uint64_t completed, ag_notifier **loops, size_t *n, ag_wait **streams)
{
    for (ag_wait *w = first_of(s); w != NULL && w->node.key <= completed; w = first_of(s)) {
        size_t at = 0;
        while (w->notifier != NULL && at < *n && loops[at] != w->notifier) ++at;
        if (at == LOOPS) return false;
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
    return true;
}

/* Wakes everything that waits for a ticket up to `completed`. */
void ag_stream_wake(ag_stream *s, uint64_t completed)
{
    for (bool all = false; !all;) {
        ag_notifier *loops[LOOPS];
        size_t n = 0;
        ag_wait *streams = NULL;
        pthread_mutex_lock(&s->lock);
        all = take_due(s, completed, loops, &n, &streams);
        refresh_wanted(s);
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < n;
             ++i) { /* without the lock: the loop may take this core immediately, and then want the stream */
            ag_notifier_signal(loops[i]);
            ag_notifier_unref(loops[i]);
        }
        /* the entry belongs to the stream that is woken, so read its link before waking it */
        while (streams != NULL) {
            ag_stream *waiting = streams->parked;
            streams = streams->next;
            ag_stream_unpark(waiting);
        }
    }
}

/* Looks at the first of them and some of those behind it: a wrong guess only wakes a loop a little too early or too
 * late. */
bool ag_stream_awaited_on(ag_stream *s, uint64_t completed, int cpu)
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

/* Parks `s` until `ticket` of `target` is done. False: it is done already, and `s` goes on. */
bool ag_stream_park_for(ag_stream *s, ag_stream *target, uint64_t ticket)
{
    if (ticket <= atomic_load(&target->completed)) return false;
    ag_stream_note_rest(s);
    ag_stream_set_state(s, PARKED);
    pthread_mutex_lock(&target->lock);
    s->self = (ag_wait){.parked = s};
    ag_heap_add(&target->waits, &s->self.node, ticket);
    refresh_wanted(target);
    /* The completer publishes, then looks at `wanted`; this thread sets `wanted`, then looks: one of the two sees
     * the other. */
    bool done = ticket <= atomic_load(&target->completed);
    if (done) {
        ag_heap_remove(&target->waits, &s->self.node);
        refresh_wanted(target);
    }
    pthread_mutex_unlock(&target->lock);
    if (!done) return true;
    ag_stream_set_state(s, RUNNING);
    return false;
}

bool ag_wait_arm(ag_wait *w, ag_stream *s, ag_notifier *notifier, uint64_t ticket)
{
    /* In the child of a fork nothing will ever be done; the caller has to check ag_stream_alive. */
    if (ticket <= atomic_load(&s->completed) || !ag_stream_lock(s)) return false;
    ag_notifier_here(notifier); /* after it was last woken, the loop may have moved to another core */
    ag_heap_add(&s->waits, &w->node, ticket);
    refresh_wanted(s);
    const bool done = ticket <= atomic_load(&s->completed); /* the completer may have missed this wait */
    if (done) {
        ag_heap_remove(&s->waits, &w->node);
        refresh_wanted(s);
    } else {
        w->stream = ag_stream_ref(s);
        w->notifier = ag_notifier_ref(notifier);
        w->state = AG_WAIT_ARMED;
    }
    pthread_mutex_unlock(&s->lock);
    return !done;
}

void ag_wait_cancel(ag_wait *w)
{
    ag_stream *s = w->stream;
    if (s == NULL) return;
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
    ag_stream_unref(s);
}

uint64_t ag_stream_compared(ag_stream *s)
{
    if (!ag_stream_lock(s)) return 0;
    const uint64_t compared = s->waits.compared;
    pthread_mutex_unlock(&s->lock);
    return compared;
}
