/* Waits between queues: the device itself waits if both are CUDA streams of this process, on one device or two.
 *
 * The other queue's flights tell which of its events marks that a ticket is reached. Readers of the results on the host
 * are still notified in order: the wait is not settled before that ticket, so that a failure there is known here. Not
 * here: waits for other streams, during which the issuing thread parks (runtime/stream.c). */
#include <time.h>

#include "state.h"

#define LOOK_NS 50000 /* how long a thread polls for a ticket that is due, before it sleeps briefly between polls */

static void pause_until(uint64_t until)
{
    const struct timespec moment = {.tv_nsec = 20000};
    if (ag_now() < until) {
        ag_pause();
    } else {
        (void)nanosleep(&moment, NULL);
    }
}

typedef enum found { IS_DONE, NOT_ISSUED, HOST_SIDE, WAITS } found;

/* Finds the event of the other queue's last flight up to the ticket. The other queue's lock is held. */
static found event_of(const ag_cuda_queue *q, const ag_stream *stream, uint64_t ticket, void **event)
{
    *event = NULL;
    if (ag_stream_completed(stream) >= ticket) return IS_DONE;
    for (int i = 0; i < q->n_flights; ++i) {
        const ag_flight *f = &q->flights[(q->first + (size_t)i) % AG_CUDA_FLIGHTS];
        if (f->out.item != 0) return HOST_SIDE; /* that queue's waiting thread has yet to write host memory */
        if (f->event != NULL) *event = f->event;
        if (f->ticket >= ticket) return *event == NULL ? IS_DONE : WAITS;
    }
    return NOT_ISSUED;
}

bool ag_cuda_follow(ag_ahead *ahead, ag_stream *other, uint64_t ticket)
{
    ag_cuda_queue *q = (ag_cuda_queue *)ahead;
    ag_ahead *theirs = ag_stream_ahead(other);
    if (theirs == NULL || theirs->follow != ag_cuda_follow || theirs == ahead) return false;
    ag_cuda_queue *from = (ag_cuda_queue *)theirs;
    const char *call;
    if (ag_cuda_open(q, &call) != AG_CU_OK) return false;
    for (uint64_t until = ag_now() + LOOK_NS;;) {
        void *event;
        if (atomic_load(&q->device->lost) != NULL || atomic_load(&from->device->lost) != NULL) return false;
        /* The lock is held during the call, because an event is recorded again once its flight is retired. */
        pthread_mutex_lock(&from->lock);
        found what = event_of(from, other, ticket, &event);
        int code = what == WAITS ? ag_cu.cuStreamWaitEvent(q->cuda, event, 0) : AG_CU_OK;
        pthread_mutex_unlock(&from->lock);
        if (what == WAITS && code == AG_CU_OK) return q->following = true;
        /* The other thread is about to issue it, or the stream stands: then it may be long, and this one parks. */
        if (what != NOT_ISSUED || atomic_load(&q->stop) || ag_stream_stands(other)) return false;
        pause_until(until);
    }
}

/* By the settling thread, when the device is past the wait: the other queue's thread sees the same event, soon. */
void ag_cuda_end_follow(const ag_slot *slot)
{
    uint64_t until = ag_now() + LOOK_NS;
    while (ag_stream_completed(slot->u.wait.stream) < slot->u.wait.ticket) pause_until(until);
}
