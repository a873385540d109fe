/* Which thread takes which chunk. There is one atomic word for each range of a step; any number of threads take chunks
 * by adding to it.
 *
 * Not here: running a chunk (plan_run.c). */
#include "pool_state.h"

/* The word of a range holds 24 bits for the step, 20 bits for the number of its chunks, 20 bits for how many of them
 * were taken. A thread looks first, then claims with fetch_add, so step and chunk come from the same atomic read, and a
 * late thread can only claim what is current. Claims beyond the end cannot overflow the field, since a thread looks
 * before it claims and there are at most 512 threads.
 *
 * Up to 8 threads have a range each. What a thread read or wrote in one step is then in its own cache, and the
 * thread gets the same data in the next step and in the next run; cores may have separate L3 caches. (A Zen 4, two
 * threads, one sequence: 1.1 to 1.4 times the tokens that one range for both gave.) 128 threads that add to one word
 * would wait for its cache line longer than for memory; with 128 ranges they would spend long looking through them.
 * So larger pools have a range for every 8 threads, the same number in each bank of memory. A thread begins with its
 * own range, goes on with those of its bank, then with the others. In each step a range has the same part of
 * the chunks, so the same rows of the weights: these are packed, touched and read next to the memory where they lie.
 * On a chip of fast and slow cores (cores.h) the ranges are as large as their threads are fast, so that fast threads do
 * not have to take from slow ones what these have in their caches.
 * The words of a step are published one after the other. A thread that came between them would find nothing in its own
 * range and take what belongs to another thread, so it leaves its range only if all words are published.
 *
 * The chunks of a step are divided into as many streams as there are threads, each of them neighbouring chunks. A
 * thread that takes chunks of one stream goes on in memory where it stopped. If threads took every other chunk
 * instead, the prefetcher of each core would probably run on from the end of a chunk into lines that another core is
 * writing or has just written, and these lines would move between the cores. Two threads of a Zen 4 that fill 16 MB in
 * their common L3 have 197 GB/s in two streams; if they take turns after 256 KB, 64 KB and 16 KB they have 92, 38 and
 * 11 GB/s. Reading, with the same turns: 195 GB/s, and 144, 134 and 109. */

static uint64_t pack(size_t step, uint32_t chunks)
{
    return (uint64_t)step << 40 | (uint64_t)chunks << 20;
}
static size_t word_step(uint64_t w)
{
    return (size_t)(w >> 40);
}
static uint32_t word_chunks(uint64_t w)
{
    return (uint32_t)(w >> 20) & 0xfffff;
}
static uint32_t word_taken(uint64_t w)
{
    return (uint32_t)w & 0xfffff;
}
static bool claimable(uint64_t w)
{
    return word_taken(w) < word_chunks(w);
}

bool ag_run_claimable(const ag_run *r)
{
    const int n = atomic_load(&r->n_ranges);
    for (int i = 0; i < n; ++i) {
        if (claimable(atomic_load(&r->ranges[i].word))) return true;
    }
    return false;
}

/* -- the chunks of a range: those of its streams, of each the first, then of each the second and so on ---------- */

static uint32_t first_stream(const ag_run *r, int range, int n_ranges)
{
    return (uint32_t)(r->n_streams * range / n_ranges);
}

/* How many of the chunks of a step a range has, and in `*first` the first of them, if threads run on cores that differ.
 * A thread that finds its range empty takes a chunk of another at once, however slow it is. So each thread has one
 * chunk first, if there are enough; of the others each range has what its speed is worth, rounded down; the fastest
 * have one of the rest each. A step of fewer chunks than threads goes to the fastest. A function apart, as inlined it
 * takes 4 ns of each step also where cores are equal. */
__attribute__((noinline)) static uint32_t weighed_part(const ag_run *r, int range, int n_ranges, uint32_t chunks,
                                                       uint32_t *first)
{
    const bool enough = chunks >= (uint32_t)r->n_streams;
    const uint64_t spare = enough ? chunks - (uint32_t)r->n_streams : 0;
    uint32_t size[AG_RANGES], rest = chunks, each = 0, begin = 0;
    for (int i = 0; i < n_ranges; ++i) {
        size[i] = (enough ? r->threads[i] : 0) + (uint32_t)(spare * r->part[i] >> 32);
        rest -= size[i];
    }
    for (; rest >= (uint32_t)n_ranges; rest -= (uint32_t)n_ranges) ++each; /* hardly ever */
    for (int i = 0; i < range; ++i) begin += size[i] + each + (r->rank[i] < rest);
    *first = begin;
    return range < n_ranges ? size[range] + each + (r->rank[range] < rest) : 0;
}

