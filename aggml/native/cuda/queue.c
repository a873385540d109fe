/* A CUDA stream: the end of an operation, the thread that waits for events and settles, the thread that issues, life.
 *
 * Not here: what is in flight (flights.c), what an operation issues (copy.c, experts.c, plan.c), order and failure
 * (stream_ahead.c). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "state.h"

#define LOOK_NS 50000   /* a short operation ends before an interrupt could wake a sleeping thread */
#define LINGER_NS 20000 /* how long the issuing thread polls for the next operation before it sleeps */

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_CUDA];
static pthread_cond_t all_cond = PTHREAD_COND_INITIALIZER;
static ag_cuda_queue *all;
static int all_threads;

static void queue_unref(ag_cuda_queue *q)
{
    if (atomic_fetch_sub_explicit(&q->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&q->to_issue);
    pthread_cond_destroy(&q->to_settle);
    pthread_cond_destroy(&q->settled);
    pthread_mutex_destroy(&q->lock);
    ag_error_unref(q->left);
    ag_cuda_device_unref(q->device);
    free(q);
}

static void drain(ag_ahead *ahead)
{
    ag_cuda_drain((ag_cuda_queue *)ahead);
}

static void admit(ag_ahead *ahead)
{
    ag_cuda_queue *q = (ag_cuda_queue *)ahead;
    pthread_mutex_lock(&q->lock);
    while (q->n_plans >= AG_CUDA_PLANS) pthread_cond_wait(&q->settled, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

/* -- plans: what they do is told by plan.c, which lies above ------------------------------------------------------- */

static _Atomic(const ag_cuda_plan_calls *) plan_calls; /* NULL: there is no plan yet */

void ag_cuda_set_plan_calls(const ag_cuda_plan_calls *calls)
{
    atomic_store(&plan_calls, calls);
}

/* NULL: it is no plan of CUDA. */
static const ag_cuda_plan_calls *calls_of(const ag_slot *slot)
{
    const ag_cuda_plan_calls *calls = atomic_load(&plan_calls);
    const ag_plan *plan = slot->kind == AG_KIND_PLAN ? slot->u.plan.plan : NULL;
    return calls != NULL && plan != NULL && plan->device != NULL && plan->drop_device == calls->drop ? calls : NULL;
}

/* -- the end of an operation: waits for its event, then marks its ticket as done ------------------------------------
 *
 * The waiting thread blocks on recorded blocking-sync events (after polling for 50 us) and never on the stream, so that
 * one wake-up settles every operation that is done by then. */

/* Called in order by the thread that settles. */
static void finish(ag_cuda_queue *q, ag_flight *f, int code)
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
        error = ag_cuda_group_error(f->group);
    }
    if (error == NULL && f->out.item != 0) ag_copy_run(&f->out);
    if (f->ticket == 0) {
        q->left = error;
        return;
    }
    bool ran = f->ran;
    if (error == NULL && f->faults != NULL) {
        error = calls_of(f->slot)->fault(f->slot->u.plan.plan, f->faults, q->name);
        if (error != NULL) ran = false; /* results that were written in part are cared for there */
    }
    if (f->follow) ag_cuda_end_follow(f->slot);
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

static void settle(ag_cuda_queue *q, ag_flight *flight, bool *entered)
{
    int code = AG_CU_OK;
    if (flight->event != NULL && atomic_load(&q->device->lost) == NULL) {
        if (!*entered) *entered = ag_cu.cuCtxSetCurrent(q->device->context) == AG_CU_OK;
        code = wait_for(q, flight->event, flight->group);
    }
    finish(q, flight, code);
    retire(q, flight);
}

/* An operation that needs no device is settled here if none is in flight before it: this saves one hand-over. */
static void fly_without_event(ag_cuda_queue *q, ag_flight *flight)
{
    if (atomic_load(&q->n_flights) == 0) {
        finish(q, flight, AG_CU_OK);
    } else {
        ag_cuda_push(q, flight);
    }
}

/* -- the waiting thread --------------------------------------------------------------------------------------- */

static void close_queue(ag_cuda_queue *q) /* by the last of its threads */
{
    if (q->cuda != NULL && ag_cuda_context(q->device) == AG_CU_OK) {
        for (size_t i = 0; i < q->n_events; ++i) (void)ag_cu.cuEventDestroy(q->events[i]);
        if (q->ring != NULL) ag_cuda_host_free(q->device, q->ring);
        (void)ag_cu.cuStreamDestroy(q->cuda);
        if (q->scratch != 0) ag_cuda_free(q->device, q->scratch);
        ag_cuda_sweep(q->device);
    }
    q->n_events = 0;
    q->ring = NULL;
    q->cuda = NULL;
    q->scratch = 0;
    q->scratch_size = 0;
}

static void end_thread(ag_cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool last = --q->n_threads == 0;
    pthread_cond_broadcast(&q->to_settle); /* only now: the waiting thread ends once it is the last one */
    pthread_mutex_unlock(&q->lock);
    if (last) close_queue(q);
    pthread_mutex_lock(all_lock);
    if (last) {
        *q->link_all = q->next_all;
        if (q->next_all != NULL) q->next_all->link_all = q->link_all;
    }
    --all_threads;
    pthread_cond_broadcast(&all_cond);
    pthread_mutex_unlock(all_lock);
    queue_unref(q);
}

static void *settle_all(void *argument)
{
    ag_cuda_queue *q = argument;
    bool entered = false;
    for (;;) {
        if (q->n_flights == 0) {
            void (*idle)(void) = atomic_load(&ag_on_idle);
            if (entered && idle != NULL) idle();
        }
        pthread_mutex_lock(&q->lock);
        while (q->n_flights == 0 && !(atomic_load(&q->stop) && q->n_threads == 1))
            pthread_cond_wait(&q->to_settle, &q->lock);
        if (q->n_flights == 0) break;
        ag_flight flight = q->flights[q->first];
        pthread_mutex_unlock(&q->lock);
        settle(q, &flight, &entered);
    }
    pthread_mutex_unlock(&q->lock);
    end_thread(q);
    return NULL;
}

/* -- the issuing thread --------------------------------------------------------------------------------------- */

static int begin(ag_cuda_issue *issue, ag_slot *slot, ag_error **error)
{
    int code = ag_cuda_open(issue->queue, &issue->call);
    if (code != AG_CU_OK) return code;
    switch (slot->kind) {
    case AG_KIND_COPY: return ag_cuda_issue_copy(issue, &slot->u.copy);
    case AG_KIND_EXPERTS: return ag_cuda_issue_experts(issue, slot, error);
    case AG_KIND_FILL: return ag_cuda_issue_fill(issue);
    default:
        if (calls_of(slot) != NULL) return calls_of(slot)->issue(issue, error);
        *error = ag_error_new(AG_UNSUPPORTED, issue->queue->name, slot->operation, NULL,
                              "the plan was compiled for another device");
        return AG_CU_OK;
    }
}

static void issue_one(ag_ahead *ahead, ag_stream *stream, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    ag_cuda_queue *q = (ag_cuda_queue *)ahead;
    ag_flight flight = {.ticket = ticket, .stream = ag_stream_ref(stream), .slot = slot, .error = error};
    bool works = slot->kind == AG_KIND_COPY || slot->kind == AG_KIND_EXPERTS || slot->kind == AG_KIND_FILL ||
                 slot->kind == AG_KIND_PLAN;
    if (q->following) {
        q->following = false;
        flight.follow = true;
        if (error == NULL && ag_cuda_fly(q, flight) == AG_CU_OK) return;
        ag_cuda_push(q, &flight); /* without an event: the next flight in the stream has one */
        return;
    }
    bool sums = calls_of(slot) != NULL &&
                calls_of(slot)->is_sum(slot->u.plan.plan); /* with an error, too: the other GPUs wait for this one */
    if ((error == NULL && works) || sums) {
        ag_cuda_issue issue = {.queue = q, .slot = slot, .flight = &flight};
        int code = AG_CU_OK;
        if (sums) {
            calls_of(slot)->issue_sum(&issue, slot);
        } else {
            code = begin(&issue, slot, &flight.error);
        }
        flight.ran = issue.ran;
        flight.plan = slot->kind == AG_KIND_PLAN && issue.ran && !sums;
        if (code != AG_CU_OK)
            flight.error = ag_cuda_error(q->device, code, issue.call, slot->operation, ag_cuda_tensor_of(slot));
        if (issue.ran) { /* also if it failed midway: the device may still use the memory that it borrowed */
            code = ag_cuda_fly(q, flight);
            if (code == AG_CU_OK) return;
            (void)ag_cu.cuStreamSynchronize(q->cuda); /* nothing else tells when borrowed memory is free again */
            if (flight.error == NULL)
                flight.error =
                    ag_cuda_error(q->device, code, "cuEventRecord", slot->operation, ag_cuda_tensor_of(slot));
        }
    }
    fly_without_event(q, &flight);
}

static void *issue_all(void *argument)
{
    ag_cuda_queue *q = argument;
    for (;;) {
        for (uint64_t until = ag_now() + LINGER_NS;
             !atomic_load(&q->ready) && !atomic_load(&q->stop) && ag_now() < until;)
            ag_pause();
        pthread_mutex_lock(&q->lock);
        while (!atomic_load(&q->ready) && !atomic_load(&q->stop)) pthread_cond_wait(&q->to_issue, &q->lock);
        pthread_mutex_unlock(&q->lock);
        if (atomic_load(&q->stop)) break;
        atomic_store(&q->ready, false);
        /* Not idle, it refers to itself; it may be gone on return. */
        ag_stream_run_ahead(q->stream);
        if (q->cuda != NULL) ag_cuda_sweep(q->device);
    }
    end_thread(q);
    return NULL;
}

static void ready(ag_executor *executor, ag_stream *stream)
{
    (void)stream;
    ag_cuda_queue *q = (ag_cuda_queue *)executor;
    pthread_mutex_lock(&q->lock);
    atomic_store(&q->ready, true);
    pthread_cond_signal(&q->to_issue);
    pthread_mutex_unlock(&q->lock);
}

/* -- life ----------------------------------------------------------------------------------------------------- */

static void stop(ag_cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    atomic_store(&q->stop, true);
    pthread_cond_broadcast(&q->to_issue);
    pthread_cond_broadcast(&q->to_settle);
    pthread_mutex_unlock(&q->lock);
}

static void gone(ag_ahead *ahead)
{
    ag_cuda_queue *q = (ag_cuda_queue *)ahead;
    pthread_mutex_lock(&q->device->lock);
    *q->link = q->next;
    if (q->next != NULL) q->next->link = q->link;
    q->stream = NULL;
    pthread_mutex_unlock(&q->device->lock);
    stop(q);
    queue_unref(q);
}

static bool start(ag_cuda_queue *q)
{
    pthread_t thread;
    void *(*const bodies[])(void *) = {issue_all, settle_all};
    for (int i = 0; i < 2; ++i) {
        pthread_mutex_lock(&q->lock);
        ++q->n_threads;
        pthread_mutex_unlock(&q->lock);
        atomic_fetch_add(&q->refs, 1);
        pthread_mutex_lock(all_lock);
        ++all_threads;
        pthread_mutex_unlock(all_lock);
        if (!ag_thread_start(&thread, bodies[i], q, true)) {
            end_thread(q);
            break;
        }
    }
    return q->n_threads == 2;
}

static void forget(void) /* in the child of a fork: queues and threads are the parent's */
{
    pthread_cond_init(&all_cond, NULL);
    all = NULL;
    all_threads = 0;
}

ag_stream *ag_cuda_stream(ag_cuda_device *device, const char *name)
{
    ag_cuda_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    ag_cuda_chores_begin();
    atomic_init(&q->refs, 1);
    q->ahead = (ag_ahead){.executor = {ready},
                          .issue = issue_one,
                          .drain = drain,
                          .admit = admit,
                          .follow = ag_cuda_follow,
                          .gone = gone};
    snprintf(q->name, sizeof q->name, "%s", name);
    q->device = ag_cuda_device_ref(device);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->to_issue, NULL);
    pthread_cond_init(&q->to_settle, NULL);
    pthread_cond_init(&q->settled, NULL);
    ag_stream *stream = ag_stream_new_ahead(name, &q->ahead);
    if (stream == NULL) {
        queue_unref(q);
        return NULL;
    }
    q->generation = atomic_load(&ag_generation);
    ag_at_fork(AG_FORK_CUDA_QUEUES, forget);
    pthread_mutex_lock(all_lock);
    q->next_all = all;
    q->link_all = &all;
    if (all != NULL) all->link_all = &q->next_all;
    all = q;
    pthread_mutex_unlock(all_lock);
    pthread_mutex_lock(&device->lock);
    q->stream = stream;
    q->next = device->queues;
    q->link = &device->queues;
    if (q->next != NULL) q->next->link = &q->next;
    device->queues = q;
    pthread_mutex_unlock(&device->lock);
    if (start(q)) return stream;
    ag_stream_unref(stream); /* this stops the thread that did start */
    return NULL;
}

void ag_cuda_stop(uint64_t timeout_ns)
{
    const struct timespec at = ag_wall_after(timeout_ns);
    pthread_mutex_lock(all_lock);
    for (ag_cuda_queue *q = all; q != NULL; q = q->next_all) stop(q);
    while (all_threads > 0 && pthread_cond_timedwait(&all_cond, all_lock, &at) == 0) continue;
    pthread_mutex_unlock(all_lock);
    ag_cuda_hands_end(&at);
    ag_cuda_chores_end(&at);
}
