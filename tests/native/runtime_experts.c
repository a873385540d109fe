/* Experts that are guessed, noted and named: on a stream that copies, beside those that fetch ids and compute.
 *
 * Rounds are queued ahead, as a scheduler does. A round forgets all matrices, copies those that the round before
 * named, until the ids are known, then those that are missing; the computation checks each matrix that was named.
 * Not here: the scheduler's order of these operations (tests/scheduler/test_guesses.py). */
#include "rig.h"

enum { EXPERTS = 12, SIZE = 96, USED = 3, TOKENS = 2, IDS = USED * TOKENS, STACKS = 3, ROUNDS = 60, PROGRAMS = 12 };

typedef struct stack {
    uint8_t source[EXPERTS][SIZE], here[EXPERTS][SIZE];
    int32_t remembered[IDS];
    ag_expert_history history;
} stack;

typedef struct step_round {
    int32_t router[IDS];
    stack *stacks;
    atomic_int *checked;
    bool wrong; /* an id is out of bounds */
} step_round;

static agk_status check_named(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const step_round *now = node->aux.p[0];
    (void)task;
    for (int i = 0; i < IDS && !now->wrong; ++i) {
        const int32_t id = now->router[i];
        CHECK(memcmp(now->stacks[chunk].here[id], now->stacks[chunk].source[id], SIZE) == 0);
        atomic_fetch_add(now->checked, 1);
    }
    return AGK_OK;
}

static ag_slot of_stack(stack *s, int64_t guess, uint64_t latency)
{
    ag_slot slot = rig_slot(AG_KIND_EXPERTS);
    slot.u.experts = (ag_experts){.dst = s->here[0],
                                  .src = s->source[0],
                                  .size = SIZE,
                                  .n = EXPERTS,
                                  .latency = latency,
                                  .history = &s->history,
                                  .guess = guess};
    return slot;
}

static ag_slot named(stack *s, const int32_t *ids, uint64_t latency)
{
    ag_slot slot = of_stack(s, AG_EXPERTS_NAMED, latency);
    slot.u.experts.ids = (const uint8_t *)ids;
    slot.u.experts.ids_ne[0] = USED;
    slot.u.experts.ids_ne[1] = TOKENS;
    slot.u.experts.ids_nb[0] = sizeof *ids;
    slot.u.experts.ids_nb[1] = USED * sizeof *ids;
    return slot;
}

static ag_slot note(stack *s)
{
    ag_slot slot = rig_slot(AG_KIND_EXPERTS);
    slot.u.experts.history = &s->history;
    slot.u.experts.guess = AG_EXPERTS_NOTE;
    return slot;
}

static void after(ag_stream *stream, op before)
{
    rig_send(stream, rig_wait_slot(before.stream, before.ticket));
    rig_drop(before);
}

/* Waits and releases an operation that ends with this code; returns the bytes that it copied. */
static uint64_t copied_by(op o, int code)
{
    ag_error *error = rig_error(o);
    CHECK_EQ(error != NULL ? (int)error->code : 0, code);
    const uint64_t size = error != NULL ? 0 : rig_slot_of(o)->moved;
    rig_drop(o);
    return size;
}

static uint64_t bytes_of(const step_round *now) /* of the matrices that it names */
{
    uint64_t found = 0;
    for (int i = 0; i < IDS; ++i) {
        bool again = false;
        for (int j = 0; j < i; ++j) again |= now->router[i] == now->router[j];
        found += again ? 0 : SIZE;
    }
    return found;
}

/* Ids that stay from round to round with a probability, twice the same ones now and then. */
static void choose(rng *r, step_round *now, const step_round *last)
{
    const uint32_t stays = rng_below(r, 4);
    now->wrong = rng_below(r, 16) == 0;
    for (int i = 0; i < IDS; ++i) {
        const bool keep = last != NULL && !last->wrong && rng_below(r, 4) < stays;
        now->router[i] = keep ? last->router[i] : (int32_t)rng_below(r, EXPERTS);
    }
    if (now->wrong) now->router[rng_below(r, IDS)] = rng_below(r, 2) ? EXPERTS : -1;
}

