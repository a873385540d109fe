/* Operations that are functions in Python: the stream asks for a call, and a thread of Python takes the call and ends
 * it.
 *
 * Not here: that thread (call_thread.py), when a stream asks (stream_step.c). */
#include "stream_state.h"

bool ag_stream_call_ended(ag_stream *s, ag_error **error)
{
    pthread_mutex_lock(&s->lock);
    bool ended = s->call == CALL_ENDED;
    if (ended) {
        *error = s->call_error;
        s->call_error = NULL;
        s->call = CALL_NONE;
    }
    pthread_mutex_unlock(&s->lock);
    return ended;
}

void ag_stream_ask_call(ag_stream *s, const ag_slot *slot, uint64_t ticket, size_t step)
{
    ag_stream_note_rest(s);
    pthread_mutex_lock(&s->lock);
    s->state = PARKED;
    s->call = CALL_ASKED;
    s->call_ticket = ticket;
    s->call_step = step;
    s->call_user = step != NO_STEP ? slot->u.plan.user : slot->u.call.user;
    pthread_cond_broadcast(&s->call_cond);
    pthread_mutex_unlock(&s->lock);
}

bool ag_stream_next_call(ag_stream *s, uint64_t timeout_ns, uint64_t *ticket)
{
    uint64_t deadline = ag_after(ag_now(), timeout_ns);
    if (!ag_stream_lock(s)) return false;
    while (s->call != CALL_ASKED) {
        bool finished = atomic_load(&s->closed) && atomic_load(&s->completed) == s->appended;
        if (finished || ag_cond_wait_until(&s->call_cond, &s->lock, deadline) != 0) {
            pthread_mutex_unlock(&s->lock);
            return false;
        }
    }
    s->call = CALL_TAKEN;
    *ticket = s->call_ticket;
    pthread_mutex_unlock(&s->lock);
    return true;
}

bool ag_stream_call_step(ag_stream *s, size_t *step_of_plan, void **user)
{
    if (!ag_stream_lock(s)) return false;
    bool taken = s->call == CALL_TAKEN, of_plan = taken && s->call_step != NO_STEP;
    *user = taken ? s->call_user : NULL;
    if (of_plan) *step_of_plan = s->call_step;
    pthread_mutex_unlock(&s->lock);
    return of_plan;
}

void ag_stream_finish_call(ag_stream *s, ag_error *error)
{
    if (!ag_stream_lock(s)) {
        ag_error_unref(error);
        return;
    }
    if (s->call != CALL_TAKEN) { /* no call was taken, so none can end */
        pthread_mutex_unlock(&s->lock);
        ag_error_unref(error);
        return;
    }
    s->call = CALL_ENDED;
    s->call_error = error;
    pthread_mutex_unlock(&s->lock);
    ag_stream_unpark(s);
}
