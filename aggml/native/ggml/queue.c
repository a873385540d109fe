/* A stream of a ggml device: the thread that carries its operations out, one after the other.
 *
 * The thread makes every call of the library that queued work needs, without the GIL, and settles an operation when the
 * library says that it is through: then waiters are woken as by any other stream. Work that is to overlap belongs on
 * two streams, each of which has a backend of ggml for itself. Not here: what is called (transfer.c, plan.c), order and
 * failure (runtime/stream_ahead.c). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "lost.h"
#include "state.h"

#define LINGER_NS 20000 /* how long the thread looks for the next operation before it sleeps */
#define ABORTED 1       /* ggml_status */
#define NO_MEMORY (-2)

struct ag_ggml_queue {
    ag_ahead ahead;  /* first: the stream knows the queue by it */
    atomic_int refs; /* the stream, the thread, one that took over */
    unsigned generation;
    ag_ggml_device *device;
    ag_stream *stream;           /* under the device's lock; NULL once gone */
    ag_ggml_queue *next, **link; /* among the device's */
    ag_ggml_queue *next_all, **link_all;
    ag_ggml_handle *backend;
    char name[AG_NAME];
    pthread_mutex_t lock;
    pthread_cond_t to_issue;
    atomic_bool ready, stop;
    unsigned epoch;      /* under the lock: how often another thread has taken over */
    uint64_t call_since; /* under the lock: when the call began that the thread is in; 0: none */
    uint64_t ticket;     /* of that call */
};

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_GGML];
static pthread_cond_t all_cond = PTHREAD_COND_INITIALIZER;
static ag_ggml_queue *all;
static int all_threads;

static void free_backend(void *argument)
{
    ag_ggml_queue *q = argument;
    q->device->f->ggml_backend_free(q->backend);
}

