/* When to wake a loop that sleeps on a worker's core (stream_tell.c). `due`: 0, or the ticket of a stream that such
 * a loop waits for and that is done. While it is not 0, it includes a reference to the stream. */
#ifndef AG_STREAM_TELL_H
#define AG_STREAM_TELL_H

#include "internal.h"

/* Called by the worker that has just ended `ticket`. False: it is better to wake those that wait for it now. */
bool ag_stream_tell_later(ag_stream *s, uint64_t ticket, uint64_t *due);
/* wakes those that wait for it and drops the reference; sets `due` to 0 */
void ag_stream_tell(ag_stream *s, uint64_t *due);

#endif
