/* Plan: a graph lowered into a flat list of steps. A plan is immutable once it is sealed; any number of threads can run
 * it.
 *
 * Not here: the cost of a node (plan_cost.c), running (plan_run.c), which steps run together (plan_order.c), how a
 * node is cut (the groups in lower/). */
#include <stdio.h>
#include <stdlib.h>

#include "packing.h"
#include "table/kernel_types.h"
#include "plan_order.h"

/* A step with this many chunks or more would overflow the claim word of the pool. */
#define MAX_CHUNKS 1000000

ag_plan *ag_plan_new(uint32_t cpu, size_t work_base)
{
    ag_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return NULL;
    atomic_init(&plan->refs, 1);
    plan->cpu = cpu;
    plan->work_base = (work_base + 63) & ~(size_t)63;
    plan->order = ag_order_new();
    if (plan->order == NULL) {
        free(plan);
        return NULL;
    }
    return plan;
}

ag_plan *ag_plan_ref(ag_plan *plan)
{
    atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
    return plan;
}

static void drop_storages(ag_storage **list, size_t n)
{
    for (size_t i = 0; i < n; ++i) ag_storage_unref(list[i]);
    free(list);
}

void ag_plan_unref(ag_plan *plan)
{
    if (plan == NULL || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t i = 0; i < plan->n_nodes; ++i) free(plan->nodes[i]);
    free(plan->nodes);
    free(plan->names);
    free(plan->steps);
    ag_order_free(plan->order);
    for (size_t i = 0; i < plan->n_packed; ++i) ag_packed_release(plan->packed[i]);
    free(plan->packed);
    drop_storages(plan->reads, plan->n_reads);
    drop_storages(plan->writes, plan->n_writes);
    drop_storages(plan->partial, plan->n_partial);
    free(plan->file_parts);
    if (plan->device != NULL) plan->drop_device(plan->device);
    free(plan);
}

static bool reserve(ag_plan *plan)
{
    if (plan->n_nodes == plan->cap_nodes) {
        size_t cap = plan->cap_nodes ? 2 * plan->cap_nodes : 16;
        agk_node **nodes = realloc(plan->nodes, cap * sizeof *nodes);
        if (nodes == NULL) return false;
        plan->nodes = nodes;
        char (*names)[AG_NAME] = realloc(plan->names, cap * sizeof *names);
        if (names == NULL) return false;
        plan->names = names;
        plan->cap_nodes = cap;
    }
    if (plan->n_steps + AGK_MAX_STEPS > plan->cap_steps) {
        size_t cap = plan->cap_steps ? 2 * plan->cap_steps : 32;
        ag_step *steps = realloc(plan->steps, cap * sizeof *steps);
        if (steps == NULL) return false;
        plan->steps = steps;
        plan->cap_steps = cap;
    }
    if (plan->n_packed == plan->cap_packed) {
        size_t cap = plan->cap_packed ? 2 * plan->cap_packed : 16;
        agk_packed **packed = realloc(plan->packed, cap * sizeof *packed);
        if (packed == NULL) return false;
        plan->packed = packed;
        plan->cap_packed = cap;
    }
    return true;
}

/* The node whose result is the columns of product `node`, if that node can write them packed and nothing else reads
 * it. */
static agk_node *source_of_columns(const ag_plan *plan, const agk_node *node)
{
    enum { FAR = 32 };
    const agk_view *b = &node->src[1];
    if (node->op != AGK_OP_mul_mat || agk_nelements(b) == 0) return NULL;
    for (size_t i = plan->n_nodes; i > 0 && i + FAR > plan->n_nodes; --i) {
        agk_node *other = plan->nodes[i - 1];
        const agk_view *dst = &other->dst;
        if (ag_writes_more(other)) return NULL;
        if (agk_nelements(dst) == 0 || dst->arena_mask != b->arena_mask || dst->addr >= ag_view_end(b) ||
            b->addr >= ag_view_end(dst))
            continue;
        const bool same = dst->addr == b->addr && dst->type == b->type && memcmp(dst->ne, b->ne, sizeof b->ne) == 0 &&
                          memcmp(dst->nb, b->nb, sizeof b->nb) == 0;
        return same && other->gives_columns != 0 ? other : NULL;
    }
    return NULL;
}

/* Whether `node` may write the tensor that `columns` were made of, the ids that say which experts they belong to, or
 * the work memory where they lie. */
