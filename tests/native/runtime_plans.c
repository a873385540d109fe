/* Plans of many steps and random numbers of chunks, on several streams at once. Every chunk runs exactly once, steps
 * overlap only within a phase, and each step sees what earlier ones wrote. */
#include "runtime/plan_order.h"
#include "rig.h"

#define MAX_STEPS 40
#define MAX_CHUNKS 60
#define STREAMS 5

typedef struct record { /* one run of one plan; its address is passed as the arena */
    atomic_uint begun[MAX_STEPS], finished[MAX_STEPS];
    atomic_uint chunk[MAX_STEPS][MAX_CHUNKS];
    uint32_t value[MAX_STEPS][MAX_CHUNKS]; /* not atomic, so that TSan finds a missing order */
} record;

static const char some_weights[4096];

typedef struct graph {
    ag_plan *plan;
    uint32_t n_steps, n_chunks[MAX_STEPS];
    uint32_t first[MAX_STEPS]; /* the first step of this one's phase */
    uint32_t spin_ns;
} graph;

static void use_scratch(const agk_task *task, size_t size, int64_t chunk)
{
    uint8_t *bytes = task->scratch;
    CHECK(((uintptr_t)bytes & 63) == 0);
    memset(bytes, (int)chunk, size);
    for (size_t i = 0; i < size; i += 97) CHECK_EQ(bytes[i], (uint8_t)chunk);
}

static agk_status count(const agk_task *task, const agk_node *node, int64_t chunk)
{
    record *rec = (record *)task->arena;
    const graph *g = node->aux.p[0];
    int64_t step = node->aux.i[1];
    uint32_t sum = (uint32_t)chunk;
    CHECK_EQ(atomic_fetch_add(&rec->chunk[step][chunk], 1), 0);
    atomic_fetch_add(&rec->begun[step], 1);
    const uint32_t first = g->first[step];
    for (uint32_t i = first > 0 ? g->first[first - 1] : 0; i < first; ++i) {
        CHECK_EQ(atomic_load(&rec->finished[i]), g->n_chunks[i]);
        for (uint32_t c = 0; c < g->n_chunks[i]; ++c) sum += rec->value[i][c];
    }
    for (uint32_t i = first; i < g->n_steps; ++i) {
        if (g->first[i] != first) CHECK_EQ(atomic_load(&rec->begun[i]), 0);
    }
    if (g->plan->scratch_size > 0) use_scratch(task, g->plan->scratch_size, chunk);
    if (g->spin_ns > 0) check_spin(g->spin_ns);
    rec->value[step][chunk] = sum;
    atomic_fetch_add(&rec->finished[step], 1);
    return AGK_OK;
}

static graph *make_graph(rng *r)
{
    graph *g = calloc(1, sizeof *g);
    CHECK(g != NULL);
    g->plan = rig_plan();
    g->n_steps = 1 + rng_below(r, MAX_STEPS);
    g->spin_ns = rng_below(r, 2) ? 0 : rng_below(r, 3000);
    g->plan->scratch_size = rng_below(r, 2) ? 0 : 1 + rng_below(r, 20000);
    for (uint32_t i = 0; i < g->n_steps; ++i) {
        g->n_chunks[i] = rng_below(r, 2) ? 1 : 1 + rng_below(r, rng_below(r, 2) ? 4 : MAX_CHUNKS);
        rig_add(g->plan, count, g->n_chunks[i], -1, g, i);
        g->first[i] = i > 0 && rng_below(r, 3) == 0 ? g->first[i - 1] : i;
        g->plan->steps[g->first[i]].n_together = i + 1 - g->first[i];
    }
    for (uint32_t i = 0; i < g->n_steps; ++i) { /* weights that waiting threads prefetch: useless here, and harmless */
        g->plan->steps[i].weights = rng_below(r, 2) ? some_weights : NULL;
        g->plan->steps[i].chunk_bytes = rng_below(r, 5000);
    }
    ag_order_fetches(g->plan->steps, g->n_steps);
    return g;
}

static uint32_t expected_last(const graph *g)
{
    uint32_t sum = 0, next = 0;
    for (uint32_t i = 0; i < g->n_steps; ++i) {
        if (g->first[i] == i) {
            sum = next;
            next = 0;
        }
        for (uint32_t c = 0; c < g->n_chunks[i]; ++c) next += c + sum;
    }
    return next;
}

static void verify(const graph *g, record *rec)
{
    for (uint32_t i = 0; i < g->n_steps; ++i) {
        CHECK_EQ(atomic_load(&rec->finished[i]), g->n_chunks[i]);
        for (uint32_t c = 0; c < g->n_chunks[i]; ++c) CHECK_EQ(atomic_load(&rec->chunk[i][c]), 1);
    }
    uint32_t sum = 0;
    for (uint32_t i = g->first[g->n_steps - 1]; i < g->n_steps; ++i) {
        for (uint32_t c = 0; c < g->n_chunks[i]; ++c) sum += rec->value[i][c];
    }
    CHECK_EQ(sum, expected_last(g));
}

