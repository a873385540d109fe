/* A wait of an event loop for one ticket of a stream: it is armed, becomes due once the ticket is done, and the loop
 * takes it. */
#ifndef AG_WAIT_H
#define AG_WAIT_H

#include "heap.h"

/* The caller's memory, zeroed at first. While it is armed or due it holds references to the stream and the notifier.
 * One thread at a time arms, cancels and takes the waits of a notifier. */
typedef struct ag_wait {
    ag_node node; /* entry among the waits of the stream, ordered by ticket */
    struct ag_stream *stream;
    struct ag_notifier *notifier;
    struct ag_stream *parked;    /* instead of a notifier: the stream that then goes on */
    struct ag_wait *next, *prev; /* links among the waits that are due for the notifier */
    enum { AG_WAIT_IDLE, AG_WAIT_ARMED, AG_WAIT_DUE } state;
} ag_wait;

/* Arms the wait: the notifier is signalled once the ticket is done. False: it is done already, and nothing was
 * armed. */
bool ag_wait_arm(ag_wait *wait, struct ag_stream *stream, struct ag_notifier *notifier, uint64_t ticket);
/* removes it from the stream's heap immediately; does nothing if it is neither armed nor due */
void ag_wait_cancel(ag_wait *wait);
/* Takes a due wait, in the order in which they became due; NULL: there is none. */
ag_wait *ag_notifier_take(struct ag_notifier *notifier);
/* comparisons in its heap of waits: the work that was done, for tests */
uint64_t ag_stream_compared(struct ag_stream *stream);

#endif