static bool ends_columns(const agk_lowering *lowering, const agk_node *node, const agk_node *columns)
{
    const agk_view *dst = &node->dst;
    if (ag_writes_more(node) || (lowering->work_size > 0 && !lowering->lays_columns)) return true;
    if (agk_nelements(dst) == 0) return false;
    for (int i = 1; i < columns->n_src; ++i) {
        const agk_view *from = &columns->src[i];
        if (!agk_has(columns, i) || from->arena_mask != dst->arena_mask) continue;
        if (dst->addr < ag_view_end(from) && from->addr < ag_view_end(dst)) return true;
    }
    return false;
}

/* Adds the steps of a lowered node, and its work memory. */
static bool add_steps(ag_plan *plan, agk_lowering *lowering, int writes_leaf)
{
    agk_node *node = lowering->node;
    ag_node_steps n = {.node = node,
                       .steps = plan->steps + plan->n_steps,
                       .n_steps = lowering->n_steps,
                       .writes_leaf = writes_leaf,
                       .cost = ag_node_cost(node),
                       .work_size = lowering->work_size,
                       .lays_columns = lowering->lays_columns,
                       .alone = plan->cpu == 0};
    /* A node that lays out columns has a step for that, unless it takes columns that are there already. */
    n.takes_columns = n.lays_columns && lowering->columns != NULL && n.n_steps == 1;
    if (n.takes_columns) {
        node->work = lowering->columns->work;
    } else if (n.work_size > 0) {
        node->work = plan->work_base + ag_order_work(plan->order, n.work_size);
    }
    for (int i = 0; i < n.n_steps; ++i) {
        n.steps[i] = (ag_step){.run = lowering->step[i].run,
                               .node = node,
                               .n_chunks = (uint32_t)lowering->step[i].n_chunks,
                               .writes_leaf = writes_leaf,
                               .n_together = 1};
    }
    if (n.n_steps > 0) {
        n.steps[n.n_steps - 1].weights = lowering->weights_at;
        n.steps[n.n_steps - 1].chunk_bytes = lowering->chunk_bytes;
    }
    if (plan->order != NULL && !ag_order_add(plan->order, &n)) return false;
    plan->n_steps += (size_t)n.n_steps;
    plan->cost += n.cost;
    const size_t work_end = node->work + n.work_size - plan->work_base;
    if (n.work_size > 0 && work_end > plan->work_size) plan->work_size = work_end;
    return true;
}

agk_status ag_plan_add(ag_plan *plan, const agk_node *node, const char *name, int writes_leaf, ag_storage *weights,
                       char *message)
{
    agk_node *copy = NULL;
    /* C11 wants the size to be a multiple of the alignment. */
    if (!reserve(plan) || (copy = aligned_alloc(64, (sizeof *copy + 63) & ~(size_t)63)) == NULL) {
        snprintf(message, AGK_MESSAGE, "no memory for the plan");
        return AGK_NO_MEMORY;
    }
    *copy = *node;
    copy->work = plan->work_base;
    agk_node *source = source_of_columns(plan, copy);
    agk_lowering lowering = {.node = copy,
                             .cpu = plan->cpu,
                             .weights = weights != NULL ? &weights->weights : NULL,
                             .source = source,
                             .columns = plan->columns};
    agk_status status = agk_lower(&lowering);
    for (int i = 0; status == AGK_OK && i < lowering.n_steps; ++i) {
        if (lowering.step[i].n_chunks < 1 || lowering.step[i].n_chunks > MAX_CHUNKS) {
            snprintf(lowering.message, AGK_MESSAGE, "divided into %lld chunks, but there may be 1 to %d",
                     (long long)lowering.step[i].n_chunks, MAX_CHUNKS);
            status = AGK_UNSUPPORTED;
        }
    }
    if (status != AGK_OK) {
        memcpy(message, lowering.message, AGK_MESSAGE);
        ag_packed_release(lowering.packed);
        free(copy);
        return status;
    }
    if (!add_steps(plan, &lowering, writes_leaf)) {
        snprintf(message, AGK_MESSAGE, "no memory for the plan");
        ag_packed_release(lowering.packed);
        free(copy);
        return AGK_NO_MEMORY;
    }
    if (lowering.source_k > 0) {
        source->columns_k = lowering.source_k;
        source->columns_form = lowering.source_form;
    }
    if (lowering.lays_columns) plan->columns = copy;
    if (plan->columns != NULL && ends_columns(&lowering, copy, plan->columns)) plan->columns = NULL;
    if (lowering.packed != NULL) plan->packed[plan->n_packed++] = lowering.packed;
    if (lowering.scratch_size > plan->scratch_size) plan->scratch_size = lowering.scratch_size;
    snprintf(plan->names[plan->n_nodes], AG_NAME, "%s", name);
    plan->nodes[plan->n_nodes++] = copy;
    return AGK_OK;
}