static void run(rng *r, int n_threads)
{
    enum { RUNS = 8 };
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *streams[STREAMS];
    graph *graphs[STREAMS][RUNS];
    record *records[STREAMS][RUNS];
    for (int i = 0; i < STREAMS; ++i) streams[i] = rig_stream(pool, (int)rng_below(r, 6));
    for (int k = 0; k < RUNS; ++k) {
        for (int i = 0; i < STREAMS; ++i) {
            graphs[i][k] = make_graph(r);
            records[i][k] = calloc(1, sizeof(record));
            CHECK(records[i][k] != NULL);
            rig_send(streams[i], rig_plan_slot(graphs[i][k]->plan, records[i][k]));
            if (rng_below(r, 4) == 0) ag_stream_set_n_threads(streams[i], (int)rng_below(r, 6));
        }
    }
    for (int i = 0; i < STREAMS; ++i) {
        rig_drain(streams[i]);
        for (int k = 0; k < RUNS; ++k) {
            verify(graphs[i][k], records[i][k]);
            ag_plan_unref(graphs[i][k]->plan);
            free(graphs[i][k]);
            free(records[i][k]);
        }
        ag_stream_unref(streams[i]);
    }
    rig_end(pool);
}

/* More plans at once than the pool has places for: the others run on one thread each. */
static void many_streams(rng *r)
{
    enum { MANY = 50 };
    ag_pool *pool = rig_pool(4);
    ag_stream *streams[MANY];
    record *records = calloc(MANY, sizeof *records);
    graph *g = make_graph(r);
    for (int i = 0; i < MANY; ++i) streams[i] = rig_stream(pool, 0);
    for (int i = 0; i < MANY; ++i) rig_send(streams[i], rig_plan_slot(g->plan, &records[i]));
    for (int i = 0; i < MANY; ++i) rig_drain(streams[i]);
    for (int i = 0; i < MANY; ++i) {
        verify(g, &records[i]);
        ag_stream_unref(streams[i]);
    }
    rig_end(pool);
    ag_plan_unref(g->plan);
    free(g);
    free(records);
}

static agk_status tick(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)node;
    (void)chunk;
    atomic_fetch_add((atomic_uint *)task->arena, 1);
    return AGK_OK;
}

/* The thread that ends a plan frees it: the thread that published its last step must not touch it afterwards. */
static void short_plans(void)
{
    ag_pool *pool = rig_pool(4);
    ag_stream *stream = rig_stream(pool, 0);
    atomic_uint ticks = 0;
    const int n = SCALED(20000);
    for (int i = 0; i < n; ++i) {
        ag_plan *plan = rig_plan();
        for (int k = 0; k < 3; ++k) rig_add(plan, tick, 2, -1, NULL, k);
        rig_send(stream, rig_plan_slot(plan, &ticks));
        ag_plan_unref(plan);
    }
    rig_drain(stream);
    CHECK_EQ(atomic_load(&ticks), 6 * n);
    ag_stream_unref(stream);
    rig_end(pool);
}

static void empty_plan(void)
{
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = rig_plan();
    CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, NULL))), 0);
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
}

/* `fetches`: the next weights are those of the first step behind the phase that several threads share, if it is
 * near. */
static void what_is_fetched(void)
{
    enum { N = 24 };
    static const uint32_t wanted[N] = {2, 2, 5, 5, 5, 0, 0, 23, 23, 23};
    ag_step steps[N];
    for (int i = 0; i < N; ++i) steps[i] = (ag_step){.n_chunks = 8, .n_together = 1};
    steps[2].weights = steps[3].weights = steps[5].weights = steps[N - 1].weights = some_weights;
    steps[2].n_together = 3; /* the second step of this phase has weights that are read right away */
    steps[0].weights = steps[1].weights = some_weights;
    steps[1].n_chunks = 1; /* one chunk: no other thread would read them */
    ag_order_fetches(steps, N);
    for (int i = 0; i < 10; ++i) CHECK_EQ(steps[i].fetches, wanted[i]);
    CHECK_EQ(steps[N - 1].fetches, 0);
}

static agk_node node_of(int what, int64_t n0, int64_t n1)
{
    const agk_view view = {.ne = {n0, n1, 1, 1}, .nb = {4, 4 * n0, 4 * n0 * n1, 4 * n0 * n1}, .type = AGK_F32};
    agk_node node = {.op = what, .n_src = 1, .dst = view};
    node.src[0] = view;
    return node;
}

/* `ahead`: a chunk whose estimated cost is high counts several times, but not one of a product, which is short. */
static void what_is_ahead(void)
{
    const agk_node small = node_of(AGK_OP_argsort, 64, 8), large = node_of(AGK_OP_argsort, 32000, 8);
    const agk_node product = node_of(AGK_OP_mul_mat, 4096, 4096);
    const agk_node *nodes[] = {&product, &large, &small, &small};
    ag_step steps[4];
    for (int i = 0; i < 4; ++i) steps[i] = (ag_step){.node = nodes[i], .n_chunks = 8, .place = 1};
    steps[3].place = 2; /* no other thread takes its chunks */
    ag_order_count(steps, 4);
    CHECK_EQ(steps[3].ahead, 1);
    CHECK_EQ(steps[2].ahead, 8);
    CHECK(steps[1].ahead >= 8 + 16);
    CHECK_EQ(steps[0].ahead, steps[1].ahead + 8);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(0);
    for (int round = 0; round < SCALED(60); ++round) run(&r, 1 + round % 4);
    many_streams(&r);
    short_plans();
    empty_plan();
    what_is_fetched();
    what_is_ahead();
    return 0;
}
