/* The order of a plan's steps: which of them run together, and which ones a single thread runs without a barrier.
 *
 * A plan is a row of places. Even places hold steps of one chunk, which one thread runs one after the other. Odd places
 * hold steps whose chunks any thread takes; all steps of such a place run in one phase. Each node takes the first place
 * behind all nodes whose bytes conflict with its own. So products of the same columns (queries, keys and values; gate
 * and up) are one phase with one barrier, and the small nodes that came between them follow together. Shapes and
 * addresses alone decide this.
 *
 * Steps that check numbers in memory and may refuse them (row indices) keep their order. Memory that outlives the
 * graph is not written before such a check that precedes it, nor in the same phase. Not here: running (plan_run.c). */
#include <stdlib.h>

#include "plan_order.h"

enum {
    WINDOW = 16,             /* how many earlier nodes a node is compared with; it never moves before older ones */
    SPANS = AGK_MAX_SRC + 3, /* operands, the result, work memory that is read and that is written */
    MOST = 500000,           /* chunks of a phase */
    WORTH_A_CLAIM = 20000,   /* in the unit of ag_plan_cost: some us, where a claim takes 0.05 */
    /* the same of all steps of an even place together: if none of them needs another one, they are a phase, too */
    WORTH_A_PHASE = 20000,
    WORTH_A_STEP = 500,  /* and of one of them on average */
    WORK_RING = 1 << 20, /* bytes of work memory for nodes that run together: four of the largest that share it */
};

typedef struct span {
    uintptr_t first, end, arena;
    uint32_t place;
    bool written;
} span;

typedef struct entry {
    span spans[SPANS];
    int n_spans;
    uint32_t place; /* the place of its last step */
} entry;

/* What two places hold, an even one and the odd one behind it. */
typedef struct phase {
    uint32_t chunks; /* of the odd place */
    uint32_t steps;  /* of the even place */
    bool in_order;   /* the steps of the even place may need each other */
    uint64_t cost;   /* of the even place */
} phase;

struct ag_order {
    entry recent[WINDOW];
    uint64_t n_nodes;
    uint32_t floor; /* no step goes before this place: nodes that left the window are there */
    uint32_t last;  /* the last place taken so far */
    /* the last place where something may be refused, and the last where a leaf is written */
    uint32_t refuses, leaves;
    phase *phases; /* indexed by place / 2 */
    size_t n_phases;
    size_t work_next, work_least; /* the next offset in the ring, and the most that a single node wanted */
};

ag_order *ag_order_new(void)
{
    ag_order *order = calloc(1, sizeof *order);
    if (order != NULL) order->floor = order->last = 1; /* a step behind an even place needs one of that place */
    return order;
}

void ag_order_free(ag_order *order)
{
    if (order == NULL) return;
    free(order->phases);
    free(order);
}

uintptr_t ag_view_end(const agk_view *v)
{
    const agk_type_traits *traits = agk_traits(v->type);
    int64_t bytes = v->nb[0] == (int64_t)traits->type_size ? (int64_t)agk_row_size(v->type, v->ne[0])
                                                           : (v->ne[0] - 1) * v->nb[0] + (int64_t)traits->type_size;
    for (int d = 1; d < 4; ++d) bytes += (v->ne[d] - 1) * v->nb[d];
    return v->addr + (uintptr_t)bytes;
}

bool ag_writes_more(const agk_node *node)
{
    const uint32_t updates = UINT32_MAX << AGK_UPDATES_AT;
    return agk_is(node->op, AGK_WRITES_ANY | updates);
}

size_t ag_order_work(ag_order *order, size_t size)
{
    if (order == NULL || size > WORK_RING / 4) return 0;
    if (size > order->work_least) order->work_least = size;
    /* Offsets are multiples of 64, so four of the largest may need a little more. */
    size_t at = order->work_next + size <= 4 * (order->work_least + 63) ? order->work_next : 0;
    order->work_next = (at + size + 63) & ~(size_t)63;
    return at;
}

static void add_view(entry *e, const agk_view *v, bool written)
{
    if (agk_nelements(v) == 0) return;
    e->spans[e->n_spans++] =
        (span){.first = v->addr, .end = ag_view_end(v), .arena = v->arena_mask, .written = written};
}

