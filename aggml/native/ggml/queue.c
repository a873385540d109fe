/* A stream of a ggml device: the thread that makes the calls of the library for it.
 *
 * The thread makes every call that queued work needs, without the GIL, and settles an operation when the library
 * says that it has ended; then waiters are woken as for any other stream. Work that shall overlap belongs on two
 * streams, each of which has a backend of ggml for itself. Not here: one operation (issue.c), its end (flights.c),
 * order and failure (runtime/stream_ahead.c). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "queue.h"

#define LINGER_NS 20000     /* how long the thread polls for the next operation before it sleeps */
#define BUSY_NS 1000000000u /* how long a call that transfers bytes may take on a lost device to return by itself */

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

static void await_work(ag_ggml_queue *q)
{
    void (*idle)(void) = atomic_load(&ag_on_idle);
    for (uint64_t until = ag_now() + LINGER_NS; !atomic_load(&q->ready) && !atomic_load(&q->stop) && ag_now() < until;)
        ag_pause();
    if (idle != NULL && !atomic_load(&q->ready)) idle();
    pthread_mutex_lock(&q->lock);
    while (!atomic_load(&q->ready) && !atomic_load(&q->stop)) pthread_cond_wait(&q->to_issue, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

static void run(ag_ggml_queue *q, ag_stream *stream)
{
    q->running = true;
    ag_stream_run_ahead(stream); /* while it is not idle it holds a reference to itself; it may be freed on return */
    q->running = false;
}

/* Issues everything that can be issued before it waits for the oldest flight. */
static void *issue_all(void *argument)
{
    ag_ggml_queue *q = argument;
    for (;;) {
        if (q->n_flights == 0) await_work(q);
        if (atomic_load(&q->stop) && q->n_flights == 0) break;
        if (atomic_exchange(&q->ready, false)) {
            run(q, q->stream);
        } else if (q->n_flights > 0) {
            ag_ggml_settle(q);
        }
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

/* Runs instead of the stuck thread: ends the operations that thread had issued, then carries on. The stuck thread
 * was waiting for the device, or was running the stream. */
static void *carry_on(void *argument)
{
    ag_ggml_queue *q = argument;
    ag_stream *stream = ag_stream_ref(q->stream);
    ag_ggml_settle_lost(q);
    if (q->running) run(q, stream);
    ag_stream_unref(stream);
    return issue_all(q);
}

/* The device's lock is held. Whether the thread is in a call that may still access the caller's memory. */
static bool take_from(ag_ggml_queue *q, bool at_once)
{
    pthread_mutex_lock(&q->lock);
    bool inside = q->call_since != 0, busy = inside && q->issuing && !at_once;
    bool stuck = inside && !busy;
    if (stuck) {
        ++q->epoch;
        q->call_since = 0;
    }
    pthread_mutex_unlock(&q->lock);
    if (stuck) (void)start(q, carry_on);
    return busy;
}

/* Has other threads take over the queues of a lost device that are inside a call. */
static void take_over(ag_ggml_device *device)
{
    ag_error *error = atomic_load(&device->lost);
    const struct timespec moment = {.tv_nsec = 1000000};
    pthread_mutex_lock(&device->lock);
    for (ag_ggml_queue *q = device->queues; q != NULL; q = q->next) ag_stream_lose(q->stream, error);
    pthread_mutex_unlock(&device->lock);
    bool busy = true;
    for (uint64_t until = ag_now() + BUSY_NS; busy;) {
        busy = false;
        bool at_once = ag_now() > until;
        pthread_mutex_lock(&device->lock);
        for (ag_ggml_queue *q = device->queues; q != NULL; q = q->next) busy = take_from(q, at_once) || busy;
        pthread_mutex_unlock(&device->lock);
        if (busy) (void)nanosleep(&moment, NULL);
    }
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
    atomic_fetch_sub(&q->device->n_queues, 1);
    pthread_mutex_unlock(&q->device->lock);
    stop(q);
    queue_unref(q);
}

static void forget(void) /* in the child of a fork: queues and threads are the parent's */
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
    ag_at_fork(AG_FORK_GGML_QUEUES, forget);
    atomic_store(&q->device->take_over, take_over);
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
    atomic_fetch_add(&q->device->n_queues, 1);
    pthread_mutex_unlock(&q->device->lock);
}

ag_stream *ag_ggml_stream(ag_ggml_device *device, const char *name, int n_threads, bool ahead, ag_error **error)
{
    opening o = {.device = device, .n_threads = n_threads};
    *error = ag_ggml_ask(device, "backend", open_backend, &o, sizeof o);
    if (*error != NULL) return NULL;
    ag_ggml_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    atomic_init(&q->refs, 1);
    q->ahead = (ag_ahead){.executor = {ready},
                          .issue = ag_ggml_issue,
                          .drain = ag_ggml_drain,
                          .admit = ag_ggml_admit,
                          .follow = ag_ggml_follow,
                          .gone = gone};
    snprintf(q->name, sizeof q->name, "%s", name);
    q->device = device;
    q->backend = o.backend;
    q->async = ahead && device->async;
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
    const struct timespec at = ag_wall_after(timeout_ns);
    pthread_mutex_lock(all_lock);
    for (ag_ggml_queue *q = all; q != NULL; q = q->next_all) stop(q);
    while (all_threads > 0 && pthread_cond_timedwait(&all_cond, all_lock, &at) == 0) continue;
    pthread_mutex_unlock(all_lock);
}
