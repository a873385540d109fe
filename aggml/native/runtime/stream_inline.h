/* Work of streams that a thread which is not a worker carries out by itself: for a limited time, and only if it is
 * cheap. Waking a worker takes 5 to 50 us, and milliseconds on a busy machine. */
#ifndef AG_STREAM_INLINE_H
#define AG_STREAM_INLINE_H

#include "internal.h"

typedef struct ag_inline_limits {
    bool timer;
    uint64_t ns;      /* for all operations that it begins, by the clock and by their estimates */
    size_t bytes;     /* of a copy or a fill, at most */
    uint64_t plan_ns; /* the estimate of a plan, at most */
} ag_inline_limits;
extern const ag_inline_limits ag_inline_submit,
    ag_inline_timer; /* limits for a submitting thread, and for the thread of the timers */

typedef struct ag_inline {
    struct ag_inline *outer;
    const ag_inline_limits *limits;
    ag_stream *first, **end; /* streams that this thread made ready meanwhile */
    uint64_t until, spent;   /* ns: the limit by the clock, and the sum of the estimates of what it has begun */
} ag_inline;

void ag_inline_begin(ag_inline *here, const ag_inline_limits *limits, uint64_t now);
ag_stream *ag_inline_next(ag_inline *here); /* takes one of those streams; NULL: none is left */
void ag_inline_end(ag_inline *here);
void ag_stream_run_inline(ag_inline *here); /* goes on with those streams, then ends (stream.c) */
bool ag_inline_keep(ag_stream *s);   /* this thread will go on with a stream that it made ready; false: it will not */
bool ag_inline_takes(ag_slot *slot); /* whether this thread may carry out the operation now; if so, counts it */

#endif
