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
    ag_ahead *ahead; /* instead of the pool: who issues operations before those before them are done */
    atomic_int n_threads;

    pthread_mutex_t lock;
    stream_state state;
    int holds;
    atomic_bool closed; /* written under the lock */
    uint64_t appended;  /* under the lock; becomes `submitted` when a submission is complete */
    ag_block *tail;
    ag_block *spare; /* blocks made before a submission begins, so that it cannot fail halfway */
    ag_heap waits;   /* ag_wait: loops and parked streams that want a ticket of this one */
    ag_error **failures;
    size_t n_failures, cap_failures;
    uint64_t more_failures; /* that nobody saw either, and that are not kept */
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
    ag_wait self;     /* this stream's entry among the waits of another one */
    uint64_t issued;  /* with `ahead`: the latest ticket that was handed to it; head is the settling thread's then */
    ag_block *cursor; /* and the block where that lies */

    pthread_cond_t call_cond;
    call_state call; /* this and what follows: under the lock */
    uint64_t call_ticket;
    size_t call_step; /* of a plan, NO_STEP if the operation is the call */
    void *call_user;
    ag_error *call_error;

    ag_stream *next_ready; /* for the executor */
    int bank;              /* the same */
    ag_stream *next_resting;
    atomic_bool keeps, in_resting; /* rest.c */
    void *owner;                   /* the binding's */
    int timers;                    /* whose it belongs to: a bank's; written once */
    ag_node timer;                 /* under the lock of the timers, as what follows */
    uint64_t timed;                /* the ticket that it waits for there; 0: none */
    ag_stream *next_living, **link_living;
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

/* stream_run.c */
ag_slot *ag_stream_current(ag_stream *s, uint64_t ticket);
bool ag_stream_rest(ag_stream *s, uint64_t ticket);

/* stream_step.c */
ag_error *ag_stream_aborted(ag_stream *s, const ag_slot *slot);
ag_error *ag_slot_poisoned(ag_slot *slot); /* what its reads are poisoned with: a reference, or NULL */
/* False: the stream is parked, yielded, or another thread has it. `due`: as in stream_tell.h. */
bool ag_stream_step(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_worker *worker, uint64_t *due, ag_error **error);
/* The part of it that the host does on any device. False: the stream is parked, and runs on when what the operation
 * waits for has come. */
bool ag_stream_step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error);

/* stream_call.c */
bool ag_stream_call_ended(ag_stream *s, ag_error **error); /* that the operation asked for; tells once */
/* The thread that serves calls has the stream from here on. `step` of the plan, or NO_STEP. */
void ag_stream_ask_call(ag_stream *s, const ag_slot *slot, uint64_t ticket, size_t step);

/* stream_end.c: both end the current operation and take the reference to `error`. */
bool ag_stream_end(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error); /* whether somebody waits for it */
void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error); /* and wakes who does */

/* rest.c */
void ag_stream_note_rest(ag_stream *s); /* by who runs it: it has nothing to do from here on, or waits */

/* wake.c */
void ag_stream_unpark(ag_stream *s);    /* by whoever ended the wait: back to the executor */
void ag_stream_hand_over(ag_stream *s); /* by the thread that runs it: the same */
void ag_stream_set_state(ag_stream *s, stream_state to);
void ag_stream_wake(ag_stream *s, uint64_t completed); /* all that waits for a ticket up to `completed` */
bool ag_stream_awaited_on(ag_stream *s, uint64_t completed,
                          int cpu); /* by a loop that sleeps there, as far as is seen */
bool ag_stream_park_for(ag_stream *s, ag_stream *target, uint64_t ticket);

#endif
