/* Running plans: any number of threads claim chunks, and there is no barrier.
 *
 * Steps that run together are published as one. The thread that finishes the last chunk runs the one-chunk steps
 * that follow by itself, then publishes the next parallel steps. A plan does not depend on helpers coming. Not here:
 * which thread takes which chunk (plan_claim.c), where the threads come from (threadpool.c), whose turn it is
 * (pool_turns.c), which steps run together (plan_order.c). */
#include <stdio.h>
#include <stdlib.h>

#include "pool_state.h"
#include "stream_state.h"

/* Chunks take 5 to 10 us. To wake a sleeping worker costs the leader 10 us, and the worker comes after 30 to 60 us.
 * With that, two threads took 1.05 to 1.28 times as long as one for 120 us of work, and 0.84 times as long for 170
 * us. Workers that still spin pay off for less work. */
#define WORTH_WAKING 16

/* Pieces of work between two checks whether a loop waits: chunks of a step with several chunks, or 16 steps of one
 * chunk. */
static bool breathes(const ag_plan *plan, size_t step)
{
    return plan->steps[step].n_chunks > 1 || step % 16 == 0;
}

static agk_status run_chunk(ag_worker *worker, const ag_plan *plan, size_t step, uint32_t chunk, uintptr_t arena,
                            char *message)
{
    void *scratch = NULL;
    if (breathes(plan, step)) ag_courtesy_breathe();
    if (plan->scratch_size > 0) {
        if (worker->scratch_size < plan->scratch_size) {
            free(worker->scratch);
            worker->scratch_size = (plan->scratch_size + 4095) & ~(size_t)4095;
            worker->scratch = aligned_alloc(64, worker->scratch_size);
            if (worker->scratch == NULL) {
                worker->scratch_size = 0;
                snprintf(message, AGK_MESSAGE, "no memory for %zu bytes of scratch", plan->scratch_size);
                return AGK_NO_MEMORY;
            }
        }
        scratch = worker->scratch;
    }
    agk_task task = {.arena = arena, .scratch = scratch, .message = message, .breathe = ag_courtesy_breathe};
    return plan->steps[step].run(&task, plan->steps[step].node, chunk);
}

static void fail_chunk(ag_run *r, size_t step, agk_status status, const char *message)
{
    pthread_mutex_lock(&r->message_lock);
    int none = AGK_OK;
    if (atomic_compare_exchange_strong(&r->status, &none, (int)status)) {
        memcpy(r->message, message, AGK_MESSAGE);
        r->failed = step;
    }
    pthread_mutex_unlock(&r->message_lock);
}

/* Whether a plan ends before step `step`: an abort ends it at a node boundary, but never inside a node that writes a
 * leaf. */
static bool stops_here(const ag_plan *plan, size_t step, const ag_stream *stream, const ag_slot *slot)
{
    if (!ag_is_aborting(stream, slot)) return false;
    if (step == 0 || step >= plan->n_steps) return true;
    return plan->steps[step].writes_leaf < 0 || plan->steps[step].node != plan->steps[step - 1].node;
}

/* A leaf that the failed node had begun to write holds neither the old nor the new value. Checks of indices happen
 * before the first byte is written, so they leave the leaf whole. */
void ag_plan_poison_leaf(const ag_plan *plan, size_t step, agk_status status, ag_error *error)
{
    int leaf = plan->steps[step].writes_leaf;
    if (leaf < 0 || (size_t)leaf >= plan->n_partial || status == AGK_OUT_OF_BOUNDS || status == AGK_INVALID) return;
    ag_storage_set_poison(plan->partial[leaf], error);
}

static ag_error *abort_error(const ag_stream *stream)
{
    ag_error *error =
        ag_error_new(AG_ABORTED, stream->name, "graph_compute", NULL, "stopped on request before it was finished");
    if (error != NULL) atomic_store(&error->seen, true);
    return error;
}

static ag_error *step_error(const ag_plan *plan, size_t step, agk_status status, const ag_stream *stream,
                            const char *message)
{
    ag_error *error = ag_plan_error(plan, step, status, stream->name, message);
    ag_plan_poison_leaf(plan, step, status, error);
    return error;
}

