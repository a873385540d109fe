/* Whose turn it is: each stream gets the same time of workers for each thread that it may use.
 *
 * `served` is the time that workers gave to a stream, divided by the number of its threads. A worker that comes to the
 * end of a node, or of a chunk that it shares with others, after a slice (AG_SLICE_NS) goes on if nobody who waits was
 * served less. Time counts only while others wait, and a stream that comes back counts as served as much as whoever had
 * the last turn. Copies do not count. docs/notebook/many-cores.md says why streams do not simply take turns. Not here:
 * the queue of ready streams (pool_ready.c), what is done in a turn (threadpool.c, plan_run.c). */
#include "pool_state.h"
#include "stream_state.h"

int ag_turn_threads(const ag_pool *pool, const ag_stream *stream)
{
    int limit = atomic_load(&stream->n_threads), threads = atomic_load(&pool->n_threads);
    if (limit <= 0) limit = atomic_load(&pool->width);
    return limit < threads ? limit : threads;
}

void ag_turn_charge(ag_pool *pool, ag_worker *worker, ag_stream *stream, uint64_t now)
{
    const int threads = ag_turn_threads(pool, stream);
    stream->served += (now - worker->since) / (uint64_t)(threads > 1 ? threads : 1);
    worker->since = now;
}

void ag_turn_charge_run(ag_worker *worker, ag_run *run, uint64_t now)
{
    const int threads = atomic_load_explicit(&run->limit, memory_order_relaxed);
    const uint64_t ns = (now - worker->since) / (uint64_t)(threads > 1 ? threads : 1);
    atomic_fetch_add_explicit(&run->served, ns, memory_order_relaxed);
    worker->since = now;
}

void ag_turn_raise_floor(ag_pool *pool, uint64_t served)
{
    uint64_t floor = atomic_load_explicit(&pool->floor, memory_order_relaxed);
    while (floor < served && !atomic_compare_exchange_weak_explicit(&pool->floor, &floor, served, memory_order_relaxed,
                                                                    memory_order_relaxed))
        continue;
}

uint64_t ag_turn_least_ready(const ag_pool *pool)
{
    uint64_t least = AG_NOBODY;
    for (int i = 0; i < pool->n_banks; ++i) {
        const uint64_t here = atomic_load_explicit(&pool->banks[i].least, memory_order_relaxed);
        if (here < least) least = here;
    }
    return least;
}

/* Whether a thread that joins the run would find something to do. */
static bool has_room(const ag_run *r)
{
    return ag_run_claimable(r) && atomic_load(&r->engaged) <= atomic_load(&r->limit);
}

bool ag_turn_is_over(const ag_pool *pool, uint64_t served, const ag_run *own)
{
    if (ag_pool_any_ready(pool) && ag_turn_least_ready(pool) < served) return true;
    if (atomic_load(&pool->active_runs) <= (own != NULL ? 1 : 0)) return false;
    for (int i = 0; i < AG_N_RUNS; ++i) {
        const ag_run *r = &pool->runs[i];
        if (r != own && atomic_load_explicit(&r->served, memory_order_relaxed) < served && has_room(r)) return true;
    }
    return false;
}

ag_run *ag_turn_next_run(ag_pool *pool, const ag_worker *worker)
{
    ag_run *best = NULL;
    uint64_t least = AG_NOBODY;
    for (int i = 0; i < AG_N_RUNS; ++i) {
        ag_run *r = &pool->runs[(i + worker->index) % AG_N_RUNS];
        const uint64_t served = atomic_load_explicit(&r->served, memory_order_relaxed);
        if (served >= least || !has_room(r)) continue;
        least = served;
        best = r;
    }
    if (best != NULL) ag_turn_raise_floor(pool, least);
    return best;
}

bool ag_turn_is_of_plans(ag_pool *pool, const ag_worker *worker)
{
    if (atomic_load(&pool->active_runs) == 0 || !ag_pool_any_ready(pool)) return false;
    const ag_run *r = ag_turn_next_run(pool, worker);
    return r != NULL && atomic_load_explicit(&r->served, memory_order_relaxed) <= ag_turn_least_ready(pool);
}