/* The size of a range in step number k of a phase. Steps of one chunk are divided between the ranges as if they were
 * the chunks of one step. */
static uint32_t size_of(const ag_run *r, int range, int n_ranges, const ag_step *steps, size_t k)
{
    const uint32_t chunks = steps[k].n_chunks;
    uint32_t first;
    if (n_ranges == 1) return chunks;
    if (r->weighed && chunks > 1) return weighed_part(r, range, n_ranges, chunks, &first);
    if (r->weighed) {
        const uint32_t n = weighed_part(r, range, n_ranges, steps->n_together, &first);
        return k >= first && k - first < n;
    }
    if (chunks == 1) return k * (size_t)n_ranges / steps->n_together == (size_t)range;
    const uint32_t n = (uint32_t)r->n_streams, from = first_stream(r, range, n_ranges);
    const uint32_t width = first_stream(r, range + 1, n_ranges) - from, rest = chunks % n;
    return chunks / n * width + (rest < from ? 0 : rest - from < width ? rest - from : width);
}

static uint32_t chunk_of(const ag_run *r, int range, int n_ranges, uint32_t chunks, uint32_t k)
{
    if (n_ranges == 1 || chunks == 1) return k;
    const uint32_t n = (uint32_t)r->n_streams, from = first_stream(r, range, n_ranges);
    const uint32_t width = first_stream(r, range + 1, n_ranges) - from, stream = from + k % width;
    if (r->weighed) {
        uint32_t first;
        const uint32_t size = weighed_part(r, range, n_ranges, chunks, &first), at = k % width, more = size % width;
        return first + at * (size / width) + (at < more ? at : more) + k / width;
    }
    const uint32_t each = chunks / n, more = chunks % n;
    return stream * each + (stream < more ? stream : more) + k / width;
}

/* -- a run ---------------------------------------------------------------------------------------------------- */

uint32_t ag_run_begins(const ag_run *r, int range, uint32_t chunks)
{
    uint32_t first;
    weighed_part(r, range, atomic_load_explicit(&r->n_ranges, memory_order_relaxed), chunks, &first);
    return first;
}

/* Decides which part of each step the ranges have: that of their threads in the speed of all, as far as they are known
 * from where each thread ran last. A thread that has moved since then has too much or too little, and others take what
 * it does not come to. Where two ranges or more have threads of all kinds, as in large pools, their speeds hardly
 * differ; then each has as much as on a machine of equal cores, so that none of it moves from plan to plan. */
static void weigh(ag_run *r, const ag_pool *pool, int n_ranges)
{
    uint64_t weight[AG_RANGES] = {0}, sum = 0, highest = 0, lowest = UINT64_MAX;
    unsigned number[AG_RANGES] = {0};
    r->weighed = false;
    if (!pool->uneven || n_ranges < 2) return;
    const int n_threads = atomic_load_explicit(&pool->n_threads, memory_order_relaxed);
    for (int i = 0; i < n_threads; ++i) { /* there is one bank, so this is the range with which worker i begins */
        weight[i % n_ranges] += atomic_load_explicit(&pool->speed[i], memory_order_relaxed);
        ++number[i % n_ranges];
    }
    for (int i = 0; i < n_ranges; ++i) {
        const uint64_t mean = weight[i] * 1024 / number[i];
        highest = mean > highest ? mean : highest;
        lowest = mean < lowest ? mean : lowest;
        weight[i] = mean * (first_stream(r, i + 1, n_ranges) - first_stream(r, i, n_ranges));
        sum += weight[i];
    }
    if (highest - lowest <= highest / 8) return;
    for (int i = 0; i < n_ranges; ++i) {
        unsigned rank = 0;
        for (int k = 0; k < n_ranges; ++k) rank += weight[k] > weight[i] || (weight[k] == weight[i] && k < i);
        r->part[i] = (uint32_t)((weight[i] << 32) / sum); /* below 2^32, since each range has a thread */
        r->rank[i] = (uint8_t)rank;
        r->threads[i] = (uint8_t)(first_stream(r, i + 1, n_ranges) - first_stream(r, i, n_ranges));
    }
    r->weighed = true;
}

void ag_run_open(ag_run *r, const ag_pool *pool, int limit)
{
    const int n_banks = pool->n_banks;
    const int room = n_banks * AG_SMALL_POOL;
    int n = n_banks * ((limit + room - 1) / room);
    if (n > AG_RANGES) n = AG_RANGES / n_banks * n_banks;
    if (n > limit || limit <= AG_SMALL_POOL) n = limit;
    r->n_streams = limit;
    weigh(r, pool, n);
    atomic_store(&r->n_ranges, n);
}