/* Whether it is the turn of somebody else, between two steps of a plan that this worker runs alone. */
static bool gives_way(ag_pool *pool, ag_worker *worker, ag_stream *stream)
{
    ag_turn_note(pool, worker, false);
    if (worker->since == 0) return false;
    const uint64_t now = ag_now();
    if (now <= worker->turn_end) return false;
    ag_turn_charge(pool, worker, stream, now);
    if (ag_turn_is_over(pool, stream->served, NULL)) return true;
    worker->turn_end = now + AG_SLICE_NS;
    return false;
}

/* Runs all chunks of all steps on this thread. Used if no run is free, if only one thread may be used, or on the
 * submitting thread. */
static ag_run_result run_alone(ag_pool *pool, ag_worker *worker, ag_stream *stream, ag_slot *slot, size_t *step,
                               ag_error **error)
{
    const ag_plan *plan = slot->u.plan.plan;
    char local[AGK_MESSAGE] = "", *message = worker != NULL ? worker->message : local;
    for (size_t i = *step; i < plan->n_steps; ++i) {
        if (stops_here(plan, i, stream, slot)) {
            *error = abort_error(stream);
            return AG_RUN_FINISHED;
        }
        if (worker != NULL && gives_way(pool, worker, stream)) {
            *step = i;
            return AG_RUN_YIELDED;
        }
        if (plan->steps[i].run == AGK_CALL_OUT) {
            *step = i;
            return AG_RUN_CALLS;
        }
        for (uint32_t c = 0; c < plan->steps[i].n_chunks; ++c) {
            if (c > 0 && plan->steps[i].writes_leaf < 0 && ag_is_aborting(stream, slot)) {
                *error = abort_error(stream);
                return AG_RUN_FINISHED;
            }
            agk_status status = run_chunk(worker, plan, i, c, slot->u.plan.arena, message);
            if (status != AGK_OK) {
                *error = step_error(plan, i, status, stream, message);
                return AG_RUN_FINISHED;
            }
        }
    }
    return AG_RUN_FINISHED;
}

ag_run_result ag_run_alone(ag_pool *pool, ag_worker *worker, ag_stream *stream, ag_slot *slot, size_t *step,
                           ag_error **error)
{
    const ag_run_result result = run_alone(pool, worker, stream, slot, step, error);
    if (worker != NULL && worker->since != 0 && result != AG_RUN_YIELDED)
        ag_turn_charge(pool, worker, stream, ag_now());
    return result;
}

/* The plan has ended: from here on others may use the run. */
static void leave_run(ag_pool *pool, ag_worker *worker, ag_run *r)
{
    if (worker->since != 0) ag_turn_charge_run(worker, r, ag_now());
    r->stream->served = atomic_load_explicit(&r->served, memory_order_relaxed);
    ag_run_close(r);
    atomic_fetch_sub(&r->engaged, 1);
    atomic_fetch_add_explicit(&pool->runs_left, 1, memory_order_relaxed);
    atomic_fetch_sub(&pool->active_runs, 1);
    atomic_store(&r->taken, false);
}

static uint32_t chunks_of(const ag_plan *plan, size_t step)
{
    uint32_t chunks = 0;
    for (size_t i = 0; i < ag_together(plan, step); ++i) chunks += plan->steps[step + i].n_chunks;
    return chunks;
}

/* -- prefetching the next weights, by threads that wait ----------------------------------------------------------- */

enum {
    FETCH_BYTES = 512,
    FETCH_MOST = 131072, /* bytes of a stream: 10 us of one thread, which is more than it waits */
};

static void offer_fetch(ag_pool *pool, const ag_run *r, size_t step, int streams)
{
    const ag_plan *plan = r->plan;
    ag_fetch *f = &pool->fetch;
    const ag_step *next = &plan->steps[plan->steps[step].fetches];
    const uintptr_t base = plan->steps[step].fetches != 0 && streams > 1 ? (uintptr_t)next->weights : 0;
    if (atomic_load_explicit(&f->base, memory_order_relaxed) == base) return;
    atomic_store_explicit(&f->base, 0, memory_order_relaxed);
    atomic_store_explicit(&f->chunk_bytes, next->chunk_bytes, memory_order_relaxed);
    atomic_store_explicit(&f->chunks, next->n_chunks, memory_order_relaxed);
    atomic_store_explicit(&f->streams, (unsigned)streams, memory_order_relaxed);
    atomic_store_explicit(&f->done, 0, memory_order_relaxed);
    const bool weighed = r->weighed && streams <= AG_SMALL_POOL;
    for (int i = 0; weighed && i <= streams; ++i)
        atomic_store_explicit(&f->begins[i], ag_run_begins(r, i, next->n_chunks), memory_order_relaxed);
    atomic_store_explicit(&f->weighed, weighed, memory_order_relaxed);
    atomic_store_explicit(&f->base, base, memory_order_release);
}