static void spans_of(entry *e, const ag_node_steps *n)
{
    e->n_spans = 0;
    add_view(e, &n->node->dst, true);
    for (int i = 0; i < n->node->n_src; ++i) {
        if (agk_has(n->node, i)) add_view(e, &n->node->src[i], false);
    }
    if (n->work_size == 0) return;
    const uintptr_t at = n->node->work;
    span work = {.first = at, .end = at + n->work_size, .arena = ~(uintptr_t)0};
    e->spans[e->n_spans++] = work;
    if (n->takes_columns) return;
    work.written = true;
    e->spans[e->n_spans++] = work;
}

/* The last place of `before` after which `e` may first touch the same bytes; `place` if there is no conflict. */
static uint32_t behind(const entry *e, const entry *before, uint32_t place)
{
    if (before->place <= place) return place; /* none of its spans has a later place */
    for (int i = 0; i < before->n_spans; ++i) {
        const span *a = &before->spans[i];
        if (a->place <= place) continue;
        for (int j = 0; j < e->n_spans; ++j) {
            const span *b = &e->spans[j];
            if ((a->written || b->written) && a->first < b->end && b->first < a->end && a->arena == b->arena) {
                place = a->place;
                break;
            }
        }
    }
    return place;
}

static bool reserve(ag_order *order, uint32_t place)
{
    const size_t wanted = place / 2 + 2;
    if (wanted <= order->n_phases) return true;
    const size_t n = 2 * wanted + 16;
    phase *phases = realloc(order->phases, n * sizeof *phases);
    if (phases == NULL) return false;
    memset(phases + order->n_phases, 0, (n - order->n_phases) * sizeof *phases);
    order->phases = phases;
    order->n_phases = n;
    return true;
}

/* The place of a step that must come after `after`. `worth`: a step of one chunk may join a phase with others. `cost`:
 * of a step that runs beside any other of its place; 0: it does not. */
static bool put(ag_order *order, ag_step *step, uint32_t after, bool worth, uint64_t cost)
{
    const uint32_t odd = after + 1 + (after & 1);
    if (!reserve(order, odd)) return false;
    if (step->n_chunks == 1 && !(worth && order->phases[odd / 2].chunks > 0 && order->phases[odd / 2].chunks < MOST)) {
        step->place = after + (after & 1);
        phase *p = &order->phases[step->place / 2];
        p->in_order = p->in_order || cost == 0 || step->place == after;
        p->cost += cost;
        ++p->steps;
        return true;
    }
    uint32_t place = odd;
    while (order->phases[place / 2].chunks > 0 && order->phases[place / 2].chunks + step->n_chunks > MOST) {
        place += 2;
        if (!reserve(order, place)) return false;
    }
    order->phases[place / 2].chunks += step->n_chunks;
    step->place = place;
    return true;
}

static bool is_fence(const ag_node_steps *n)
{
    if (n->alone || ag_writes_more(n->node)) return true;
    /* An abort never stops inside a node that writes a leaf. In a node that sets rows it may, between the check of
     * the indices and the rows. */
    return n->writes_leaf >= 0 && n->n_steps > 1 && n->node->op != AGK_OP_set_rows;
}

/* The place after which node `e` comes. */
static uint32_t earliest(const ag_order *order, const entry *e, const ag_node_steps *n)
{
    uint32_t after = order->floor;
    for (int i = 0; i < WINDOW; ++i) {
        if (&order->recent[i] != e) after = behind(e, &order->recent[i], after);
    }
    const bool leaf = n->writes_leaf >= 0, refuses = agk_is(n->node->op, AGK_CHECKS);
    if ((leaf || refuses) && order->refuses > after) after = order->refuses;
    if (refuses && !leaf && order->leaves > after) after = order->leaves;
    return after;
}

static void settle(ag_order *order, entry *e, const ag_node_steps *n)
{
    const uint32_t first = n->steps[0].place, last = n->steps[n->n_steps - 1].place;
    e->place = last;
    for (int i = 0; i < e->n_spans; ++i) e->spans[i].place = last;
    /* Columns that other nodes use are complete after the first step; the last step reads them, too. */
    if (n->lays_columns && !n->takes_columns && n->n_steps > 1) e->spans[e->n_spans - 1].place = first;
    if (last > order->last) order->last = last;
    if (n->writes_leaf >= 0 && last > order->leaves) order->leaves = last;
    const uint32_t look = n->node->op == AGK_OP_set_rows ? first : last;
    if (agk_is(n->node->op, AGK_CHECKS) && look > order->refuses) order->refuses = look;
}