void ag_run_publish(ag_run *r, size_t step)
{
    const ag_plan *plan = r->plan;
    const size_t n_steps = ag_together(plan, step);
    const int n = atomic_load_explicit(&r->n_ranges, memory_order_relaxed);
    uint32_t sizes[AG_RANGES];
    int live = 0;
    r->head = step;
    for (int i = 0; i < n; ++i) {
        sizes[i] = 0;
        for (size_t k = 0; k < n_steps; ++k) sizes[i] += size_of(r, i, n, &plan->steps[step], k);
        atomic_store_explicit(&r->ranges[i].done, 0, memory_order_relaxed);
        live += sizes[i] > 0;
    }
    r->ranges_live = live;
    atomic_store_explicit(&r->ranges_done, 0, memory_order_relaxed);
    /* before this thread is done, others may finish the step and publish the next */
    atomic_fetch_add(&r->publishing, 1);
    for (int i = 0; i < n; ++i) { /* a range without chunks keeps its old word, which has no chunks left */
        if (sizes[i] > 0) atomic_store(&r->ranges[i].word, pack(step, sizes[i]));
    }
    atomic_fetch_sub(&r->publishing, 1);
}

void ag_run_close(ag_run *r)
{
    const int n = atomic_load_explicit(&r->n_ranges, memory_order_relaxed);
    for (int i = 0; i < n; ++i) atomic_store(&r->ranges[i].word, 0);
    atomic_store(&r->n_ranges, 0);
}

/* The i-th range that a worker looks into: first its own, then the others of its bank, then the rest. */
static int range_for(const ag_pool *pool, const ag_worker *worker, int n, int i)
{
    if (n == 1) return 0;
    const int first = worker->bank * n / pool->n_banks, end = (worker->bank + 1) * n / pool->n_banks;
    const int width = end - first, own = worker->index / pool->n_banks;
    return i < width ? first + (own + i) % width : (first + i) % n;
}

static void count(atomic_uint *mine) /* only this thread writes the counter */
{
    atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* Whether one of the first n ranges that a worker looks into has chunks left. */
static bool nearer(const ag_run *r, const ag_pool *pool, const ag_worker *worker, int n_ranges, int n)
{
    for (int i = 0; i < n; ++i) {
        if (claimable(atomic_load(&r->ranges[range_for(pool, worker, n_ranges, i)].word))) return true;
    }
    return false;
}

bool ag_run_claim(ag_run *r, ag_pool *pool, ag_worker *worker, ag_claim *c)
{
    const int n =
        /* this may be the number of another plan's ranges; at worst the thread sees too few */
        atomic_load_explicit(&r->n_ranges, memory_order_relaxed);
    for (int i = 0; i < n; ++i) {
        const int at = range_for(pool, worker, n, i);
        ag_range *range = &r->ranges[at];
        uint_fast64_t w = atomic_load(&range->word);
        if (!claimable(w)) continue;
        if (i == 0) {
            w = atomic_fetch_add(&range->word, 1);
            if (!claimable(w)) continue;
        } else {
            if (atomic_load(&r->publishing) > 0) return false; /* the caller looks again */
            if (nearer(r, pool, worker, n, i) || !atomic_compare_exchange_strong(&range->word, &w, w + 1)) {
                i = -1; /* a step was published meanwhile, or another thread took this chunk */
                continue;
            }
        }
        /* the plan, and the fields read below, stay valid until the chunk is counted as done */
        const ag_plan *plan = r->plan;
        const int n_now = atomic_load_explicit(&r->n_ranges, memory_order_relaxed);
        const ag_step *head = &plan->steps[word_step(w)];
        size_t step = 0;
        uint32_t k = word_taken(w);
        *c = (ag_claim){.range = range,
                        .of = word_chunks(w),
                        .ranges = r->ranges_live,
                        .after = word_step(w) + ag_together(plan, word_step(w))};
        for (uint32_t here; k >= (here = size_of(r, at, n_now, head, step)); ++step) k -= here;
        c->step = word_step(w) + step;
        c->chunk = chunk_of(r, at, n_now, head[step].n_chunks, k);
        count(&worker->claimed);
        if (i > 0) count(&worker->strayed);
        return true;
    }
    return false;
}

bool ag_run_finish(ag_run *r, const ag_claim *c)
{
    if (atomic_fetch_add(&c->range->done, 1) + 1 != c->of) return false;
    return atomic_fetch_add(&r->ranges_done, 1) + 1 == c->ranges;
}
