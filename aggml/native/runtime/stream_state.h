/* The stream's state, for the files that look into it: stream.c, and around it wake.c, submit.c, wait_graph.c,
 * stream_inline.c, stream_ahead.c, and those of the pool. */
#ifndef AG_STREAM_STATE_H
#define AG_STREAM_STATE_H

#include "internal.h"
#include "timer.h"

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
    uint64_t served;       /* for the pool (pool_turns.c) */
    ag_stream *next_resting;
    atomic_bool keeps, in_resting; /* see the list of resting streams in stream.c */
    void *owner;                   /* belongs to the binding */
    ag_timer timer;
    ag_stream *next_living, **link_living;
};

/* False in the child of a fork: the stream is the parent's. */
static inline bool ag_stream_here(const ag_stream *s)
{
    return s->generation == atomic_load(&ag_generation);
}

/* False in the child of a fork: a thread of the parent may have held the lock, so it may never be released. */
static inline bool ag_stream_lock(ag_stream *s)
{
    if (!ag_stream_here(s)) return false;
    pthread_mutex_lock(&s->lock);
    return true;
}

static inline ag_stream *ag_stream_add_ref(ag_stream *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

static inline ag_storage **ag_slot_storages(ag_slot *slot) /* reads, then full writes, then partial writes */
{
    return slot->many != NULL ? slot->many : slot->inline_storages;
}

/* Called by the thread that runs the slot. */
static inline bool ag_is_aborting(const ag_stream *s, const ag_slot *slot)
{
    if (atomic_load_explicit(&slot->abort, memory_order_relaxed)) return true;
    if (slot->kind != AG_KIND_PLAN && slot->kind != AG_KIND_DELAY && slot->kind != AG_KIND_CALL) return false;
    return atomic_load_explicit(&s->completed, memory_order_relaxed) <
           atomic_load_explicit(&s->abort_up_to, memory_order_relaxed);
}

/* wake.c: the waits for tickets of a stream. */

enum { AG_WAIT_LOOPS = 8 }; /* loops that are signalled together */

/* Adds a wait for `ticket` of `target`, whose lock the caller holds. False: it is done already; nothing was added. */
bool ag_wait_add(ag_wait *wait, ag_stream *target, uint64_t ticket);
/* Takes what is due out of the stream's waits. Waits of loops go to their notifiers, which are noted, with a
 * reference, to be signalled; parked streams go into a list. False: there are more loops than room. The caller holds
 * the lock. */
bool ag_wait_take_due(ag_stream *s, uint64_t completed, ag_notifier **loops, size_t *n, ag_wait **streams);
/* Ends the wait. Returns the stream that it was for, with the wait's reference; NULL: it was neither armed nor due. */
ag_stream *ag_wait_withdraw(ag_wait *wait);
/* Whether a loop that sleeps on that core waits for a ticket up to `completed`, as far as can be seen. */
bool ag_stream_is_awaited_on(ag_stream *s, uint64_t completed, int cpu);

/* stream.c */
ag_block *ag_block_new(void);
void ag_stream_set_state(ag_stream *s, stream_state to);
/* The slot of the next ticket, for the thread that runs the stream. */
ag_slot *ag_stream_current(ag_stream *s, uint64_t ticket);
/* True: there is nothing to run now, and this thread does not run the stream any more. */
bool ag_stream_rest(ag_stream *s, uint64_t ticket);
ag_error *ag_stream_abort_error(ag_stream *s, const ag_slot *slot);
ag_error *ag_slot_poison(ag_slot *slot); /* the error that poisons what it reads: a reference, or NULL */
/* The part of an operation that the host does for any device. False: the stream is parked, and goes on when what the
 * operation waits for has come. */
bool ag_stream_step_of_host(ag_stream *s, ag_slot *slot, uint64_t ticket, bool first, ag_error **error);
/* Ends the current operation, takes over the reference to `error`, and wakes those that wait for it. */
void ag_stream_complete(ag_stream *s, ag_slot *slot, uint64_t ticket, ag_error *error);

#endif