bool ag_order_add(ag_order *order, const ag_node_steps *n)
{
    if (n->n_steps == 0) return true;
    entry *e = &order->recent[order->n_nodes++ % WINDOW];
    if (e->place > order->floor) order->floor = e->place; /* the place of the node that leaves the window */
    e->place = 0;
    spans_of(e, n);
    const bool fence = is_fence(n);
    uint32_t after = fence ? order->last : earliest(order, e, n);
    const bool worth = n->cost >= WORTH_A_CLAIM && n->writes_leaf < 0 && !fence;
    const bool free = n->n_steps == 1 && n->writes_leaf < 0 && !fence && !agk_is(n->node->op, AGK_CHECKS);
    for (int i = 0; i < n->n_steps; ++i) {
        /* the other steps only prepare the last one */
        if (!put(order, &n->steps[i], after, worth && i == n->n_steps - 1, free ? n->cost : 0)) return false;
        after = n->steps[i].place;
    }
    settle(order, e, n);
    if (fence) order->floor = order->last;
    return true;
}

/* Whether the steps of a place run in one phase. */
static bool together(const ag_order *order, uint32_t place)
{
    if (place / 2 >= order->n_phases) return false; /* steps that no node was lowered to are not in `order` */
    const phase *p = &order->phases[place / 2];
    return (place & 1) != 0 || (!p->in_order && p->cost >= WORTH_A_PHASE && p->cost >= WORTH_A_STEP * p->steps);
}

bool ag_order_steps(const ag_order *order, ag_step *steps, size_t n)
{
    const size_t n_places = (size_t)order->last + 2;
    size_t *at = calloc(n_places, sizeof *at);
    ag_step *sorted = malloc((n + 1) * sizeof *sorted);
    const bool ok = at != NULL && sorted != NULL;
    if (ok) {
        for (size_t i = 0; i < n; ++i) ++at[steps[i].place + 1];
        for (size_t p = 1; p < n_places; ++p) at[p] += at[p - 1];
        for (size_t i = 0; i < n; ++i) sorted[at[steps[i].place]++] = steps[i];
        if (n > 0) /* a graph that has only views has no steps, and `sorted` may be NULL */
            memcpy(steps, sorted, n * sizeof *steps);
        for (size_t i = 0; i < n;) {
            size_t end = i + 1;
            while (end < n && steps[end].place == steps[i].place && together(order, steps[i].place)) ++end;
            steps[i].n_together = (uint32_t)(end - i);
            i = end;
        }
    }
    free(at);
    free(sorted);
    return ok;
}

/* Chunks of a step, as if each took some 10 us. Products are cut into such chunks. A chunk of another op may take
 * longer: a row of argsort, one of the tensors of concat. The estimates of costs (plan_cost.c) are 1.6 to 5 times too
 * long for ops that move data and 4 to 13 times for those that compute, so 50 us of them count as 10. */
static uint64_t slices_of(const ag_step *step)
{
    enum { ESTIMATED_NS = 50000 };
    const agk_units units = agk_ops[step->node->op].units;
    const bool fine = units == AGK_UNITS_DOTS || units == AGK_UNITS_EXPERTS || units == AGK_UNITS_KEYS;
    if (fine || step->n_chunks == 1) return step->n_chunks;
    const uint64_t slices = ag_node_cost(step->node) / ESTIMATED_NS;
    return slices > step->n_chunks ? slices : step->n_chunks;
}

void ag_order_count(ag_step *steps, size_t n)
{
    uint64_t ahead = 0;
    for (size_t i = n; i-- > 0;) {
        const int op = steps[i].node->op;
        if (agk_is(op, AGK_WRITES_ANY)) return; /* the time of a user's function is unknown */
        if ((steps[i].place & 1) != 0 && ahead < UINT32_MAX / 2) ahead += slices_of(&steps[i]);
        steps[i].ahead = ahead == 0           ? 1 /* nobody is woken for small steps alone; 0 would mean unknown */
                         : ahead < UINT32_MAX ? (uint32_t)ahead
                                              : UINT32_MAX;
    }
}

void ag_order_fetches(ag_step *steps, size_t n)
{
    enum { SOON = 16 };
    /* 0 means none, since the first step follows no other. */
    for (size_t i = n; i-- > 0;) {
        const size_t end = i + (steps[i].n_together > 1 ? steps[i].n_together : 1);
        size_t at = end < n && steps[end].weights != NULL && steps[end].n_chunks > 1 ? end : 0;
        if (at == 0 && end < n) at = steps[end].fetches;
        steps[i].fetches = at != 0 && at - i <= SOON ? (uint32_t)at : 0;
    }
}
