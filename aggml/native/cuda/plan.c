/* Plans of a CUDA device are made here: modules, which are cubins, and lists of launches.
 *
 * Not here: running them (plan_run.c), which kernels there are (devices/cuda/kernels), compiling them. */
#include <stdio.h>
#include <stdlib.h>

#include "plan_state.h"
#include "state.h"

/* -- modules: a cubin, loaded by the issuing thread when a kernel of it is first needed -------------------------- */

ag_cuda_module *ag_cuda_module_new(ag_cuda_device *device, const char *name)
{
    ag_cuda_module *module = calloc(1, sizeof *module);
    if (module == NULL) return NULL;
    atomic_init(&module->refs, 1);
    module->device = ag_cuda_device_ref(device);
    snprintf(module->name, sizeof module->name, "%s", name);
    pthread_mutex_init(&module->lock, NULL);
    return module;
}

static ag_cuda_module *module_ref(ag_cuda_module *module)
{
    atomic_fetch_add_explicit(&module->refs, 1, memory_order_relaxed);
    return module;
}

/* A library stays loaded: unloading waits for the device, and modules live as long as it does. */
void ag_cuda_module_unref(ag_cuda_module *module)
{
    if (module == NULL || atomic_fetch_sub_explicit(&module->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&module->lock);
    ag_cuda_device_unref(module->device);
    free(atomic_load(&module->image));
    free(module);
}

/* Called at each run, by threads that may not wait. So it takes no lock: the driver loads modules under the lock. */
bool ag_cuda_module_has_image(ag_cuda_module *module)
{
    return atomic_load(&module->image) != NULL;
}

bool ag_cuda_module_set_image(ag_cuda_module *module, const void *image, size_t size)
{
    void *copy = malloc(size ? size : 1);
    if (copy == NULL) return false;
    memcpy(copy, image, size);
    void *none = NULL;
    if (!atomic_compare_exchange_strong(&module->image, &none, copy)) free(copy);
    return true;
}

/* -- plans -------------------------------------------------------------------------------------------------------- */

ag_cuda_plan *ag_cuda_plan_new(ag_cuda_device *device, bool overlaps)
{
    ag_cuda_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return NULL;
    plan->device = ag_cuda_device_ref(device);
    plan->first_fault = -1;
    plan->overlaps = overlaps;
    return plan;
}

void ag_cuda_plan_free(ag_cuda_plan *plan)
{
    if (plan == NULL) return;
    if (plan->graph != NULL) ag_cuda_throw_away(plan->device, plan->graph);
    for (size_t i = 0; i < plan->n_launches; ++i) ag_cuda_module_unref(plan->launches[i].module);
    ag_cuda_sum_unref(plan->sum);
    ag_cuda_device_unref(plan->device);
    free(plan->nodes);
    free(plan->launches);
    free(plan->args);
    free(plan->relatives);
    free(plan->partial_nodes);
    free(plan);
}

/* `list` is the address of a pointer to objects of any type. */
static bool room(void *list, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap) return true;
    size_t grown = 2 * *cap > n ? 2 * *cap : n + 16;
    void *now;
    memcpy(&now, list, sizeof now);
    now = realloc(now, grown * size);
    if (now == NULL) return false;
    memcpy(list, &now, sizeof now);
    *cap = grown;
    return true;
}

bool ag_cuda_plan_node(ag_cuda_plan *plan, const char *name, const char *op, int64_t fault)
{
    if (fault >= 0 && (plan->n_faults + 1) * AG_CUDA_FAULT > AG_CUDA_RING) return false; /* 262,144 of them */
    if (!room(&plan->nodes, &plan->cap_nodes, plan->n_nodes + 1, sizeof *plan->nodes)) return false;
    node *n = &plan->nodes[plan->n_nodes++];
    snprintf(n->name, sizeof n->name, "%s", name);
    snprintf(n->op, sizeof n->op, "%s", op);
    n->fault = fault;
    n->gemm = n->kernels = false;
    if (fault >= 0) {
        if (plan->first_fault < 0) plan->first_fault = fault;
        ++plan->n_faults; /* one after the other from the first on */
    }
    return true;
}

