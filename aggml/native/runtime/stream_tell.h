/* When a loop is woken that sleeps on a worker's core (stream_tell.c). `due`: 0, or the ticket of a stream that such a
 * loop waits for, which is done; then it means a reference to the stream. */
#ifndef AG_STREAM_TELL_H
#define AG_STREAM_TELL_H

#include "internal.h"

/* By the worker that has just ended `ticket`. False: better wake who waits for it now. */
bool ag_stream_tell_later(ag_stream *s, uint64_t ticket, uint64_t *due);
void ag_stream_tell(ag_stream *s, uint64_t *due); /* wake who waits for it, drop the reference; 0 from then on */

#endif
