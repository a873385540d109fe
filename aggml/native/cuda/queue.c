/* A CUDA stream: the thread that issues, the thread that waits for events and settles, what is in flight between them.
 *
 * Not here: the end of an operation (settle.c), what an operation issues (copy.c, plan.c), order and failure
 * (stream_ahead.c). */
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

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

/* -- in flight ------------------------------------------------------------------------------------------------ */

static void push(ag_cuda_queue *q, const ag_flight *flight)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_flights == AG_CUDA_FLIGHTS) pthread_cond_wait(&q->settled, &q->lock);
    q->flights[(q->first + (size_t)q->n_flights) % AG_CUDA_FLIGHTS] = *flight;
    if (flight->plan) ++q->n_plans;
    if (flight->follow) ++q->n_follows;
    if (atomic_fetch_add(&q->n_flights, 1) == 0) pthread_cond_signal(&q->to_settle);
    pthread_mutex_unlock(&q->lock);
}

int ag_cuda_fly(ag_cuda_queue *q, ag_flight flight)
{
    int code = AG_CU_OK;
    pthread_mutex_lock(&q->lock);
    flight.event = q->n_events > 0 ? q->events[--q->n_events] : NULL;
    pthread_mutex_unlock(&q->lock);
    if (flight.event == NULL) code = ag_cu.cuEventCreate(&flight.event, AG_CU_EVENT_BLOCKING_NO_TIMING);
    if (code != AG_CU_OK) return code;
    code = ag_cu.cuEventRecord(flight.event, q->cuda);
    if (code != AG_CU_OK) {
        (void)ag_cu.cuEventDestroy(flight.event);
        return code;
    }
    push(q, &flight);
    return AG_CU_OK;
}

/* An operation that needs no device is settled here if none is in flight before it: this saves one hand-over. */
static void fly_without_event(ag_cuda_queue *q, ag_flight *flight)
{
    if (atomic_load(&q->n_flights) == 0) {
        ag_cuda_finish(q, flight, AG_CU_OK);
    } else {
        push(q, flight);
    }
}

void ag_cuda_drain(ag_cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_flights > 0) pthread_cond_wait(&q->settled, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void ag_cuda_catch_up(ag_cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_follows > 0) pthread_cond_wait(&q->settled, &q->lock);
    pthread_mutex_unlock(&q->lock);
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
        ag_cuda_settle(q, &flight, &entered);
    }
    pthread_mutex_unlock(&q->lock);
    end_thread(q);
    return NULL;
}

/* -- the issuing thread --------------------------------------------------------------------------------------- */

int ag_cuda_open(ag_cuda_queue *q, const char **call)
{
    if (q->cuda != NULL) return AG_CU_OK;
    *call = "cuDevicePrimaryCtxRetain";
    int code = ag_cuda_context(q->device);
    if (code != AG_CU_OK) return code;
    *call = "cuStreamCreate";
    return ag_cu.cuStreamCreate(&q->cuda, AG_CU_STREAM_NON_BLOCKING);
}

static int begin(ag_cuda_issue *issue, ag_slot *slot, ag_error **error)
{
    int code = ag_cuda_open(issue->queue, &issue->call);
    if (code != AG_CU_OK) return code;
    switch (slot->kind) {
    case AG_KIND_COPY: return ag_cuda_issue_copy(issue, &slot->u.copy);
    case AG_KIND_EXPERTS: return ag_cuda_issue_experts(issue, slot, error);
    case AG_KIND_FILL: return ag_cuda_issue_fill(issue);
    default: return ag_cuda_issue_plan(issue, error);
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
        push(q, &flight); /* without an event: the next flight in the stream has one */
        return;
    }
    bool sums = ag_cuda_plan_is_sum(slot); /* with an error, too: the other GPUs wait for this one */
    if ((error == NULL && works) || sums) {
        ag_cuda_issue issue = {.queue = q, .slot = slot, .flight = &flight};
        int code = AG_CU_OK;
        if (sums) {
            ag_cuda_issue_plan_sum(&issue, slot);
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

/* In the child of a fork: queues and threads are the parent's. */
static void forked(void)
{
    pthread_cond_init(&all_cond, NULL);
    all = NULL;
    all_threads = 0;
    ag_cuda_peers_forked();
    ag_cuda_chores_forked();
    ag_cuda_hands_forked();
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
    pthread_mutex_lock(all_lock);
    q->next_all = all;
    q->link_all = &all;
    if (all != NULL) all->link_all = &q->next_all;
    all = q;
    ag_at_fork(AG_FORK_CUDA, forked);
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
