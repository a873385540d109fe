/* What somebody keeps for the operations of streams, and when to look whether it may go (rest.c). */
#ifndef AG_REST_H
#define AG_REST_H

#include "runtime.h"

void ag_stream_keeps(ag_stream *stream, bool something); /* then it should look at `completed` once more */
void ag_stream_set_owner(ag_stream *stream, void *owner);
void *ag_stream_owner(const ag_stream *stream);
bool ag_streams_rest(void);                              /* whether there are any */
void ag_streams_at_rest(void (*see)(ag_stream *stream)); /* those that came to rest since the last time */

#endif
