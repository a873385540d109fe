/* The stream's state, for the files that make it up: stream*.c, submit.c, wake.c, wait_graph.c. */
#ifndef AG_STREAM_STATE_H
#define AG_STREAM_STATE_H

#include "internal.h"

typedef enum stream_state { IDLE, READY, RUNNING, PARKED, HELD } stream_state;
typedef enum call_state { CALL_NONE, CALL_ASKED, CALL_TAKEN, CALL_ENDED } call_state;

#define NO_STEP SIZE_MAX

struct ag_stream {
    atomic_int refs;
    unsigned generation;
    char name[AG_NAME];
    ag_pool *pool;
    ag_executor *executor;
    /* used instead of the pool: the device to which operations are issued before earlier ones are done */
    ag_ahead *ahead;
    atomic_int n_threads;

    pthread_mutex_t lock;
    stream_state state;
    int holds;
    atomic_bool closed; /* written under the lock */
    uint64_t appended;  /* guarded by the lock; becomes `submitted` when a submission is complete */
    ag_block *tail;
    ag_block *spare; /* blocks that are made before a submission begins, so that it cannot fail halfway */
    ag_heap waits;   /* of ag_wait: loops and parked streams that want a ticket of this stream */
    ag_error **failures;
    size_t n_failures, cap_failures;
    uint64_t more_failures; /* the number of further failures that nobody saw, and that are not kept */
    _Atomic(ag_error *) lost;

    _Alignas(64) atomic_uint_fast64_t submitted;
    _Alignas(64) atomic_uint_fast64_t completed;
    atomic_uint_fast64_t wanted; /* the least ticket that any thread waits for */
    atomic_uint_fast64_t abort_up_to;
    /* the value of `clock` when the last operation was done, for threads that wait for it */
    atomic_uint_fast64_t over;

    /* owned by the thread that runs the stream */
    ag_block *head;
    size_t plan_step;
    uint64_t timer_fired, paced;
    /* the time at which a stream without wake-ups and delays would be free again; AG_TAIL: the time at which this
     * one is */
    uint64_t clock;
    ag_wait self; /* this stream's entry among the waits of another stream */
    /* with `ahead`: the latest ticket that was handed to it; `head` then belongs to the settling thread */
    uint64_t issued;
    ag_block *cursor; /* with `ahead`: the block of that ticket */

    pthread_cond_t call_cond;
    call_state call; /* this and the following fields are guarded by the lock */
    uint64_t call_ticket;
    size_t call_step; /* the step of a plan, NO_STEP if the operation is the call */
    void *call_user;
    ag_error *call_error;

    ag_stream *next_ready; /* for the executor */
    int bank;              /* for the executor, too */
    ag_stream *next_resting;
    atomic_bool keeps, in_resting; /* rest.c */
    void *owner;                   /* belongs to the binding */
    int timers;                    /* the bank whose timers the stream uses; written once */
    ag_node timer;                 /* guarded by the lock of the timers, like the next field */
    uint64_t timed;                /* the ticket that waits for a timer; 0: none */
    ag_stream *next_living, **link_living;
};

/* False in the child of a fork: a thread of the parent may have held the lock, so it may never be released. */
static inline bool ag_stream_lock(ag_stream *s)
{
    if (!ag_stream_alive(s)) return false;
    pthread_mutex_lock(&s->lock);
    return true;
}

/* stream.c */
ag_block *ag_block_new(void);
ag_storage **ag_slot_storages(ag_slot *slot); /* reads, then full writes, then partial writes */

/* stream_run.c */
ag_slot *ag_stream_current(ag_stream *s, uint64_t ticket);
bool ag_stream_rest(ag_stream *s, uint64_t ticket);

/* stream_step.c */
ag_error *ag_stream_aborted(ag_stream *s, const ag_slot *slot);
ag_error *ag_slot_poisoned(ag_slot *slot); /* the error that poisons what it reads: a reference, or NULL */
/* False: the stream is parked or has yielded, or another thread runs it. `due`: as in stream_tell.h. */
bool ag_stream_step(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_worker *worker, uint64_t *due, ag_error **error);
/* The part of an operation that the host does for any device. False: the stream is parked, and goes on when what the
 * operation waits for has come. */
bool ag_stream_step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error);

/* stream_call.c */
/* the call that the operation asked for; true only once for each call */
bool ag_stream_call_ended(ag_stream *s, ag_error **error);
/* From here on the stream belongs to the thread that serves calls. `step` of the plan, or NO_STEP. */
void ag_stream_ask_call(ag_stream *s, const ag_slot *slot, uint64_t ticket, size_t step);

/* stream_end.c: both functions end the current operation and take over the reference to `error`. */
/* returns whether any thread waits for it */
bool ag_stream_end(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error);
/* also wakes those that wait for it */
void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error);

/* rest.c */
/* called by the thread that runs it: it has nothing to do from here on, or waits */
void ag_stream_note_rest(ag_stream *s);

/* wake.c */
/* called by the thread that ended the wait: hands the stream back to the executor */
void ag_stream_unpark(ag_stream *s);
void ag_stream_hand_over(ag_stream *s); /* the same, called by the thread that runs it */
void ag_stream_set_state(ag_stream *s, stream_state to);
void ag_stream_wake(ag_stream *s, uint64_t completed); /* wakes all that wait for a ticket up to `completed` */
bool ag_stream_awaited_on(ag_stream *s, uint64_t completed,
                          int cpu); /* whether a loop that sleeps there waits, as far as can be seen */
bool ag_stream_park_for(ag_stream *s, ag_stream *target, uint64_t ticket);

#endif
