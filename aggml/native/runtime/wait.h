/* A wait of an event loop for one ticket of a stream: armed, due once the ticket is done, taken by the loop. */
#ifndef AG_WAIT_H
#define AG_WAIT_H

#include "heap.h"

/* The caller's memory, zeroed at first. While it is armed or due it holds references to both. One thread at a time
 * arms, cancels and takes the waits of a notifier. */
typedef struct ag_wait {
    ag_node node; /* among those of the stream, by ticket */
    struct ag_stream *stream;
    struct ag_notifier *notifier;
    struct ag_stream *parked;    /* instead of a notifier: a stream that goes on then */
    struct ag_wait *next, *prev; /* among those that are due for the notifier */
    enum { AG_WAIT_IDLE, AG_WAIT_ARMED, AG_WAIT_DUE } state;
} ag_wait;

/* The notifier is signalled once the ticket is done. False: it is done already, nothing was armed. */
bool ag_wait_arm(ag_wait *wait, struct ag_stream *stream, struct ag_notifier *notifier, uint64_t ticket);
void ag_wait_cancel(ag_wait *wait); /* leaves the stream's heap at once; nothing if it is neither armed nor due */
/* Takes one that is due, in the order in which they became so; NULL: there is none. */
ag_wait *ag_notifier_take(struct ag_notifier *notifier);
uint64_t ag_stream_compared(struct ag_stream *stream); /* by its heap of waits: the work that it was, for tests */

#endif
