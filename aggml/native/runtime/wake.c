/* Waiting and waking: streams parked on each other's tickets, event loops that watch them.
 *
 * Who waits says which ticket it wants, then looks whether it is done; who completes publishes, then looks what is
 * wanted: one of the two sees the other. */
#include <stdlib.h>

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

static void refresh_wanted(ag_stream *s)
{
    uint64_t least = AG_TAIL;
    for (watch *w = s->watches; w != NULL; w = w->next) least = w->ticket < least ? w->ticket : least;
    for (parked *p = s->parked; p != NULL; p = p->next) least = p->ticket < least ? p->ticket : least;
    atomic_store(&s->wanted, least);
}

/* Wake all that waits for a ticket up to `completed`. */
void ag_stream_wake(ag_stream *s, uint64_t completed)
{
    pthread_mutex_lock(&s->lock);
    parked *due = NULL;
    for (parked **p = &s->parked; *p != NULL;) {
        if ((*p)->ticket <= completed) {
            parked *entry = *p;
            *p = entry->next;
            entry->next = due;
            due = entry;
        } else {
            p = &(*p)->next;
        }
    }
    watch *seen = NULL;
    for (watch **w = &s->watches; *w != NULL;) {
        if ((*w)->ticket <= completed) {
            watch *entry = *w;
            *w = entry->next;
            entry->next = seen;
            seen = entry;
        } else {
            w = &(*w)->next;
        }
    }
    refresh_wanted(s);
    pthread_mutex_unlock(&s->lock);
    while (seen != NULL) { /* without the lock: the loop may take this core at once, and then want the stream */
        watch *entry = seen;
        seen = entry->next;
        ag_notifier_signal(entry->notifier);
        ag_notifier_unref(entry->notifier);
        free(entry);
    }
    while (due != NULL) { /* the entry belongs to the stream that wakes: read on before waking it */
        ag_stream *waiting = due->stream;
        due = due->next;
        ag_stream_unpark(waiting);
    }
}

/* Park `s` until `ticket` of `target` is done. False: it is done already and `s` runs on. */
bool ag_stream_park_for(ag_stream *s, ag_stream *target, uint64_t ticket)
{
    if (ticket <= atomic_load(&target->completed)) return false;
    ag_stream_set_state(s, PARKED);
    pthread_mutex_lock(&target->lock);
    s->self = (parked){.next = target->parked, .stream = s, .ticket = ticket};
    target->parked = &s->self;
    refresh_wanted(target);
    /* The completer publishes, then looks at `wanted`; we set `wanted`, then look: one of us sees the other. */
    bool done = ticket <= atomic_load(&target->completed);
    if (done) {
        for (parked **p = &target->parked; *p != NULL; p = &(*p)->next) {
            if (*p == &s->self) {
                *p = s->self.next;
                break;
            }
        }
        refresh_wanted(target);
    }
    pthread_mutex_unlock(&target->lock);
    if (!done) return true;
    ag_stream_set_state(s, RUNNING);
    return false;
}

bool ag_stream_watch(ag_stream *s, ag_notifier *notifier, uint64_t ticket)
{
    /* In the child of a fork nothing will ever be done; the caller asks ag_stream_alive. */
    if (ticket <= atomic_load(&s->completed) || !ag_stream_lock(s)) return true;
    ag_notifier_here(notifier); /* what woke the loop last may have moved it to another core */
    watch *w = s->watches;
    while (w != NULL && w->notifier != notifier) w = w->next;
    if (w == NULL) {
        w = malloc(sizeof *w);
        if (w == NULL) {
            pthread_mutex_unlock(&s->lock);
            return true; /* the caller looks again instead of sleeping for ever */
        }
        *w = (watch){.next = s->watches, .notifier = ag_notifier_ref(notifier), .ticket = ticket};
        s->watches = w;
    } else if (ticket < w->ticket) {
        w->ticket = ticket;
    }
    refresh_wanted(s);
    bool done = ticket <= atomic_load(&s->completed);
    pthread_mutex_unlock(&s->lock);
    if (done) ag_stream_wake(s, atomic_load(&s->completed)); /* the completer may have missed us: fire ourselves */
    return done;
}

void ag_stream_unwatch(ag_stream *s, ag_notifier *notifier)
{
    if (!ag_stream_lock(s)) return;
    for (watch **w = &s->watches; *w != NULL; w = &(*w)->next) {
        if ((*w)->notifier == notifier) {
            watch *entry = *w;
            *w = entry->next;
            ag_notifier_unref(entry->notifier);
            free(entry);
            break;
        }
    }
    refresh_wanted(s);
    pthread_mutex_unlock(&s->lock);
}
