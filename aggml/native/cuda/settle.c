/* The end of an operation of a CUDA stream: waits for its event, then marks its ticket as done.
 *
 * The waiting thread blocks on recorded blocking-sync events (after polling for 50 us) and never on the stream, so that
 * one wake-up settles every operation that is done by then. Not here: the threads, what is in flight (queue.c). */
#include <time.h>

#include "state.h"

#define LOOK_NS 50000 /* a short operation ends before an interrupt could wake a sleeping thread */

const char *ag_cuda_tensor_of(ag_slot *slot)
{
    if (slot == NULL || slot->n_reads + slot->n_writes + slot->n_partial == 0) return NULL;
    ag_storage **storages = slot->many != NULL ? slot->many : slot->few;
    int target = slot->n_writes + slot->n_partial > 0 ? slot->n_reads : 0;
    return storages[target]->name;
}

/* Called in order by the thread that settles. */
void ag_cuda_finish(ag_cuda_queue *q, ag_flight *f, int code)
{
    ag_error *error = f->error;
    if (error == NULL) {
        error = q->left;
    } else {
        ag_error_unref(q->left);
    }
    q->left = NULL;
    ag_error *lost = atomic_load(&q->device->lost);
    if (error == NULL && f->event != NULL && lost != NULL) {
        f->slot->derived = true; /* every error code that the driver returns now repeats the first error */
        error = ag_error_ref(lost);
    } else if (error == NULL && code != AG_CU_OK) {
        error = ag_cuda_error(q->device, code, "cuEventSynchronize", f->slot->operation, ag_cuda_tensor_of(f->slot));
    }
    if (error == NULL && f->group != NULL) {
        ag_cuda_group_check(f->group); /* a sum may end with a wrong result */
        error = ag_cuda_group_broken(f->group);
    }
    if (error == NULL && f->out.item != 0) ag_copy_run(&f->out);
    if (f->ticket == 0) {
        q->left = error;
        return;
    }
    bool ran = f->ran;
    if (error == NULL && f->faults != NULL) {
        error = ag_cuda_plan_fault(f->slot->u.plan.plan, f->faults, q->name);
        if (error != NULL) ran = false; /* results that were written in part are cared for there */
    }
    if (f->follow) ag_cuda_followed(f->slot);
    if (f->slot->kind == AG_KIND_COPY) f->slot->moved = ag_copy_size(&f->slot->u.copy);
    if (f->slot->kind == AG_KIND_FILL) f->slot->moved = f->slot->u.fill.size;
    ag_stream *stream = f->stream;
    ag_stream_settle(stream, f->ticket, error, ran);
    ag_stream_unref(stream);
}

/* A kernel of NCCL waits for the kernels of the other GPUs, which may be lost. So this thread never blocks on its
 * event, but polls, and checks now and then whether the group is whole. */
static int wait_for_sum(const ag_cuda_queue *q, void *event, ag_cuda_group *group)
{
    struct timespec moment = {.tv_nsec = 20000};
    int code;
    while ((code = ag_cu.cuEventQuery(event)) == AG_CU_NOT_READY && atomic_load(&q->device->lost) == NULL) {
        ag_cuda_group_check(group);
        (void)nanosleep(&moment, NULL);
        if (moment.tv_nsec < 1000000) moment.tv_nsec *= 2;
    }
    return code;
}

/* An event that cannot be waited for says nothing of what is before it: that is through with the stream at the
 * latest. */
static int wait_for(ag_cuda_queue *q, void *event, ag_cuda_group *group)
{
    uint64_t until = ag_now() + LOOK_NS;
    int code;
    while ((code = ag_cu.cuEventQuery(event)) == AG_CU_NOT_READY && ag_now() < until) ag_pause();
    if (code == AG_CU_NOT_READY && group != NULL) code = wait_for_sum(q, event, group);
    if (code == AG_CU_NOT_READY) code = ag_cu.cuEventSynchronize(event);
    if (code != AG_CU_OK && !ag_cuda_sticky(code)) (void)ag_cu.cuStreamSynchronize(q->cuda);
    return code;
}

static void retire(ag_cuda_queue *q, const ag_flight *f)
{
    pthread_mutex_lock(&q->lock);
    if (f->event != NULL) q->events[q->n_events++] = f->event;
    if (f->ring_end != 0) q->ring_tail = f->ring_end;
    if (f->plan) --q->n_plans;
    if (f->follow) --q->n_follows;
    q->first = (q->first + 1) % AG_CUDA_FLIGHTS;
    atomic_fetch_sub(&q->n_flights, 1);
    pthread_cond_broadcast(&q->settled);
    pthread_mutex_unlock(&q->lock);
}

void ag_cuda_settle(ag_cuda_queue *q, ag_flight *flight, bool *entered)
{
    int code = AG_CU_OK;
    if (flight->event != NULL && atomic_load(&q->device->lost) == NULL) {
        if (!*entered) *entered = ag_cu.cuCtxSetCurrent(q->device->context) == AG_CU_OK;
        code = wait_for(q, flight->event, flight->group);
    }
    ag_cuda_finish(q, flight, code);
    retire(q, flight);
}