static void one(rng *r, ag_pool *pool, uint64_t *guessed)
{
    ag_stream *up = rig_stream(pool, 0), *down = rig_stream(pool, 0), *compute = rig_stream(pool, 0);
    stack *stacks = calloc(STACKS, sizeof *stacks);
    step_round *rounds = calloc(ROUNDS, sizeof *rounds);
    int32_t *ids = calloc(IDS, sizeof *ids);
    op copies[ROUNDS][STACKS], guesses[ROUNDS][STACKS][IDS];
    atomic_int checked = 0;
    int expected = 0;
    CHECK(stacks != NULL && rounds != NULL && ids != NULL);
    for (int k = 0; k < STACKS; ++k) {
        for (int i = 0; i < EXPERTS; ++i) memset(stacks[k].source[i], 1 + k * EXPERTS + i, SIZE);
        for (int i = 0; i < IDS; ++i) stacks[k].remembered[i] = -1;
        stacks[k].history.n = IDS;
        stacks[k].history.ids = stacks[k].remembered;
    }
    for (int n = 0; n < ROUNDS; ++n) {
        step_round *now = &rounds[n];
        choose(r, now, n > 0 ? now - 1 : NULL);
        now->stacks = stacks;
        now->checked = &checked;
        expected += now->wrong ? 0 : STACKS * IDS;
        for (int k = 0; k < STACKS; ++k) {
            rig_send(up, rig_fill(stacks[k].here, 0xee, sizeof stacks[k].here));
            for (int i = 0; i < IDS; ++i)
                guesses[n][k][i] = rig_start(up, of_stack(&stacks[k], i, rng_below(r, 2) * 3000));
        }
        if (rng_below(r, 2)) rig_send(down, rig_delay(rng_below(r, 30000)));
        rig_send(down, rig_copy(ids, now->router, sizeof now->router));
        for (int k = 0; k < STACKS; ++k) rig_send(down, note(&stacks[k]));
        after(up, rig_start(down, rig_slot(AG_KIND_NOP)));
        for (int k = 0; k < STACKS; ++k) copies[n][k] = rig_start(up, named(&stacks[k], ids, rng_below(r, 2) * 3000));
        after(down, rig_start(up, rig_slot(AG_KIND_NOP))); /* the next ids come when these have been read */
        after(compute, rig_start(up, rig_slot(AG_KIND_NOP)));
        ag_plan *plan = rig_plan();
        rig_add(plan, check_named, STACKS, -1, now, 0);
        after(up, rig_start(compute, rig_plan_slot(plan, NULL)));
        ag_plan_unref(plan);
    }
    const step_round *last = NULL; /* the last one that named experts: its ids are guessed */
    for (int n = 0; n < ROUNDS; ++n) {
        const uint64_t most = last != NULL ? bytes_of(last) : 0, whole = bytes_of(&rounds[n]);
        for (int k = 0; k < STACKS; ++k) {
            const uint64_t size = copied_by(copies[n][k], rounds[n].wrong ? AG_OUT_OF_BOUNDS : 0);
            uint64_t early = 0;
            for (int i = 0; i < IDS; ++i) early += copied_by(guesses[n][k][i], 0);
            CHECK(early <= most); /* nothing twice */
            if (rounds[n].wrong) continue;
            CHECK(size <= whole && size + early >= whole);
            *guessed += whole - size;
        }
        if (!rounds[n].wrong) last = &rounds[n];
    }
    rig_drain(compute);
    rig_drain(up);
    rig_drain(down);
    CHECK_EQ(atomic_load(&checked), expected);
    ag_stream_unref(up);
    ag_stream_unref(down);
    ag_stream_unref(compute);
    free(stacks);
    free(rounds);
    free(ids);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(1);
    uint64_t guessed = 0;
    for (int threads = 1; threads <= 3; ++threads) {
        ag_pool *pool = rig_pool(threads);
        for (int i = 0; i < PROGRAMS; ++i) one(&r, pool, &guessed);
        rig_end(pool);
    }
    CHECK(guessed > 0); /* some came before they were named */
    return 0;
}
