/* One operation of a queue: poison that keeps it from starting, the call of the library, how the call ended.
 *
 * Transfers of contiguous bytes, and plans, are issued without waiting if the library can do that. All other
 * operations are carried out when everything before them has ended. Not here: the functions that make the call
 * (transfer.c, plan.c), the end of issued operations (flights.c), order and failure (runtime/stream_ahead.c). */
#include <stdio.h>

#include "queue.h"

#define ABORTED 1 /* ggml_status */
#define NO_MEMORY (-2)

typedef struct work {
    ag_ggml_queue *queue;
    ag_ggml_flight *flight;
    ag_ggml_transfer *transfer; /* of a copy */
    int status;
} work;

/* An event costs a submission of its own (Vulkan: 60 us). A graph gets one if something is issued behind it, so that it
 * can be settled separately. An operation that another queue may wait for gets one if nothing is behind it yet.
 *
 * A server reports the end of a graph by an answer, which costs a round trip. A transfer from the device behind the
 * graph is such an answer. If there is none, a byte is requested before the next graph, or when nothing is left but
 * to wait. */
static void record_before(ag_ggml_queue *q, const ag_slot *slot)
{
    ag_ggml_flight *graph = NULL;
    for (size_t k = 0; k + 1 < q->n_flights; ++k) {
        ag_ggml_flight *flight = &q->flights[(q->first + k) % AG_GGML_FLIGHTS];
        if (flight->plan && flight->waits) graph = flight;
    }
    if (!q->async || graph == NULL || graph->event != NULL) return;
    if (graph->owes && slot->kind != AG_KIND_PLAN) return;
    ag_ggml_pay(q);
    ag_ggml_record(q, graph);
}

static bool is_fetched(const work *w)
{
    return w->flight->waits && w->transfer->from.buffer != NULL && w->transfer->to.buffer == NULL;
}

static void record_behind(ag_ggml_queue *q, ag_ggml_flight *flight)
{
    if (atomic_load(&q->device->n_queues) < 2) return;
    bool last = ag_stream_submitted(flight->stream) <= flight->ticket;
    if (!last && flight->slot->kind != AG_KIND_PLAN) return;
    ag_ggml_pay(q);
    ag_ggml_record(q, flight);
}

static void carry_out(void *argument)
{
    work *w = argument;
    ag_ggml_queue *q = w->queue;
    ag_ggml_flight *flight = w->flight;
    ag_slot *slot = flight->slot;
    record_before(q, slot);
    if (slot->kind == AG_KIND_COPY) {
        flight->waits = w->transfer->straight;
        ag_ggml_transfer_run(w->transfer, flight->waits ? q->backend : NULL);
        slot->moved = ag_copy_size(&slot->u.copy);
        if (is_fetched(w)) ag_ggml_clear_debts(q);
    } else if (slot->kind == AG_KIND_FILL) {
        ag_ggml_fill(q->device, slot->u.fill.dst, slot->u.fill.value, slot->u.fill.size);
        slot->moved = slot->u.fill.size;
    } else {
        ag_ggml_run run = {slot->u.plan.plan->device, q->backend, slot->u.plan.arena, q->async};
        flight->waits = q->async;
        w->status = ag_ggml_plan_run(&run, &flight->built);
        flight->owes = q->async && q->device->remote && w->status == 0 && flight->built != NULL;
    }
    if (flight->waits && w->status == 0) record_behind(q, flight);
}

static ag_error *abort_error(const ag_ggml_queue *q, const ag_slot *slot)
{
    ag_error *error =
        ag_error_new(AG_ABORTED, q->name, slot->operation, NULL, "stopped on request before it was finished");
    atomic_store(&error->seen, true); /* the failure counts as seen, because the operation asked for it */
    return error;
}

static ag_error *refuse(const ag_ggml_queue *q, const ag_slot *slot)
{
    if (slot->kind == AG_KIND_EXPERTS)
        return ag_error_new(AG_UNSUPPORTED, q->name, slot->operation, NULL, "this device cannot copy single experts");
    bool reads = slot->kind == AG_KIND_COPY && ag_ggml_is_extra((uintptr_t)slot->u.copy.src, false);
    if (reads || (slot->kind == AG_KIND_FILL && ag_ggml_is_extra((uintptr_t)slot->u.fill.dst, true)))
        return ag_error_new(AG_UNSUPPORTED, q->name, slot->operation, NULL,
                            "weights in a format of the device's own are written whole and not read back");
    if (slot->kind != AG_KIND_PLAN) return NULL;
    const ag_ggml_plan *plan = slot->u.plan.plan->drop_device == ag_ggml_plan_drop ? slot->u.plan.plan->device : NULL;
    if (plan != NULL && plan->device == q->device) return NULL;
    return ag_error_new(AG_UNSUPPORTED, q->name, slot->operation, NULL, "the plan was compiled for another device");
}

