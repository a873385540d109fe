/* Chips of fast and slow cores, from copies of the system's files (machines.h): which cores there are, how fast each
 * is, and how many chunks the threads on them begin with. Each chunk is done once, whatever the cores. Not here:
 * threads and banks in general (runtime_many_cores.c). */
#include "runtime/pool_state.h"
#include "machines.h"
#include "rig.h"

static void check_kinds(int performance, int efficiency)
{
    CHECK_EQ(ag_cores().performance, performance);
    CHECK_EQ(ag_cores().efficiency, efficiency);
}

static void check_equal(int threads) /* a machine where nothing is done differently */
{
    CHECK(!ag_cores_differ());
    CHECK_EQ(ag_usable_cores(), 0);
    CHECK_EQ(ag_usable_threads(), threads);
}

/* -- which cores there are ------------------------------------------------------------------------------------ */

static void equal_cores(void)
{
    begin_files("0-7\n");
    ag_cores_pretend(root); /* no files at all */
    check_equal(8);
    check_kinds(0, 0);
    for (int cpu = 0; cpu < 8; ++cpu) {
        capacity(cpu, "1024\n");
        write_file(cpu < 4 ? "0-3\n" : "4-7\n", "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    }
    ag_cores_pretend(root);
    check_equal(8);
    check_kinds(0, 0);
    CHECK_EQ(ag_core_speed(3, 100), AG_FULL_SPEED);
    end_files();
}

static void small_and_large_cores(void)
{
    phone("0-7\n");
    ag_cores_pretend(root);
    check_kinds(4, 4);
    CHECK(ag_cores_differ());
    CHECK_EQ(ag_usable_cores(), 8);
    CHECK_EQ(ag_core_speed(0, 8), 6);
    CHECK_EQ(ag_core_speed(4, 8), AG_FULL_SPEED); /* 1 % less is the same */
    CHECK_EQ(ag_core_speed(7, 100), AG_FULL_SPEED);
    CHECK_EQ(ag_core_speed(-1, 8), 11); /* unknown: the mean */
    CHECK_EQ(ag_core_speed(AG_CPUS, 8), 11);
    capacity(0, "1\n");
    ag_cores_pretend(root);
    CHECK_EQ(ag_core_speed(0, 8), 2);
    static const char *bad[] = {"", "much\n", "0\n", "-5\n", "1025\n", "99999999999999999999\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        capacity(2, bad[i]);
        ag_cores_pretend(root);
        check_equal(8);
        check_kinds(0, 0);
    }
    end_files();
    phone("0-8\n"); /* one file is missing */
    ag_cores_pretend(root);
    check_equal(9);
    end_files();
}

static void performance_and_efficiency_cores(void)
{
    desktop("0-31\n");
    ag_cores_pretend(root);
    check_kinds(8, 16);
    CHECK(ag_cores_differ());
    CHECK_EQ(ag_usable_threads(), 32);
    CHECK_EQ(ag_usable_cores(), 24);
    CHECK(ag_usable_cpus() <= 24); /* the machine of the test may grant less time */
    CHECK(ag_core_same(0, 1) && ag_core_same(15, 14) && !ag_core_same(1, 2) && !ag_core_same(16, 17));
    CHECK(!ag_core_same(-1, 0) && !ag_core_same(40, 40));
    for (int cpu = 0; cpu < 32; ++cpu) {
        CHECK_EQ(ag_core_speed(cpu, 24), cpu < 16 ? AG_FULL_SPEED : 6); /* half of 4.3/5.8 */
        CHECK_EQ(ag_core_speed(cpu, 25), cpu < 16 ? AG_FULL_SPEED / 2 : 6);
    }
    CHECK_EQ(ag_core_speed(32, 24), (8 * 16 + 16 * 6) / 24);
    for (int cpu = 16; cpu < 20; ++cpu) highest_clock(cpu, "2500000\n"); /* those that save most */
    highest_clock(20, "fast\n");
    highest_clock(21, "-1\n");
    highest_clock(22, "9000000\n");
    ag_cores_pretend(root);
    CHECK_EQ(ag_core_speed(16, 1), 3);
    for (int cpu = 20; cpu < 23; ++cpu)
        CHECK_EQ(ag_core_speed(cpu, 1), 8); /* no word of the clock: half of the speed */
    end_files();
}

static void masks(void)
{
    static const struct {
        const char *usable;
        int performance, efficiency, cores, threads;
    } cases[] = {
        {"16-31\n", 0, 16, 0, 16}, /* only efficiency cores: equal */
        {"0-15\n", 0, 0, 0, 16},   /* only performance cores: equal, each hyperthread counts */
        {"1,16-17\n", 1, 2, 3, 3}, /* the second hyperthread of a core */
        {"2-5,20\n", 2, 1, 3, 5},  {"31\n", 0, 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        desktop(cases[i].usable);
        ag_cores_pretend(root);
        check_kinds(cases[i].performance, cases[i].efficiency);
        CHECK_EQ(ag_cores_differ(), cases[i].cores > 0);
        CHECK_EQ(ag_usable_cores(), cases[i].cores);
        CHECK_EQ(ag_usable_threads(), cases[i].threads);
        end_files();
    }
    phone("0-3\n");
    ag_cores_pretend(root);
    check_equal(4);
    check_kinds(0, 4);
    end_files();
}

static void lists_that_make_no_sense(void)
{
    static const struct {
        const char *core, *atom;
    } cases[] = {
        {"", "16-31\n"},         {"0-15\n", ""},       {"all\n", "16-31\n"}, {"0-15\n", "0-31\n"}, /* a core of both */
        {"0-15\n", "16-30\n"},                                                                     /* one of neither */
        {"0-15\n", "-16--31\n"}, {"2000\n", "3000\n"}, {"0-\n", "16-\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        desktop("0-31\n");
        write_file(cases[i].core, "devices/cpu_core/cpus");
        write_file(cases[i].atom, "devices/cpu_atom/cpus");
        ag_cores_pretend(root);
        check_equal(32);
        check_kinds(0, 0);
        end_files();
    }
    desktop("0-31\n");
    write_file("nobody\n", "devices/system/cpu/cpu1/topology/thread_siblings_list");
    write_file("1-3\n", "devices/system/cpu/cpu5/topology/thread_siblings_list"); /* does not name itself */
    ag_cores_pretend(root);
    check_kinds(10, 16); /* 1 and 5 count as cores of their own */
    end_files();
}

/* -- chunks --------------------------------------------------------------------------------------------------- */

static agk_status nothing(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)node;
    (void)chunk;
    return AGK_OK;
}

/* Where the speeds are those of the machine, and no thread looks for work any more. */
static ag_pool *pool_at_rest(int n_threads)
{
    ag_pool *pool = rig_pool(n_threads);
    CHECK_SOON(ag_pool_sleepers(pool) == n_threads);
    return pool;
}

static bool takes(ag_run *run, ag_pool *pool, int worker, ag_claim *claim)
{
    return ag_run_claim(run, pool, pool->workers[worker], claim);
}

/* The worker of each range takes all of it, and has not strayed. Returns the sizes of the ranges. */
static void check_ranges(ag_pool *pool, int limit, const uint32_t *sizes, int n_sizes, uint32_t *of)
{
    static ag_run run;
    static uint8_t taken[8][1 << 16];
    ag_plan *plan = rig_plan();
    ag_claim claim;
    uint32_t all = 0;
    for (int i = 0; i < n_sizes; ++i) rig_add(plan, nothing, sizes[i], -1, NULL, i), all += sizes[i];
    plan->steps[0].n_together = (uint32_t)n_sizes;
    memset(&run, 0, sizeof run);
    memset(taken, 0, sizeof taken);
    run.plan = plan;
    ag_run_open(&run, pool, limit);
    ag_run_publish(&run, 0);
    const int n = atomic_load(&run.n_ranges);
    for (int i = 0; i < n; ++i) {
        uint32_t last[8] = {0};
        const unsigned strayed = atomic_load(&pool->workers[i]->strayed);
        of[i] = 0;
        for (uint32_t k = 0; k == 0 || k < of[i]; ++k) {
            if (!takes(&run, pool, i, &claim)) break;                 /* nothing is left at all */
            if (atomic_load(&pool->workers[i]->strayed) != strayed) { /* its range is empty, this is one of another */
                CHECK_EQ(k, 0);
                atomic_fetch_sub(&claim.range->word, 1);
                break;
            }
            of[i] = claim.of;
            CHECK(claim.chunk < sizes[claim.step]);
            CHECK_EQ(taken[claim.step][claim.chunk]++, 0);
            if (n == limit && k > 0 && last[claim.step] > 0) CHECK_EQ(claim.chunk, last[claim.step]); /* neighbours */
            last[claim.step] = claim.chunk + 1;
        }
        if (run.weighed && n == limit && n_sizes == 1 && of[i] > 0)
            CHECK_EQ(last[0] - of[i], ag_run_begins(&run, i, sizes[0]));
        all -= of[i];
    }
    CHECK_EQ(all, 0);
    CHECK(!ag_run_claimable(&run));
    ag_plan_unref(plan);
}

/* Each thread has one chunk first. Of the others, however many, a range has what its speed is worth, and fast ones have
 * the rest. */
static void ranges_are_as_large_as_their_threads_are_fast(void)
{
    uint32_t of[AG_RANGES];
    phone("0-7\n");
    ag_cores_pretend(root);
    ag_pool *pool = pool_at_rest(8);
    for (uint32_t chunks = 2; chunks < 5000; chunks += 1 + chunks / 7) {
        check_ranges(pool, 8, &chunks, 1, of);
        for (int i = 0; i < 8; ++i) {
            const uint32_t worth = chunks < 8 ? 0 : 1 + (chunks - 8) * (i < 4 ? 6 : 16) / 88; /* rounded down */
            CHECK(of[i] == worth || of[i] == worth + 1);
            if (i >= 4 && of[0] > worth) CHECK(of[i] > worth); /* the slow have none of the rest first */
        }
    }
    const uint32_t four = 4, phase[] = {100, 1, 1, 1, 1, 1, 33}, ones[] = {1, 1, 1, 1};
    check_ranges(pool, 8, &four, 1, of);
    for (int i = 0; i < 8; ++i) CHECK_EQ(of[i], i >= 4); /* one for each fast core */
    check_ranges(pool, 8, phase, 7, of);
    check_ranges(pool, 8, ones, 4, of);
    for (int i = 0; i < 8; ++i) CHECK_EQ(of[i], i >= 4);
    for (int limit = 2; limit < 8; ++limit) check_ranges(pool, limit, phase, 7, of); /* some threads are not used */
    rig_end(pool);
    end_files();
}

/* Ranges that several threads share, each of them with a stream of neighbouring chunks. */
static void shared_ranges(void)
{
    uint32_t of[AG_RANGES];
    begin_files("0-23\n");
    for (int cpu = 0; cpu < 24; ++cpu) capacity(cpu, cpu % 3 == 0 ? "1024\n" : "512\n");
    ag_cores_pretend(root);
    ag_pool *pool = pool_at_rest(24);
    for (uint32_t chunks = 24; chunks < 5000; chunks += 1 + chunks / 7) {
        check_ranges(pool, 24, &chunks, 1, of);
        const uint32_t more = chunks - 24;
        CHECK(of[0] - 8 - more / 2 <= 1 && of[1] - 8 - more / 4 <= 1 && of[2] - 8 - more / 4 <= 1);
    }
    rig_end(pool);
    end_files();
    /* Threads of both kinds share each range: all have equal parts, as on a machine of equal cores. */
    desktop("0-31\n");
    ag_cores_pretend(root);
    pool = pool_at_rest(24);
    const uint32_t many = 240;
    check_ranges(pool, 24, &many, 1, of);
    for (int i = 0; i < 3; ++i) CHECK_EQ(of[i], 80);
    rig_end(pool);
    end_files();
}

static void equal_cores_have_equal_ranges(void)
{
    uint32_t of[AG_RANGES];
    for (int real = 0; real < 2; ++real) {
        desktop("16-31\n");
        ag_cores_pretend(real ? NULL : root);
        ag_pool *pool = pool_at_rest(5);
        for (uint32_t chunks = 2; chunks < 100 && !(real && ag_cores_differ()); ++chunks) {
            check_ranges(pool, 5, &chunks, 1, of);
            for (uint32_t i = 0; i < 5; ++i) CHECK_EQ(of[i], chunks / 5 + (i < chunks % 5));
        }
        rig_end(pool);
        end_files();
    }
}

/* Pages are placed by equal parts, one for each bank. */
static void banks_have_equal_ranges(void)
{
    uint32_t of[AG_RANGES];
    const uint32_t many = 240;
    phone("0-7\n");
    ag_cores_pretend(root);
    ag_topology_pretend(8, 2);
    ag_pool *pool = pool_at_rest(8);
    CHECK_EQ(pool->n_banks, 2);
    check_ranges(pool, 8, &many, 1, of);
    for (int i = 0; i < 8; ++i) CHECK_EQ(of[i], 30);
    rig_end(pool);
    ag_topology_pretend(0, 0);
    end_files();
}

/* -- threads -------------------------------------------------------------------------------------------------- */

enum { MOST_CHUNKS = 600, STEPS = 6 };

typedef struct record {
    atomic_int done[MOST_CHUNKS];
} record;

static agk_status once_each(const agk_task *task, const agk_node *node, int64_t chunk)
{
    record *r = (record *)task->arena + node->aux.i[1];
    atomic_fetch_add(&r->done[chunk], 1);
    return AGK_OK;
}

/* Steps of all sizes, alone and in one phase, on threads that steal from each other; also while threads are added. */
static void each_chunk_once(const char *usable, int n_threads, int limit)
{
    static const uint32_t sizes[STEPS] = {2, 7, 600, 33, 1, 129};
    static record records[STEPS];
    desktop(usable);
    ag_cores_pretend(root);
    ag_pool *pool = rig_pool(n_threads);
    ag_stream *stream = rig_stream(pool, limit);
    for (int together = 0; together < 3; ++together) {
        ag_plan *plan = rig_plan();
        for (int i = 0; i < STEPS; ++i) rig_add(plan, once_each, sizes[i], -1, NULL, i);
        if (together == 1) plan->steps[1].n_together = 3;
        if (together == 2) plan->steps[0].n_together = STEPS;
        for (int round = 0; round < SCALED(200); ++round) {
            memset(records, 0, sizeof records);
            if (together == 2 && round == 5) CHECK(ag_pool_grow(pool, n_threads + 3, true));
            CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, records))), 0);
            for (int i = 0; i < STEPS; ++i) {
                for (uint32_t c = 0; c < sizes[i]; ++c) CHECK_EQ(atomic_load(&records[i].done[c]), 1);
            }
        }
        ag_plan_unref(plan);
    }
    ag_stream_unref(stream);
    rig_end(pool);
    end_files();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    equal_cores();
    small_and_large_cores();
    performance_and_efficiency_cores();
    masks();
    lists_that_make_no_sense();
    ranges_are_as_large_as_their_threads_are_fast();
    shared_ranges();
    equal_cores_have_equal_ranges();
    banks_have_equal_ranges();
    each_chunk_once("14-17\n", 3, 0);
    each_chunk_once("0,2,4,6,16-19\n", 8, 0);
    each_chunk_once("0-31\n", 24, 0);
    each_chunk_once("0-31\n", 24, 5);
    each_chunk_once("0-31\n", 32, 0);
    return 0;
}
