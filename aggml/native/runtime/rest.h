/* For objects that are kept while operations of streams need them: when to check whether they can be released
 * (stream.c). */
#ifndef AG_REST_H
#define AG_REST_H

#include "runtime.h"

/* after this call, the caller should look at `completed` once more */
void ag_stream_keeps(ag_stream *stream, bool something);
void ag_stream_set_owner(ag_stream *stream, void *owner);
void *ag_stream_owner(const ag_stream *stream);
bool ag_streams_rest(void); /* whether there are any such streams */
/* calls `see` for the streams that came to rest since the last call */
void ag_streams_at_rest(void (*see)(ag_stream *stream));

#endif