static bool take_storages(ag_storage ***list, size_t *count, ag_storage **from, size_t n)
{
    if (n == 0) return true;
    *list = malloc(n * sizeof **list);
    if (*list == NULL) return false;
    for (size_t i = 0; i < n; ++i) (*list)[i] = ag_storage_ref(from[i]);
    *count = n;
    return true;
}

/* Records what operand `v` reads of a storage that may be a file. */
static bool note_file_part(ag_plan *plan, const agk_view *v, size_t *room)
{
    if (v->type == AGK_NONE || v->arena_mask != 0) return true;
    for (size_t i = 0; i < plan->n_reads; ++i) {
        const ag_storage *s = plan->reads[i];
        if (s->backing == AG_IN_MEMORY || v->addr < s->first || v->addr >= s->end) continue;
        if (plan->n_file_parts == *room) {
            const size_t more = *room ? 2 * *room : 4;
            ag_file_part *grown = realloc(plan->file_parts, more * sizeof *grown);
            if (grown == NULL) return false;
            plan->file_parts = grown;
            *room = more;
        }
        plan->file_parts[plan->n_file_parts++] = (ag_file_part){v->addr, s->end - v->addr, s->backing};
        const uintptr_t end = ag_view_end(v);
        if (end > v->addr && end < s->end) plan->file_parts[plan->n_file_parts - 1].size = end - v->addr;
        return true;
    }
    return true;
}

static bool note_file_parts(ag_plan *plan)
{
    bool any = false;
    for (size_t i = 0; i < plan->n_reads; ++i) any = any || plan->reads[i]->backing != AG_IN_MEMORY;
    size_t room = 0;
    for (size_t i = 0; any && i < plan->n_nodes; ++i) {
        for (int k = 0; k < plan->nodes[i]->n_src; ++k) {
            if (!note_file_part(plan, &plan->nodes[i]->src[k], &room)) return false;
        }
    }
    return true;
}

bool ag_plan_seal(ag_plan *plan, ag_storage **reads, size_t n_reads, ag_storage **writes, size_t n_writes,
                  ag_storage **partial, size_t n_partial)
{
    if (plan->order != NULL && !ag_order_steps(plan->order, plan->steps, plan->n_steps)) return false;
    /* Chunks are cut for vector kernels; one in plain C takes much longer. */
    if (!AGK_IS_PLAIN(unary_f32, AGK_PICK(unary_f32, plan->cpu))) ag_order_count(plan->steps, plan->n_steps);
    ag_order_fetches(plan->steps, plan->n_steps);
    ag_order_free(plan->order);
    plan->order = NULL;
    return take_storages(&plan->reads, &plan->n_reads, reads, n_reads) &&
           take_storages(&plan->writes, &plan->n_writes, writes, n_writes) &&
           take_storages(&plan->partial, &plan->n_partial, partial, n_partial) && note_file_parts(plan);
}

size_t ag_plan_arena_size(const ag_plan *plan)
{
    return plan->work_base + plan->work_size;
}

ag_error *ag_plan_error(const ag_plan *plan, size_t step, agk_status status, const char *device, const char *message)
{
    static const ag_code codes[] = {[AGK_OK] = AG_DEVICE_ERROR,
                                    [AGK_UNSUPPORTED] = AG_UNSUPPORTED,
                                    [AGK_OUT_OF_BOUNDS] = AG_OUT_OF_BOUNDS,
                                    [AGK_INVALID] = AG_INVALID_ARGUMENT,
                                    [AGK_NO_MEMORY] = AG_NO_MEMORY};
    const agk_node *node = plan->steps[step].node;
    size_t index = 0;
    while (index < plan->n_nodes && plan->nodes[index] != node) ++index;
    char text[256];
    snprintf(text, sizeof text, "node %d (%s): %s", node->number, agk_op_name(node->op), message);
    return ag_error_new(codes[status], device, "graph_compute", plan->names[index], text);
}
