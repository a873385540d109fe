/* The stream's state, for the files that make it up: stream.c, submit.c, wake.c, stream_run.c. */
#ifndef AG_STREAM_STATE_H
#define AG_STREAM_STATE_H

#include "internal.h"

typedef enum stream_state { IDLE, READY, RUNNING, PARKED, HELD } stream_state;
typedef enum call_state { CALL_NONE, CALL_ASKED, CALL_TAKEN, CALL_ENDED } call_state;

#define NO_STEP SIZE_MAX

typedef struct parked {
    struct parked *next;
    ag_stream *stream; /* waits for `ticket` of the stream in whose list this is */
    uint64_t ticket;
} parked;

typedef struct watch {
    struct watch *next;
    ag_notifier *notifier;
    uint64_t ticket;
} watch;

struct ag_stream {
    atomic_int refs;
    unsigned generation;
    char name[AG_NAME];
    ag_pool *pool;
    ag_executor *executor;
    ag_ahead *ahead; /* instead of the pool: who issues operations before those before them are done */
    atomic_int n_threads;

    pthread_mutex_t lock;
    stream_state state;
    int holds;
    atomic_bool closed; /* written under the lock */
    uint64_t appended;  /* under the lock; becomes `submitted` when a submission is complete */
    ag_block *tail;
    ag_block *spare; /* blocks made before a submission begins, so that it cannot fail halfway */
    parked *parked;
    watch *watches;
    ag_error **failures;
    size_t n_failures, cap_failures;
    _Atomic(ag_error *) lost;

    _Alignas(64) atomic_uint_fast64_t submitted;
    _Alignas(64) atomic_uint_fast64_t completed;
    atomic_uint_fast64_t wanted; /* the least ticket that anybody waits for */
    atomic_uint_fast64_t abort_up_to;
    atomic_uint_fast64_t over; /* `clock` when the last operation was done, for those who wait for it */

    /* owned by whoever runs the stream */
    ag_block *head;
    size_t plan_step;
    uint64_t timer_fired, paced;
    uint64_t clock;   /* when a stream without wake-ups and lags would be free again; AG_TAIL: when this one is */
    parked self;      /* this stream's entry in another one's list */
    uint64_t issued;  /* with `ahead`: the latest ticket that was handed to it; head is the settling thread's then */
    ag_block *cursor; /* and the block where that lies */

    pthread_cond_t call_cond;
    call_state call; /* this and what follows: under the lock */
    uint64_t call_ticket;
    size_t call_step; /* of a plan, NO_STEP if the operation is the call */
    void *call_user;
    ag_error *call_error;

    ag_stream *next_ready; /* for the executor */
};

/* False in the child of a fork: a thread of the parent may have held the lock, and hold it for ever. */
static inline bool ag_stream_lock(ag_stream *s)
{
    if (!ag_stream_alive(s)) return false;
    pthread_mutex_lock(&s->lock);
    return true;
}

/* stream.c */
ag_block *ag_block_new(void);
ag_storage **ag_slot_storages(ag_slot *slot); /* reads, then full writes, then partial writes */

/* stream_run.c, for stream_ahead.c */
ag_slot *ag_stream_current(ag_stream *s, uint64_t ticket);
void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error);
ag_error *ag_stream_aborted(ag_stream *s, const ag_slot *slot);
ag_error *ag_slot_poisoned(ag_slot *slot); /* what its reads are poisoned with: a reference, or NULL */
bool ag_stream_rest(ag_stream *s, uint64_t ticket);
/* False: the stream is parked, and runs on when what the operation waits for has come. */
bool ag_stream_step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error);

/* wake.c */
/* What a thread that is no worker carries out of the streams that it made ready: until `until`, what is cheap. A worker
 * that has to be woken takes 5 to 50 us, and milliseconds on a machine that is busy. */
typedef struct ag_inline {
    struct ag_inline *outer;
    ag_stream *first, **end; /* streams that it made ready meanwhile */
    uint64_t until;
    size_t bytes; /* of a copy or a fill, at most */
    uint64_t ns;  /* of a plan, about, at most */
} ag_inline;
void ag_inline_begin(ag_inline *here, uint64_t ns, size_t bytes, uint64_t plan_ns); /* for `ns` in all */
void ag_inline_end(ag_inline *here);   /* goes on with those streams first */
const ag_inline *ag_inline_here(void); /* of this thread, or NULL */
void ag_stream_unpark(ag_stream *s);   /* by whoever ended the wait: back to the executor */
void ag_stream_set_state(ag_stream *s, stream_state to);
void ag_stream_wake(ag_stream *s, uint64_t completed); /* all that waits for a ticket up to `completed` */
bool ag_stream_awaited_here(ag_stream *s, uint64_t completed);
bool ag_stream_park_for(ag_stream *s, ag_stream *target, uint64_t ticket);

#endif