static bool is_aborting(void *user)
{
    work *w = user;
    return ag_stream_aborting(w->queue->stream, w->flight->slot);
}

/* The library calls this before each node. A graph that writes in part is not stopped, because it would be left half
 * done; neither is a graph that is still being computed when the call returns. */
static void let_abort(work *w, bool on)
{
    typedef void set(ag_ggml_handle * backend, bool (*callback)(void *), void *user);
    set *setter = NULL;
    const ag_slot *slot = w->flight->slot;
    if (w->queue->async || slot->kind != AG_KIND_PLAN || slot->u.plan.plan->n_partial > 0) return;
    void *entry = ag_ggml_entry(w->queue->device, "ggml_backend_set_abort_callback");
    if (entry == NULL) return;
    memcpy(&setter, &entry, sizeof entry);
    setter(w->queue->backend, on ? is_aborting : NULL, w);
}

static ag_error *outcome(const ag_ggml_queue *q, const work *w)
{
    char text[64];
    const ag_slot *slot = w->flight->slot;
    if (w->status == 0) return NULL;
    if (w->status == ABORTED) return abort_error(q, slot);
    snprintf(text, sizeof text, "ggml returned status %d", w->status);
    return ag_error_new(w->status == NO_MEMORY ? AG_NO_MEMORY : AG_DEVICE_ERROR, q->name, slot->operation, NULL, text);
}

static void begin(ag_ggml_queue *q, ag_ggml_flight *flight, ag_ggml_transfer *transfer)
{
    char message[AG_GGML_MESSAGE];
    work w = {.queue = q, .flight = flight, .transfer = transfer};
    ag_ggml_plan *plan = flight->slot->kind == AG_KIND_PLAN ? flight->slot->u.plan.plan->device : NULL;
    flight->ran = true;
    if (plan != NULL) pthread_mutex_lock(&plan->lock);
    let_abort(&w, true);
    bool fine = ag_ggml_inside(q, carry_out, &w, true, message);
    let_abort(&w, false);
    if (plan != NULL) pthread_mutex_unlock(&plan->lock);
    flight->error = fine ? outcome(q, &w) : ag_ggml_failure(q, flight->slot, message);
    if (flight->waits && plan != NULL) {
        flight->plan = true;
        ++q->n_plans;
    }
}

static void copy(ag_ggml_queue *q, ag_stream *stream, ag_slot *slot, uint64_t ticket)
{
    ag_ggml_transfer transfer;
    bool ahead = q->async && q->n_flights > 0; /* else nothing is in front, and a plain call is cheaper */
    ag_ggml_transfer_of(&transfer, ahead ? q->device : NULL, &slot->u.copy);
    if (!transfer.straight) ag_ggml_drain(&q->ahead);
    ag_ggml_flight *flight = ag_ggml_push(q, stream, slot, ticket);
    flight->buffers[0] = transfer.to.buffer;
    flight->buffers[1] = transfer.from.buffer;
    begin(q, flight, &transfer);
}

void ag_ggml_issue(ag_ahead *ahead, ag_stream *stream, ag_slot *slot, uint64_t ticket, ag_error *error)
{
    ag_ggml_queue *q = (ag_ggml_queue *)ahead;
    bool works = slot->kind == AG_KIND_COPY || slot->kind == AG_KIND_FILL || slot->kind == AG_KIND_PLAN;
    q->unpushed = ticket;
    q->unpushed_of = stream;
    if (error == NULL) error = refuse(q, slot);
    if (error == NULL && slot->kind == AG_KIND_COPY) {
        copy(q, stream, slot, ticket);
    } else {
        if (error == NULL && slot->kind == AG_KIND_FILL) ag_ggml_drain(ahead);
        ag_ggml_flight *flight = ag_ggml_push(q, stream, slot, ticket);
        flight->error = error;
        flight->followed = q->following;
        flight->follow = flight->waits = q->following != NULL;
        q->following = NULL;
        if (error == NULL && works) begin(q, flight, NULL);
    }
    ag_ggml_settle_ended(q);
}
