/* Events of a library: the device of a queue waits for another queue of the same device, without blocking a thread.
 *
 * Devices of two servers, or two processors of Vulkan, do not know each other's events. Between those the thread
 * waits, as for streams of other backends. An event goes back to its device when no flight needs it any more: Vulkan
 * resets an event when it is recorded again, so a thread that still had to wait for the old recording would wait for
 * ever. Not here: the flights (flights.c). */
#include <stdlib.h>
#include <time.h>

#include "queue.h"

#define LOOK_NS 50000 /* how long a thread polls for a due event before it sleeps between polls */

/* Under the other queue's lock: a reference to an event that is recorded no sooner than behind the ticket. */
static ag_ggml_event *event_behind(ag_ggml_queue *from, uint64_t ticket)
{
    ag_ggml_event *event = NULL;
    for (size_t k = 0; k < from->n_flights && event == NULL; ++k) {
        const ag_ggml_flight *flight = &from->flights[(from->first + k) % AG_GGML_FLIGHTS];
        if (flight->ticket >= ticket) event = flight->event;
    }
    if (event == NULL) return NULL;
    pthread_mutex_lock(&from->device->lock);
    ++event->refs;
    pthread_mutex_unlock(&from->device->lock);
    return event;
}

/* NULL: the ticket is done, or it will not be issued soon. In the second case the thread of this queue parks. */
static ag_ggml_event *look_for(ag_ggml_queue *from, ag_stream *stream, uint64_t ticket)
{
    for (uint64_t until = ag_now() + LOOK_NS; ag_stream_completed(stream) < ticket;) {
        pthread_mutex_lock(&from->lock);
        ag_ggml_event *event = event_behind(from, ticket);
        pthread_mutex_unlock(&from->lock);
        if (event != NULL || ag_now() > until || ag_stream_stands(stream)) return event;
        ag_pause();
    }
    return NULL;
}

typedef struct recording {
    ag_ggml_queue *queue;
    ag_ggml_event *event;
} recording;

static ag_ggml_event *take(ag_ggml_device *device)
{
    pthread_mutex_lock(&device->lock);
    ag_ggml_event *event = device->events;
    if (event != NULL) device->events = event->next;
    pthread_mutex_unlock(&device->lock);
    if (event == NULL) event = calloc(1, sizeof *event);
    if (event != NULL) event->refs = 1;
    return event;
}

void ag_ggml_record(ag_ggml_queue *q, ag_ggml_flight *flight)
{
    const ag_ggml_functions *f = q->device->f;
    ag_ggml_event *event = take(q->device);
    if (event == NULL) return;
    if (event->handle == NULL) event->handle = f->ggml_backend_event_new(q->device->handle);
    if (event->handle == NULL) {
        free(event);
        return;
    }
    f->ggml_backend_event_record(event->handle, q->backend);
    pthread_mutex_lock(&q->lock);
    flight->event = event;
    pthread_mutex_unlock(&q->lock);
}

void ag_ggml_event_unref(ag_ggml_device *device, ag_ggml_event *event)
{
    if (event == NULL) return;
    pthread_mutex_lock(&device->lock);
    if (--event->refs == 0) {
        event->next = device->events;
        device->events = event;
    }
    pthread_mutex_unlock(&device->lock);
}

static void wait_on_device(void *argument)
{
    recording *r = argument;
    r->queue->device->f->ggml_backend_event_wait(r->queue->backend, r->event->handle);
}

bool ag_ggml_follow(ag_ahead *ahead, ag_stream *other, uint64_t ticket)
{
    ag_ggml_queue *q = (ag_ggml_queue *)ahead;
    ag_ahead *theirs = ag_stream_ahead(other);
    char message[AG_GGML_MESSAGE];
    if (!q->async || theirs == NULL || theirs == ahead || theirs->follow != ag_ggml_follow) return false;
    ag_ggml_queue *from = (ag_ggml_queue *)theirs;
    if (from->device != q->device || atomic_load(&q->device->lost) != NULL) return false;
    ag_ggml_event *event = look_for(from, other, ticket);
    if (event == NULL) return false;
    recording r = {q, event};
    if (!ag_ggml_guarded(q->device, wait_on_device, &r, message)) {
        ag_ggml_event_unref(q->device, event);
        return false;
    }
    q->following = event;
    atomic_fetch_add(&q->device->n_followed, 1);
    return true;
}

/* The device is past the wait; the thread of the other queue will see the same event soon. */
void ag_ggml_end_follow(const ag_slot *slot)
{
    const struct timespec moment = {.tv_nsec = 20000};
    uint64_t until = ag_now() + LOOK_NS;
    while (ag_stream_completed(slot->u.wait.stream) < slot->u.wait.ticket) {
        if (ag_now() < until) {
            ag_pause();
        } else {
            (void)nanosleep(&moment, NULL);
        }
    }
}
