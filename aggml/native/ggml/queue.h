/* A queue and what it has in flight: for queue.c, issue.c, flights.c, events.c and lost.c alone. */
#ifndef AG_GGML_QUEUE_H
#define AG_GGML_QUEUE_H

#include "state.h"

#define AG_GGML_FLIGHTS 16 /* operations that are issued and not settled, at most */
#define AG_GGML_PLANS 2    /* plans among them */

/* An event of the library. It is recorded anew only when nothing waits for it any more. */
typedef struct ag_ggml_event {
    ag_ggml_handle *handle;
    int refs; /* flights; under the device's lock */
    struct ag_ggml_event *next;
} ag_ggml_event;

/* An operation that was issued. */
typedef struct ag_ggml_flight {
    uint64_t ticket;
    ag_stream *stream; /* a reference */
    ag_slot *slot;
    ag_error *error;
    bool ran;    /* the device was told to work on it */
    bool waits;  /* the device may still be at it */
    bool plan;   /* it is one of the few plans in flight */
    bool follow; /* it waits for another queue */
    bool owes;   /* a plan on a server, and nothing that the server answers was issued behind it */
    uint8_t byte;
    ag_ggml_event *event;       /* recorded behind it; NULL: none */
    ag_ggml_event *followed;    /* of the other queue, which this one's device waits for */
    ag_ggml_built *built;       /* the graph that runs */
    ag_ggml_buffer *buffers[2]; /* of a transfer */
} ag_ggml_flight;

struct ag_ggml_queue {
    ag_ahead ahead;  /* first: the stream knows the queue by it */
    atomic_int refs; /* the stream, the thread, one that took over */
    ag_ggml_device *device;
    ag_stream *stream;           /* under the device's lock; NULL once gone */
    ag_ggml_queue *next, **link; /* among the device's */
    ag_ggml_queue *next_all, **link_all;
    ag_ggml_handle *backend;
    char name[AG_NAME];
    bool async; /* operations are issued before those in front of them are done */
    pthread_mutex_t lock;
    pthread_cond_t to_issue;
    atomic_bool ready, stop;
    unsigned epoch;      /* under the lock: how often another thread has taken over */
    uint64_t call_since; /* under the lock: when the call began that the thread is in; 0: none */
    bool issuing;        /* under the lock: in that call the library may read and write memory of the caller's */
    /* Written by the queue's thread under the lock, read by threads of other queues. */
    ag_ggml_flight flights[AG_GGML_FLIGHTS];
    size_t first, n_flights;
    /* The thread's alone. */
    bool running;      /* it is on its way through the stream */
    uint64_t unpushed; /* the ticket that is to be issued, until it is among the flights; 0: none */
    ag_stream *unpushed_of;
    int n_plans;
    unsigned unsynced;        /* events waited for since the backend was last synchronized */
    ag_ggml_event *following; /* what the wait that is issued next waits for */
};

/* -- flights.c */

/* Run `call` in the library. Does not return if another thread has taken over meanwhile. `issuing`: it is no mere
 * waiting, so the lock of a backend that is not made for several threads is held. */
bool ag_ggml_inside(ag_ggml_queue *q, ag_ggml_call *call, void *argument, bool issuing, char *message);
ag_error *ag_ggml_failure(const ag_ggml_queue *q, const ag_slot *slot, const char *message);

/* By the queue's thread. */

ag_ggml_flight *ag_ggml_push(ag_ggml_queue *q, ag_stream *stream, ag_slot *slot, uint64_t ticket);
void ag_ggml_settle(ag_ggml_queue *q);                 /* the oldest one, which is waited for */
void ag_ggml_settle_ended(ag_ggml_queue *q);           /* those that need no waiting */
void ag_ggml_settle_lost(ag_ggml_queue *q);            /* all, by who took over */
ag_ggml_flight *ag_ggml_clear_debts(ag_ggml_queue *q); /* no flight owes any more; the last that did, or NULL */
void ag_ggml_pay(ag_ggml_queue *q);                    /* guarded: what they owe is asked for */
void ag_ggml_drain(ag_ahead *ahead);
void ag_ggml_admit(ag_ahead *ahead);

/* -- events.c */

void ag_ggml_record(ag_ggml_queue *q, ag_ggml_flight *flight); /* guarded; an event that tells when it has ended */
void ag_ggml_event_unref(ag_ggml_device *device, ag_ggml_event *event);
bool ag_ggml_follow(ag_ahead *ahead, ag_stream *other, uint64_t ticket);
void ag_ggml_end_follow(const ag_slot *slot);

/* -- issue.c */

void ag_ggml_issue(ag_ahead *ahead, ag_stream *stream, ag_slot *slot, uint64_t ticket, ag_error *error);

#endif
