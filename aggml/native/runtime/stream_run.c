/* Running a stream: one operation after the other, by one thread at a time.
 *
 * Not here: how an operation is carried out (stream_step.c) and ends (stream_end.c), what a thread does that is not
 * a worker (stream_inline.c), plans over several threads (plan_run.c), waiting and waking (wake.c). */
#include "stream_inline.h"
#include "stream_state.h"
#include "stream_tell.h"

/* The slot of the next ticket, for the thread that runs the stream. The ring's reference moves on with it, under the
 * lock, because other threads may be looking through the ring (wait_graph.c). */
ag_slot *ag_stream_current(ag_stream *s, uint64_t ticket)
{
    while (ticket - s->head->base >= AG_BLOCK_SLOTS) {
        ag_block *done = s->head;
        pthread_mutex_lock(&s->lock);
        s->head = atomic_load_explicit(&done->next, memory_order_acquire);
        pthread_mutex_unlock(&s->lock);
        ag_block_unref(done);
    }
    return &s->head->slots[ticket - s->head->base];
}

/* True: there is nothing to run now, and this thread does not run the stream any more. */
bool ag_stream_rest(ag_stream *s, uint64_t ticket)
{
    bool idle = false, held = false;
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->submitted) < ticket) {
        s->state = IDLE;
        idle = true;
        if (atomic_load(&s->closed)) pthread_cond_broadcast(&s->call_cond); /* no further call will come */
    } else if (s->holds > 0) {
        s->state = HELD;
        s->clock = AG_TAIL; /* time during which the stream was held does not count */
        held = true;
        ag_stream_note_rest(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (idle) ag_stream_unref(s);
    return idle || held;
}

static void run_until_rest(ag_stream *s, ag_worker *worker, uint64_t *due)
{
    for (;;) {
        uint64_t ticket = atomic_load(&s->completed) + 1;
        if (atomic_load(&s->submitted) < ticket && ag_stream_rest(s, ticket)) return;
        if (worker != NULL && ag_pool_stopping(s->pool)) return; /* the process is ending */
        ag_slot *slot = ag_stream_current(s, ticket);
        /* A hold keeps operations from starting. One that is under way (a yielded plan, a delay) goes on. */
        if (slot->started == 0 && ag_stream_rest(s, ticket)) return;
        if (worker == NULL && !ag_inline_takes(slot)) {
            ag_stream_hand_over(s);
            return;
        }
        ag_error *error = NULL;
        if (!ag_stream_step(s, slot, ticket, worker, due, &error)) return;
        const bool plan = slot->kind == AG_KIND_PLAN;
        if (!ag_stream_end(s, slot, ticket, error)) continue;
        if (worker != NULL && !plan && ag_stream_tell_later(s, ticket, due)) continue;
        ag_stream_wake(s, ticket);
    }
}

/* `worker` is NULL on a thread that is not a worker. Such a thread runs the cheap operations at the head, for a
 * limited time (stream_inline.h). */
static void run_on(ag_stream *s, ag_worker *worker)
{
    uint64_t due = 0;
    run_until_rest(s, worker, &due);
    if (due != 0) ag_stream_tell(s, &due);
}

void ag_stream_run(ag_stream *stream, ag_worker *worker)
{
    /* on a submitting thread: the device's functions may block, so they are called elsewhere */
    if (stream->ahead != NULL) {
        stream->executor->ready(stream->executor, stream);
        return;
    }
    ag_stream_set_state(stream, RUNNING);
    run_on(stream, worker);
}

void ag_stream_plan_finished(ag_stream *stream, ag_worker *worker, ag_error *error)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    ag_stream_complete(stream, ag_stream_current(stream, ticket), ticket, error);
    run_on(stream, worker);
}

void ag_stream_plan_yielded(ag_stream *stream, size_t step_reached)
{
    stream->plan_step = step_reached;
    ag_stream_hand_over(stream);
}

void ag_stream_plan_calls(ag_stream *stream, size_t step_reached)
{
    uint64_t ticket = atomic_load(&stream->completed) + 1;
    stream->plan_step = step_reached;
    ag_stream_ask_call(stream, ag_stream_current(stream, ticket), ticket, step_reached);
}