bool ag_pool_fetch(ag_pool *pool)
{
    ag_fetch *f = &pool->fetch;
    const uintptr_t base = atomic_load_explicit(&f->base, memory_order_acquire);
    if (base == 0) return false;
    const size_t chunks = atomic_load_explicit(&f->chunks, memory_order_relaxed);
    size_t streams = atomic_load_explicit(&f->streams, memory_order_relaxed);
    if (streams > chunks) streams = chunks;
    if (streams < 2 ||
        atomic_load_explicit(&f->done, memory_order_relaxed) >= (streams - 1) * (FETCH_MOST / FETCH_BYTES))
        return false;
    const size_t piece = atomic_fetch_add_explicit(&f->done, 1, memory_order_relaxed);
    const size_t stream = 1 + piece % (streams - 1), at = piece / (streams - 1) * FETCH_BYTES;
    const size_t bytes = atomic_load(&f->chunk_bytes), more = chunks % streams;
    size_t each = chunks / streams, begin = stream * each + (stream < more ? stream : more);
    if (atomic_load_explicit(&f->weighed, memory_order_relaxed) && stream < AG_SMALL_POOL) {
        begin = atomic_load_explicit(&f->begins[stream], memory_order_relaxed);
        each = atomic_load_explicit(&f->begins[stream + 1], memory_order_relaxed) - begin;
    }
    if (at >= each * bytes) return false;
    const uintptr_t from = base + begin * bytes + at;
    for (uintptr_t i = 0; i < FETCH_BYTES; i += 64) __builtin_prefetch((const void *)(from + i), 0, 2);
    return true;
}

/* Why the plan failed. A leaf that was written in the same phase as the failed step may hold a part of its new
 * value. */
static ag_error *failure(const ag_run *r)
{
    ag_error *error = step_error(r->plan, r->failed, (agk_status)atomic_load(&r->status), r->stream, r->message);
    const size_t end = r->head + ag_together(r->plan, r->head);
    for (size_t i = r->head; i < end && r->failed < end; ++i) {
        if (i != r->failed) ag_plan_poison_leaf(r->plan, i, AGK_NO_MEMORY, error);
    }
    return error;
}

/* Whether the plan goes back into the queue, between two steps: it is the turn of a stream that is ready. Another plan
 * under way is no reason, as each worker chooses between these. */
static bool yields(const ag_pool *pool, ag_worker *worker, ag_run *r)
{
    if (!ag_pool_any_ready(pool)) return false;
    const uint64_t now = ag_now();
    if (now <= r->slice_end) return false;
    if (worker->since != 0) ag_turn_charge_run(worker, r, now);
    if (ag_turn_least_ready(pool) < atomic_load_explicit(&r->served, memory_order_relaxed)) return true;
    r->slice_end = now + AG_SLICE_NS;
    return false;
}

/* Goes on from `step`, on the thread that finished the steps before it. ELSEWHERE: a parallel step was published. */
static ag_run_result advance(ag_pool *pool, ag_worker *worker, ag_run *r, size_t *step_out, ag_error **error)
{
    const ag_plan *plan = r->plan;
    size_t step = *step_out;
    for (;; ++step) {
        if (atomic_load(&r->status) != AGK_OK) {
            *error = failure(r);
            break;
        }
        bool skipped = atomic_load(&r->skipped);
        if (step == plan->n_steps && !skipped) break;
        if (skipped || stops_here(plan, step, r->stream, r->slot)) {
            *error = abort_error(r->stream);
            break;
        }
        if (yields(pool, worker, r)) {
            *step_out = step;
            leave_run(pool, worker, r);
            return AG_RUN_YIELDED;
        }
        if (plan->steps[step].run == AGK_CALL_OUT) {
            *step_out = step;
            leave_run(pool, worker, r);
            return AG_RUN_CALLS;
        }
        uint32_t chunks = chunks_of(plan, step);
        if (chunks > 1) {
            int limit = atomic_load(&r->limit);
            const uint32_t ahead = plan->steps[step].ahead;
            offer_fetch(pool, r, step, limit);
            ag_run_publish(r, step);
            if (ahead == 0 || ahead >= WORTH_WAKING) {
                ag_pool_wake_helpers(pool, worker, (int)chunks < limit ? (int)chunks - 1 : limit - 1);
            }
            return AG_RUN_ELSEWHERE;
        }
        agk_status status = run_chunk(worker, plan, step, 0, r->arena, worker->message);
        if (status != AGK_OK) fail_chunk(r, step, status, worker->message);
    }
    leave_run(pool, worker, r);
    return AG_RUN_FINISHED;
}