static launch *add_launch(ag_cuda_plan *plan, const void *args, size_t size, const uint32_t *relative_at,
                          size_t n_relative)
{
    size_t at = (plan->n_args + 15) & ~(size_t)15; /* as the widest member of a parameter may need it */
    if (!room(&plan->launches, &plan->cap_launches, plan->n_launches + 1, sizeof *plan->launches) ||
        !room(&plan->args, &plan->cap_args, at + size, 1) ||
        !room(&plan->relatives, &plan->cap_relatives, plan->n_relatives + n_relative, sizeof *plan->relatives)) {
        return NULL;
    }
    if (size > 0) memcpy(plan->args + at, args, size);
    plan->n_args = at + size;
    for (size_t i = 0; i < n_relative; ++i) {
        relative *r = &plan->relatives[plan->n_relatives++];
        r->at = at + relative_at[i];
        memcpy(&r->value, plan->args + r->at, sizeof r->value);
    }
    launch *l = &plan->launches[plan->n_launches++];
    *l = (launch){.args = at, .size = size, .node = plan->n_nodes - 1};
    return l;
}

bool ag_cuda_plan_launch(ag_cuda_plan *plan, ag_cuda_module *module, const char *kernel, const unsigned grid[3],
                         const unsigned block[3], unsigned shared, const void *args, size_t size,
                         const uint32_t *relative_at, size_t n_relative)
{
    launch *l = add_launch(plan, args, size, relative_at, n_relative);
    if (l == NULL) return false;
    l->module = module_ref(module);
    l->shared = shared;
    snprintf(l->name, sizeof l->name, "%s", kernel);
    memcpy(l->grid, grid, sizeof l->grid);
    memcpy(l->block, block, sizeof l->block);
    return true;
}

void ag_cuda_plan_when(ag_cuda_plan *plan, int when)
{
    plan->launches[plan->n_launches - 1].when = when;
}

bool ag_cuda_plan_gemm(ag_cuda_plan *plan, const void *args, size_t size, const uint32_t *relative_at,
                       size_t n_relative)
{
    launch *l = size == sizeof(ag_cuda_gemm) ? add_launch(plan, args, size, relative_at, n_relative) : NULL;
    if (l == NULL) return false;
    l->gemm = true;
    l->when = AG_CUDA_WITH_BLAS;
    plan->nodes[l->node].gemm = true;
    return true;
}

void ag_cuda_plan_zeroes(ag_cuda_plan *plan, uint64_t offset, size_t size)
{
    plan->zeroes = offset;
    plan->n_zeroes = size;
}

void ag_cuda_plan_sum(ag_cuda_plan *plan, ag_cuda_sum *sum, size_t rank, uint64_t send, uint64_t recv)
{
    plan->sum = ag_cuda_sum_ref(sum);
    plan->rank = rank;
    plan->part = (ag_cuda_part){.send = send, .recv = recv};
}

bool ag_cuda_plan_is_sum(const ag_slot *slot)
{
    const ag_cuda_plan *plan = slot->kind == AG_KIND_PLAN ? slot->u.plan.plan->device : NULL;
    return plan != NULL && plan->sum != NULL;
}

void ag_cuda_issue_plan_sum(ag_cuda_issue *issue, ag_slot *slot)
{
    ag_cuda_plan *plan = slot->u.plan.plan->device;
    ag_cuda_issue_sum(issue, slot, plan->sum, plan->rank, &plan->part);
}

bool ag_cuda_plan_writes_partial(ag_cuda_plan *plan, size_t index)
{
    size_t cap = plan->n_partial;
    if (index >= plan->n_partial) {
        if (!room(&plan->partial_nodes, &cap, index + 1, sizeof *plan->partial_nodes)) return false;
        while (plan->n_partial <= index) plan->partial_nodes[plan->n_partial++] = 0;
    }
    plan->partial_nodes[index] = plan->n_nodes - 1;
    return true;
}

static void drop(void *device)
{
    ag_cuda_plan_free(device);
}

void ag_cuda_plan_attach(ag_plan *plan, ag_cuda_plan *mine, size_t scratch)
{
    mine->scratch = scratch;
    plan->device = mine;
    plan->drop_device = drop;
}
