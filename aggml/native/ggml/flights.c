/* The operations that a queue has issued and not settled: waiting for the device, settling in order.
 *
 * A device whose library takes work asynchronously gets operations while it computes. The queue's single thread
 * issues everything that is ready, then waits for the oldest flight: by its event or, if nothing is behind it, by
 * synchronizing the backend. On other devices an operation has ended when its call returns. Not here: which calls are
 * made (issue.c), waits between queues (events.c). */
#include <unistd.h>

#include "queue.h"

/* after so many events the backend is synchronized, because Vulkan frees what a graph used only then */
#define TIDY 64

bool ag_ggml_inside(ag_ggml_queue *q, ag_ggml_call *call, void *argument, bool issuing, char *message)
{
    pthread_mutex_lock(&q->lock);
    unsigned epoch = q->epoch;
    bool lost = atomic_load(&q->device->lost) != NULL; /* if so, no other thread comes to take over */
    q->call_since = lost ? 0 : ag_now();
    q->issuing = issuing;
    pthread_mutex_unlock(&q->lock);
    message[0] = '\0';
    if (lost) return false;
    bool fine = ag_ggml_guarded(issuing ? q->device : NULL, call, argument, message);
    pthread_mutex_lock(&q->lock);
    bool mine = q->epoch == epoch;
    q->call_since = mine ? 0 : q->call_since;
    pthread_mutex_unlock(&q->lock);
    while (!mine) pause(); /* another thread has taken over the queue: this one may not touch anything any more */
    return fine;
}

ag_error *ag_ggml_failure(const ag_ggml_queue *q, const ag_slot *slot, const char *message)
{
    ag_error *error = ag_ggml_lost(q->device);
    if (error != NULL) return error;
    error = ag_error_new(AG_DEVICE_ERROR, q->name, slot->operation, NULL, message);
    if (q->device->remote) ag_ggml_lose(q->device, error);
    return error;
}

ag_ggml_flight *ag_ggml_push(ag_ggml_queue *q, ag_stream *stream, ag_slot *slot, uint64_t ticket)
{
    while (q->n_flights == AG_GGML_FLIGHTS) ag_ggml_settle(q);
    ag_ggml_flight *flight = &q->flights[(q->first + q->n_flights) % AG_GGML_FLIGHTS];
    pthread_mutex_lock(&q->lock);
    *flight = (ag_ggml_flight){.ticket = ticket, .stream = ag_stream_ref(stream), .slot = slot};
    ++q->n_flights;
    q->unpushed = 0;
    pthread_mutex_unlock(&q->lock);
    return flight;
}

/* An answer shows that all graphs in front of it have ended. */
ag_ggml_flight *ag_ggml_clear_debts(ag_ggml_queue *q)
{
    ag_ggml_flight *last = NULL;
    for (size_t k = 0; k < q->n_flights; ++k) {
        ag_ggml_flight *flight = &q->flights[(q->first + k) % AG_GGML_FLIGHTS];
        if (flight->owes) last = flight;
        flight->owes = false;
    }
    return last;
}

void ag_ggml_pay(ag_ggml_queue *q)
{
    ag_ggml_flight *last = ag_ggml_clear_debts(q);
    if (last != NULL) ag_ggml_plan_tail(q->backend, last->built, &last->byte);
}

typedef struct waiting {
    ag_ggml_queue *queue;
    ag_ggml_event *event; /* NULL: for all of the backend */
} waiting;

static void wait_inside(void *argument)
{
    waiting *w = argument;
    const ag_ggml_functions *f = w->queue->device->f;
    if (w->event != NULL) {
        f->ggml_backend_event_synchronize(w->event->handle);
    } else {
        ag_ggml_pay(w->queue);
        f->ggml_backend_synchronize(w->queue->backend);
    }
}

/* How many of the oldest flights the next event covers; 0: there is no event, or the backend has to be synchronized. */
static size_t count_until_event(const ag_ggml_queue *q, ag_ggml_event **event)
{
    if (q->unsynced >= TIDY) return 0;
    for (size_t k = 0; k + 1 < q->n_flights; ++k) { /* if the last one is meant, all of the backend is */
        const ag_ggml_flight *flight = &q->flights[(q->first + k) % AG_GGML_FLIGHTS];
        *event = flight->event;
        if (*event != NULL) return k + 1;
    }
    return 0;
}

static void wait_for_first(ag_ggml_queue *q)
{
    char message[AG_GGML_MESSAGE];
    waiting w = {q, NULL};
    size_t n = count_until_event(q, &w.event);
    if (n == 0) w.event = NULL;
    bool fine = ag_ggml_inside(q, wait_inside, &w, false, message);
    q->unsynced = n == 0 ? 0 : q->unsynced + 1;
    for (size_t k = 0; k < (n == 0 ? q->n_flights : n); ++k) {
        ag_ggml_flight *flight = &q->flights[(q->first + k) % AG_GGML_FLIGHTS];
        if (!fine && flight->waits && flight->error == NULL) flight->error = ag_ggml_failure(q, flight->slot, message);
        flight->waits = false;
    }
}

static void pop(ag_ggml_queue *q)
{
    ag_ggml_flight flight = q->flights[q->first];
    if (flight.plan) --q->n_plans;
    pthread_mutex_lock(&q->lock);
    q->first = (q->first + 1) % AG_GGML_FLIGHTS;
    --q->n_flights;
    pthread_mutex_unlock(&q->lock);
    ag_ggml_event_unref(q->device, flight.event);
    ag_ggml_event_unref(q->device, flight.followed);
    ag_ggml_built_unref(flight.built);
    ag_ggml_buffer_unref(flight.buffers[0]);
    ag_ggml_buffer_unref(flight.buffers[1]);
    if (flight.follow && flight.error == NULL) ag_ggml_end_follow(flight.slot);
    ag_stream_settle(flight.stream, flight.ticket, flight.error, flight.ran);
    ag_stream_unref(flight.stream); /* the last thing of it: with the stream the queue may end */
}

void ag_ggml_settle(ag_ggml_queue *q)
{
    if (q->flights[q->first].waits) wait_for_first(q);
    pop(q);
}

void ag_ggml_settle_ended(ag_ggml_queue *q)
{
    while (q->n_flights > 0 && !q->flights[q->first].waits) pop(q);
}

void ag_ggml_settle_lost(ag_ggml_queue *q)
{
    while (q->n_flights > 0) {
        ag_ggml_flight *flight = &q->flights[q->first];
        if (flight->error == NULL) flight->error = ag_ggml_lost(q->device);
        pop(q);
    }
    uint64_t ticket = q->unpushed; /* the ticket for which the thread was making room */
    q->unpushed = 0;
    if (ticket != 0) ag_stream_settle(q->unpushed_of, ticket, ag_ggml_lost(q->device), false);
}

void ag_ggml_drain(ag_ahead *ahead)
{
    ag_ggml_queue *q = (ag_ggml_queue *)ahead;
    while (q->n_flights > 0) ag_ggml_settle(q);
}

void ag_ggml_admit(ag_ahead *ahead)
{
    ag_ggml_queue *q = (ag_ggml_queue *)ahead;
    while (q->n_plans >= AG_GGML_PLANS) ag_ggml_settle(q);
}