typedef enum claim_result { NOTHING, WORKED, LAST } claim_result;

/* Claims one chunk and runs it. LAST: this thread finished the last outstanding chunk and has to advance from *step
 * on. */
static claim_result claim(ag_pool *pool, ag_worker *worker, ag_run *r, size_t *step)
{
    ag_claim c;
    if (!ag_run_claim(r, pool, worker, &c)) return NOTHING;
    const ag_plan *plan = r->plan; /* stays valid until the chunk is counted as done */
    *step = c.after;
    bool aborts = plan->steps[c.step].writes_leaf < 0 && ag_is_aborting(r->stream, r->slot);
    if (aborts) {
        atomic_store(&r->skipped, true);
    } else if (atomic_load(&r->status) == AGK_OK) {
        agk_status status = run_chunk(worker, plan, c.step, c.chunk, r->arena, worker->message);
        if (status != AGK_OK) fail_chunk(r, c.step, status, worker->message);
    }
    ag_pool_wake_owed(pool, worker, 1);
    return ag_run_finish(r, &c) ? LAST : WORKED;
}

ag_part ag_run_participate(ag_pool *pool, ag_worker *worker, ag_run *r, ag_run_end *end)
{
    ag_part result = AG_IDLED;
    for (;;) {
        size_t step;
        ag_turn_note(pool, worker, true);
        claim_result claimed = claim(pool, worker, r, &step);
        if (claimed == NOTHING) return result;
        result = AG_HELPED;
        if (claimed == LAST) {
            *end = (ag_run_end){.stream = r->stream, .step = step};
            end->result = advance(pool, worker, r, &end->step, &end->error);
            if (end->result != AG_RUN_ELSEWHERE) {
                atomic_fetch_sub(&r->engaged, 1); /* the stream's next operations may take long */
                return AG_LEFT;
            }
        }
        if (worker->since == 0) continue;
        /* Others may have ended the plan by now, and the run may be that of another one: it then counts a chunk of time
         * that was not its own, which is harmless. */
        const uint64_t now = ag_now();
        ag_turn_charge_run(worker, r, now);
        if (now <= worker->turn_end) continue;
        if (ag_turn_is_over(pool, atomic_load_explicit(&r->served, memory_order_relaxed), r)) return result;
        worker->turn_end = now + AG_SLICE_NS;
    }
}

ag_run *ag_run_take(ag_pool *pool, const ag_worker *worker, const ag_stream *stream)
{
    const int limit = ag_turn_threads(pool, stream);
    if (worker == NULL || limit <= 1) return NULL;
    for (int i = 0; i < AG_N_RUNS; ++i) {
        ag_run *r = &pool->runs[i];
        bool taken = false;
        if (!atomic_compare_exchange_strong(&r->taken, &taken, true)) continue;
        atomic_store(&r->limit, limit);
        return r;
    }
    return NULL;
}

ag_run_result ag_run_begin(ag_pool *pool, ag_worker *worker, ag_run *r, ag_stream *stream, ag_slot *slot, size_t *step,
                           ag_error **error)
{
    const int limit = atomic_load(&r->limit);
    r->stream = stream;
    r->slot = slot;
    r->plan = slot->u.plan.plan;
    r->arena = slot->u.plan.arena;
    r->head = *step;
    const uint64_t now = ag_now();
    r->slice_end = now + AG_SLICE_NS;
    worker->since = ag_turn_contended(pool, false) ? now : 0;
    worker->turn_end = r->slice_end;
    atomic_store_explicit(&r->served, stream->served, memory_order_relaxed);
    atomic_store(&r->status, AGK_OK);
    atomic_store(&r->skipped, false);
    ag_pool_note_speed(pool, worker);
    ag_run_open(r, pool, limit);
    atomic_fetch_add(&r->engaged, 1);
    atomic_fetch_add(&pool->active_runs, 1);
    ag_run_result result = advance(pool, worker, r, step, error);
    /* The steps are published: this thread now claims chunks in the pool's loop like all others. It counts as
     * engaged until the run ends, whichever thread ends it. */
    return result;
}