static void queue_unref(ag_ggml_queue *q)
{
    if (atomic_fetch_sub_explicit(&q->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&q->to_issue);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* -- one operation */

typedef struct work {
    ag_ggml_queue *queue;
    ag_slot *slot;
    int status;
} work;

static void carry_out(void *argument)
{
    work *w = argument;
    ag_ggml_device *device = w->queue->device;
    ag_slot *slot = w->slot;
    if (slot->kind == AG_KIND_COPY) {
        ag_ggml_copy(device, &slot->u.copy);
        slot->moved = ag_copy_size(&slot->u.copy);
    } else if (slot->kind == AG_KIND_FILL) {
        ag_ggml_fill(device, slot->u.fill.dst, slot->u.fill.value, slot->u.fill.size);
        slot->moved = slot->u.fill.size;
    } else {
        w->status = ag_ggml_plan_run(slot->u.plan.plan->device, w->queue->backend, slot->u.plan.arena);
    }
}

static ag_error *stopped(const ag_ggml_queue *q, const ag_slot *slot)
{
    ag_error *error =
        ag_error_new(AG_ABORTED, q->name, slot->operation, NULL, "stopped on request before it was finished");
    atomic_store(&error->seen, true); /* somebody asked for it */
    return error;
}

static ag_error *refuse(const ag_ggml_queue *q, const ag_slot *slot)
{
    if (slot->kind == AG_KIND_EXPERTS)
        return ag_error_new(AG_UNSUPPORTED, q->name, slot->operation, NULL, "experts are copied whole on this device");
    bool reads = slot->kind == AG_KIND_COPY && ag_ggml_is_extra((uintptr_t)slot->u.copy.src);
    if (reads || (slot->kind == AG_KIND_FILL && ag_ggml_is_extra((uintptr_t)slot->u.fill.dst)))
        return ag_error_new(AG_UNSUPPORTED, q->name, slot->operation, NULL,
                            "weights in a format of the device's own are written whole and not read back");
    if (slot->kind != AG_KIND_PLAN) return NULL;
    const ag_ggml_plan *plan = slot->u.plan.plan->drop_device == ag_ggml_plan_drop ? slot->u.plan.plan->device : NULL;
    if (plan != NULL && plan->device == q->device) return NULL;
    return ag_error_new(AG_UNSUPPORTED, q->name, slot->operation, NULL, "the plan was compiled for another device");
}

static bool aborts(void *user)
{
    work *w = user;
    return ag_stream_aborting(w->queue->stream, w->slot);
}

/* The library asks before each node. What a graph writes in part it would leave half done: that is not stopped. */
static void let_abort(work *w, bool on)
{
    typedef void set(ag_ggml_handle * backend, bool (*callback)(void *), void *user);
    set *setter = NULL;
    void *entry = ag_ggml_entry(w->queue->device, "ggml_backend_set_abort_callback");
    if (entry == NULL || w->slot->kind != AG_KIND_PLAN || w->slot->u.plan.plan->n_partial > 0) return;
    memcpy(&setter, &entry, sizeof entry);
    setter(w->queue->backend, on ? aborts : NULL, w);
}

static ag_error *outcome(const ag_ggml_queue *q, const work *w, bool fine, const char *message)
{
    if (!fine) {
        ag_error *error = ag_error_new(AG_DEVICE_ERROR, q->name, w->slot->operation, NULL, message);
        if (q->device->remote) ag_ggml_lose(q->device, error);
        return error;
    }
    char text[64];
    if (w->status == 0) return NULL;
    if (w->status == ABORTED) return stopped(q, w->slot);
    snprintf(text, sizeof text, "ggml tells status %d", w->status);
    return ag_error_new(w->status == NO_MEMORY ? AG_NO_MEMORY : AG_DEVICE_ERROR, q->name, w->slot->operation, NULL,
                        text);
}

/* False: another thread has taken over while this one was in the library. It may touch nothing any more. */
static bool call(ag_ggml_queue *q, work *w, uint64_t ticket, ag_error **error)
{
    char message[AG_GGML_MESSAGE];
    ag_ggml_plan *plan = w->slot->kind == AG_KIND_PLAN ? w->slot->u.plan.plan->device : NULL;
    pthread_mutex_lock(&q->lock);
    unsigned epoch = q->epoch;
    q->call_since = ag_now();
    q->ticket = ticket;
    pthread_mutex_unlock(&q->lock);
    if (plan != NULL) pthread_mutex_lock(&plan->lock);
    let_abort(w, true);
    bool fine = ag_ggml_guarded(q->device, carry_out, w, message);
    pthread_mutex_lock(&q->lock);
    bool mine = q->epoch == epoch;
    q->call_since = mine ? 0 : q->call_since;
    pthread_mutex_unlock(&q->lock);
    if (!mine) return false;
    let_abort(w, false);
    if (plan != NULL) pthread_mutex_unlock(&plan->lock);
    *error = outcome(q, w, fine, message);
    return true;
}

static void issue(ag_ahead *ahead, ag_stream *stream, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    ag_ggml_queue *q = (ag_ggml_queue *)ahead;
    bool works = slot->kind == AG_KIND_COPY || slot->kind == AG_KIND_FILL || slot->kind == AG_KIND_PLAN;
    if (error == NULL) error = refuse(q, slot);
    bool ran = error == NULL && works;
    if (ran) {
        work w = {.queue = q, .slot = slot};
        if (!call(q, &w, ticket, &error)) {
            for (;;) pause();
        }
    }
    ag_stream_settle(stream, ticket, error, ran);
}

static void drain(ag_ahead *ahead) /* what was issued is settled */
{
    (void)ahead;
}

/* -- the thread */

static void end_thread(ag_ggml_queue *q)
{
    char message[AG_GGML_MESSAGE];
    pthread_mutex_lock(all_lock);
    *q->link_all = q->next_all;
    if (q->next_all != NULL) q->next_all->link_all = q->link_all;
    pthread_mutex_unlock(all_lock);
    if (q->backend != NULL && atomic_load(&q->device->lost) == NULL)
        (void)ag_ggml_guarded(q->device, free_backend, q, message);
    queue_unref(q);
    pthread_mutex_lock(all_lock);
    --all_threads;
    pthread_cond_broadcast(&all_cond);
    pthread_mutex_unlock(all_lock);
}

static void *issue_all(void *argument)
{
    ag_ggml_queue *q = argument;
    for (;;) {
        void (*idle)(void) = atomic_load(&ag_on_idle);
        for (uint64_t until = ag_now() + LINGER_NS;
             !atomic_load(&q->ready) && !atomic_load(&q->stop) && ag_now() < until;)
            ag_pause();
        if (idle != NULL && !atomic_load(&q->ready)) idle();
        pthread_mutex_lock(&q->lock);
        while (!atomic_load(&q->ready) && !atomic_load(&q->stop)) pthread_cond_wait(&q->to_issue, &q->lock);
        pthread_mutex_unlock(&q->lock);
        if (atomic_load(&q->stop)) break;
        atomic_store(&q->ready, false);
        ag_stream_run_ahead(q->stream); /* not idle, it refers to itself; it may be gone on return */
    }
    end_thread(q);
    return NULL;
}

static void ready(ag_executor *executor, ag_stream *stream)
{
    (void)stream;
    ag_ggml_queue *q = (ag_ggml_queue *)executor;
    pthread_mutex_lock(&q->lock);
    atomic_store(&q->ready, true);
    pthread_cond_signal(&q->to_issue);
    pthread_mutex_unlock(&q->lock);
}

static bool start(ag_ggml_queue *q, void *(*body)(void *))
{
    pthread_t thread;
    pthread_mutex_lock(all_lock);
    ++all_threads;
    pthread_mutex_unlock(all_lock);
    atomic_fetch_add(&q->refs, 1);
    if (ag_thread_start(&thread, body, q, true)) return true;
    pthread_mutex_lock(all_lock);
    --all_threads;
    pthread_mutex_unlock(all_lock);
    atomic_fetch_sub(&q->refs, 1);
    return false;
}

/* -- a lost device */

bool ag_ggml_in_call(ag_ggml_device *device, uint64_t since)
{
    bool found = false;
    pthread_mutex_lock(&device->lock);
    for (ag_ggml_queue *q = device->queues; q != NULL; q = q->next) {
        pthread_mutex_lock(&q->lock);
        found = found || (q->call_since != 0 && q->call_since <= since);
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return found;
}

/* In place of the thread that is stuck: ends its operation, then carries on. */
static void *carry_on(void *argument)
{
    ag_ggml_queue *q = argument;
    ag_stream_settle(q->stream, q->ticket, ag_ggml_lost(q->device), true);
    ag_stream_run_ahead(q->stream);
    return issue_all(q);
}

void ag_ggml_take_over(ag_ggml_device *device)
{
    ag_error *error = atomic_load(&device->lost);
    pthread_mutex_lock(&device->lock);
    for (ag_ggml_queue *q = device->queues; q != NULL; q = q->next) {
        ag_stream_lose(q->stream, error);
        pthread_mutex_lock(&q->lock);
        bool stuck = q->call_since != 0;
        if (stuck) {
            ++q->epoch;
            q->call_since = 0;
        }
        pthread_mutex_unlock(&q->lock);
        if (stuck) (void)start(q, carry_on);
    }
    pthread_mutex_unlock(&device->lock);
}

/* -- life */

static void stop(ag_ggml_queue *q)
{
    pthread_mutex_lock(&q->lock);
    atomic_store(&q->stop, true);
    pthread_cond_broadcast(&q->to_issue);
    pthread_mutex_unlock(&q->lock);
}

static void gone(ag_ahead *ahead)
{
    ag_ggml_queue *q = (ag_ggml_queue *)ahead;
    pthread_mutex_lock(&q->device->lock);
    *q->link = q->next;
    if (q->next != NULL) q->next->link = q->link;
    q->stream = NULL;
    pthread_mutex_unlock(&q->device->lock);
    stop(q);
    queue_unref(q);
}

/* In the child of a fork: queues and threads are the parent's. */
void ag_ggml_queues_forked(void)
{
    pthread_cond_init(&all_cond, NULL);
    all = NULL;
    all_threads = 0;
}

typedef struct opening {
    ag_ggml_device *device;
    ag_ggml_handle *backend;
    int n_threads;
} opening;

static void open_backend(void *argument)
{
    opening *o = argument;
    o->backend = o->device->f->ggml_backend_dev_init(o->device->handle, NULL);
    if (o->backend == NULL) ag_ggml_fail("ggml opens no backend of this device");
    typedef void set(ag_ggml_handle * backend, int n);
    set *setter = NULL;
    void *entry = ag_ggml_entry(o->device, "ggml_backend_set_n_threads");
    memcpy(&setter, &entry, sizeof entry);
    if (setter != NULL && o->n_threads > 0) setter(o->backend, o->n_threads);
}

static void list(ag_ggml_queue *q)
{
    pthread_mutex_lock(all_lock);
    q->next_all = all;
    q->link_all = &all;
    if (all != NULL) all->link_all = &q->next_all;
    all = q;
    pthread_mutex_unlock(all_lock);
    pthread_mutex_lock(&q->device->lock);
    q->next = q->device->queues;
    q->link = &q->device->queues;
    if (q->next != NULL) q->next->link = &q->next;
    q->device->queues = q;
    pthread_mutex_unlock(&q->device->lock);
}

ag_stream *ag_ggml_stream(ag_ggml_device *device, const char *name, int n_threads, ag_error **error)
{
    opening o = {.device = device, .n_threads = n_threads};
    *error = ag_ggml_ask(device, "backend", open_backend, &o, sizeof o);
    if (*error != NULL) return NULL;
    ag_ggml_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    atomic_init(&q->refs, 1);
    q->ahead = (ag_ahead){.executor = {ready}, .issue = issue, .drain = drain, .admit = drain, .gone = gone};
    snprintf(q->name, sizeof q->name, "%s", name);
    q->device = device;
    q->backend = o.backend;
    q->generation = atomic_load(&ag_generation);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->to_issue, NULL);
    ag_stream *stream = q->stream = ag_stream_new_ahead(name, &q->ahead);
    if (stream == NULL) {
        queue_unref(q);
        return NULL;
    }
    list(q);
    if (start(q, issue_all)) return stream;
    ag_stream_unref(stream);
    return NULL;
}

void ag_ggml_stop(uint64_t timeout_ns)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    uint64_t ns = (uint64_t)at.tv_nsec + timeout_ns;
    at.tv_sec += (time_t)(ns / 1000000000u);
    at.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(all_lock);
    for (ag_ggml_queue *q = all; q != NULL; q = q->next_all) stop(q);
    while (all_threads > 0 && pthread_cond_timedwait(&all_cond, all_lock, &at) == 0) continue;
    pthread_mutex_unlock(all_lock);
}
