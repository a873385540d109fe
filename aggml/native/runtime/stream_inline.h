/* What a thread that is no worker carries out of the streams that it made ready (stream_inline.c): for a while, what is
 * cheap. A worker that has to be woken takes 5 to 50 us, and milliseconds on a machine that is busy. */
#ifndef AG_STREAM_INLINE_H
#define AG_STREAM_INLINE_H

#include "internal.h"

typedef struct ag_inline_limits {
    bool timer;
    uint64_t ns;      /* of all that it begins, by the clock and by its price */
    size_t bytes;     /* of a copy or a fill, at most */
    uint64_t plan_ns; /* of a plan, about, at most */
} ag_inline_limits;
extern const ag_inline_limits ag_inline_submit,
    ag_inline_timer; /* of a thread that submits, of the one of the timers */

typedef struct ag_inline {
    struct ag_inline *outer;
    const ag_inline_limits *limits;
    ag_stream *first, **end; /* streams that it made ready meanwhile */
    uint64_t until, spent;   /* ns: by the clock, and as what it has begun is priced */
} ag_inline;

void ag_inline_begin(ag_inline *here, const ag_inline_limits *limits, uint64_t now);
void ag_inline_end(ag_inline *here); /* goes on with those streams first */
bool ag_inline_keep(ag_stream *s); /* this thread goes on with a stream that it made ready; false: it is no such one */
bool ag_inline_takes(ag_slot *slot); /* whether this thread may carry it out now; counts it if so */

#endif
