/* Plans of a CUDA device: modules, which are cubins; lists of launches; running them.
 *
 * A plan runs launch by launch the first time, and as one CUDA graph from then on. Scratch belongs to the queue. If it
 * has moved since the last run, the addresses relative to it are filled in again before the run; the graph is then
 * captured again and updated in place. Kernels report errors that depend on the data (a row index out of range) in 32
 * bytes of their node. The bytes of all nodes come back with the run and are checked when it is settled. Not here:
 * which kernels there are (devices/cuda/kernels), compiling them, sums over several GPUs (sum.c). */
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

/* A cubin, loaded by the issuing thread when a kernel of it is first needed. */
struct ag_cuda_module {
    atomic_int refs;
    ag_cuda_device *device;
    char name[AG_NAME];
    pthread_mutex_t lock;
    _Atomic(void *) image; /* set once */
    void *library;
};

typedef struct relative {
    size_t at;      /* in the plan's argument bytes */
    uint64_t value; /* bytes from the arena's begin */
} relative;

typedef struct launch {
    ag_cuda_module *module;
    char name[AG_NAME];
    void *kernel; /* NULL: not looked up yet */
    unsigned grid[3], block[3], shared;
    size_t args, size; /* the kernel's one parameter */
    size_t node;
    int when;
    bool gemm; /* a product by cuBLASLt, not a kernel: args is an ag_cuda_gemm */
    const ag_cuda_blas_shape *shape;
} launch;

typedef struct node {
    char name[AG_NAME], op[32];
    int64_t fault;      /* from the arena's begin, or -1 */
    bool gemm, kernels; /* the node has products for cuBLASLt; kernels compute them instead */
} node;

struct ag_cuda_plan {
    ag_cuda_device *device;
    node *nodes;
    size_t n_nodes, cap_nodes;
    launch *launches;
    size_t n_launches, cap_launches;
    uint8_t *args;
    size_t n_args, cap_args;
    relative *relatives;
    size_t n_relatives, cap_relatives;
    size_t *partial_nodes; /* for each partial storage, the latest node that writes it */
    size_t n_partial;
    int64_t first_fault;
    size_t n_faults;
    uint64_t zeroes; /* bytes from the arena's begin that are to be zeros, before those of the faults */
    size_t n_zeroes;
    size_t scratch;
    ag_cuda_sum *sum; /* the plan is this sum over several GPUs, and nothing else; NULL: launches */
    size_t rank;      /* of the device in it */
    ag_cuda_part part;
    bool overlaps; /* a kernel may begin before its predecessor has ended: every kernel waits by itself */
    /* the issuing thread's */
    bool looked_up;
    uintptr_t arena; /* that args hold; graph: that it was captured with */
    void *graph;
    uintptr_t graph_arena;
    bool ran;
};

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

/* -- running: by the issuing thread -------------------------------------------------------------------------------- */

static int find_kernel(ag_cuda_issue *issue, ag_cuda_module *module, const char *name, void **kernel)
{
    int code = AG_CU_OK;
    pthread_mutex_lock(&module->lock);
    if (module->library == NULL)
        code = AG_CU(issue, cuLibraryLoadData, &module->library, atomic_load(&module->image), NULL, NULL, 0, NULL, NULL,
                     0);
    if (code != AG_CU_OK) module->library = NULL;
    pthread_mutex_unlock(&module->lock);
    return code != AG_CU_OK ? code : AG_CU(issue, cuLibraryGetKernel, kernel, module->library, name);
}

static ag_error *node_error(const ag_cuda_plan *plan, const char *device, size_t index, ag_code code, const char *what)
{
    const node *n = &plan->nodes[index];
    char text[256];
    snprintf(text, sizeof text, "node %zu (%s): %.200s", index, n->op, what);
    return ag_error_new(code, device, "graph_compute", n->name, text);
}

static ag_error *call_error(ag_cuda_issue *issue, const ag_cuda_plan *plan, size_t index, int code)
{
    ag_error *plain = ag_cuda_error(plan->device, code, issue->call, "graph_compute", plan->nodes[index].name);
    ag_error *error = node_error(plan, issue->queue->name, index, plain->code, plain->text);
    ag_error_unref(plain);
    return error;
}

static ag_error *blas_error(const ag_cuda_issue *issue, const ag_cuda_plan *plan, size_t index, int status)
{
    char text[160];
    snprintf(text, sizeof text, "%s: %s (%d)", issue->call, ag_cuda_blas_status(status), status);
    return node_error(plan, issue->queue->name, index, ag_cuda_blas_code(status), text);
}

/* Decides which nodes use the library: those where it has an algorithm for all products of the node. */
static ag_error *look_up_products(ag_cuda_issue *issue, ag_cuda_plan *plan)
{
    for (size_t i = 0; i < plan->n_nodes; ++i) plan->nodes[i].kernels = !plan->nodes[i].gemm;
    for (size_t i = 0; i < plan->n_launches; ++i) {
        launch *l = &plan->launches[i];
        node *n = &plan->nodes[l->node];
        if (!l->gemm || n->kernels) continue;
        ag_cuda_blas_shape *shape = NULL;
        ag_cuda_gemm gemm;
        memcpy(&gemm, plan->args + l->args, sizeof gemm);
        issue->call = "cublasLtMatmulAlgoGetHeuristic";
        int status = plan->device->blas == NULL ? 0 : ag_cuda_blas_shape_of(plan->device->blas, &gemm, &shape);
        if (status != 0) return blas_error(issue, plan, l->node, status);
        if (shape == NULL) n->kernels = true;
        l->shape = shape;
    }
    return NULL;
}

static bool is_left_out(const ag_cuda_plan *plan, const launch *l)
{
    return l->when == (plan->nodes[l->node].kernels ? AG_CUDA_WITH_BLAS : AG_CUDA_WITHOUT_BLAS);
}

static ag_error *look_up(ag_cuda_issue *issue, ag_cuda_plan *plan)
{
    ag_error *error = look_up_products(issue, plan);
    if (error != NULL) return error;
    for (size_t i = 0; i < plan->n_launches; ++i) {
        launch *l = &plan->launches[i];
        if (l->kernel != NULL || l->gemm || is_left_out(plan, l)) continue;
        if (!ag_cuda_module_has_image(l->module))
            return node_error(plan, issue->queue->name, l->node, AG_UNSUPPORTED, "its kernels could not be compiled");
        void *kernel;
        size_t offset, size, more;
        int code = find_kernel(issue, l->module, l->name, &kernel);
        if (code == AG_CU_OK) code = AG_CU(issue, cuKernelGetParamInfo, kernel, 0, &offset, &size);
        if (code != AG_CU_OK) return call_error(issue, plan, l->node, code);
        /* Launching with other bytes than the kernel reads ends the process. */
        if (size != l->size || ag_cu.cuKernelGetParamInfo(kernel, 1, &offset, &more) == AG_CU_OK) {
            char text[160];
            snprintf(text, sizeof text, "kernel %s takes %zu bytes in one parameter, it would be given %zu", l->name,
                     size, l->size);
            return node_error(plan, issue->queue->name, l->node, AG_DEVICE_ERROR, text);
        }
        if (l->shared > 49152) { /* every block may use this much without an attribute */
            code = AG_CU(issue, cuKernelSetAttribute, AG_CU_MAX_DYNAMIC_SHARED, (int)l->shared, kernel,
                         plan->device->ordinal);
            if (code != AG_CU_OK) return call_error(issue, plan, l->node, code);
        }
        l->kernel = kernel;
    }
    plan->looked_up = true;
    return NULL;
}

static void bind(ag_cuda_plan *plan, uintptr_t arena)
{
    if (plan->arena == arena) return;
    for (size_t i = 0; i < plan->n_relatives; ++i) {
        uint64_t address = arena + plan->relatives[i].value;
        memcpy(plan->args + plan->relatives[i].at, &address, sizeof address);
    }
    plan->arena = arena;
}

/* Statuses of cuBLASLt are mapped to numbers that the driver does not use, so that each call returns one number. */
#define OF_BLAS 100000

/* `early`: the kernel may begin while the one before it ends; it waits for that one by itself (kernels/common.cuh). */
static int launch_one(ag_cuda_issue *issue, const launch *l, void *stream, void **parameter, bool early)
{
    ag_cu_launch_attribute attribute = {.id = AG_CU_LAUNCH_PROGRAMMATIC, .value = {1}};
    const ag_cu_launch_config config = {
        .grid = {l->grid[0], l->grid[1], l->grid[2]},
        .block = {l->block[0], l->block[1], l->block[2]},
        .shared = l->shared,
        .stream = stream,
        .attributes = early ? &attribute : NULL,
        .n_attributes = early,
    };
    return AG_CU(issue, cuLaunchKernelEx, &config, l->kernel, parameter, NULL);
}

/* Launches into the stream, or into the graph that is being captured from it. On failure `index` tells the node. */
static int launch_all(ag_cuda_issue *issue, ag_cuda_plan *plan, size_t *index)
{
    void *stream = issue->queue->cuda;
    int code = AG_CU_OK;
    bool after_kernel = false; /* of this plan: whatever came before it has to have ended */
    *index = 0;
    size_t zeroes = plan->n_zeroes + plan->n_faults * AG_CUDA_FAULT;
    uint64_t from = plan->n_zeroes > 0 ? plan->zeroes : (uint64_t)plan->first_fault;
    if (zeroes > 0) code = AG_CU(issue, cuMemsetD8Async, plan->arena + from, 0, zeroes, stream);
    for (size_t i = 0; i < plan->n_launches && code == AG_CU_OK; ++i) {
        const launch *l = &plan->launches[i];
        void *parameter = plan->args + l->args;
        if (is_left_out(plan, l)) continue;
        *index = l->node;
        if (l->gemm) {
            issue->call = "cublasLtMatmul";
            code = ag_cuda_blas_multiply(plan->device->blas, l->shape, parameter, stream);
            if (code != 0) code += OF_BLAS;
            issue->ran = true; /* as far as can be known: it may launch more than one kernel */
            after_kernel = false;
            continue;
        }
        code = launch_one(issue, l, stream, &parameter, plan->overlaps && after_kernel);
        after_kernel = true;
        issue->ran = issue->ran || code == AG_CU_OK;
    }
    return code;
}

static int instantiate(ag_cuda_issue *issue, ag_cuda_plan *plan, void *captured)
{
    if (plan->graph != NULL) {
        ag_cu_update_info info;
        if (ag_cu.cuGraphExecUpdate(plan->graph, captured, &info) == AG_CU_OK) return AG_CU_OK;
        ag_cuda_throw_away(plan->device, plan->graph);
        plan->graph = NULL;
    }
    int code = AG_CU(issue, cuGraphInstantiateWithFlags, &plan->graph, captured, 0);
    if (code != AG_CU_OK) plan->graph = NULL;
    return code;
}

static int capture(ag_cuda_issue *issue, ag_cuda_plan *plan, size_t *index)
{
    ag_cuda_queue *q = issue->queue;
    void *captured = NULL;
    *index = 0;
    int code = AG_CU(issue, cuStreamBeginCapture, q->cuda, AG_CU_CAPTURE_THREAD_LOCAL);
    if (code != AG_CU_OK) return code;
    code = launch_all(issue, plan, index);
    issue->ran = false; /* nothing of it ran */
    const char *call = issue->call;
    int ended =
        AG_CU(issue, cuStreamEndCapture, q->cuda, &captured); /* also after a failure: the stream is usable then */
    if (code != AG_CU_OK) {
        issue->call = call;
    } else {
        code = ended;
    }
    if (code == AG_CU_OK) code = instantiate(issue, plan, captured);
    if (code == AG_CU_OK) plan->graph_arena = plan->arena;
    if (captured != NULL) (void)ag_cu.cuGraphDestroy(captured);
    return code;
}

/* A plan that runs once is not worth instantiating. */
static int run(ag_cuda_issue *issue, ag_cuda_plan *plan, size_t *index)
{
    int code;
    if (!plan->ran || plan->n_launches < 2) {
        code = launch_all(issue, plan, index);
        plan->ran = code == AG_CU_OK;
        return code;
    }
    if (plan->graph == NULL || plan->graph_arena != plan->arena) {
        code = capture(issue, plan, index);
        if (code != AG_CU_OK) return code;
    }
    *index = 0;
    code = AG_CU(issue, cuGraphLaunch, plan->graph, issue->queue->cuda);
    issue->ran = code == AG_CU_OK;
    return code;
}

static int issue_plan(ag_cuda_issue *issue, ag_error **error)
{
    ag_cuda_queue *q = issue->queue;
    ag_cuda_plan *plan = issue->slot->u.plan.plan->device;
    if (plan->device != q->device) {
        *error =
            ag_error_new(AG_UNSUPPORTED, q->name, "graph_compute", NULL, "the plan was compiled for another device");
        return AG_CU_OK;
    }
    *error = ag_cuda_scratch(q, plan->scratch);
    if (*error != NULL || plan->n_launches == 0) return AG_CU_OK;
    if (!plan->looked_up) *error = look_up(issue, plan);
    if (*error != NULL) return AG_CU_OK;
    size_t index, n = plan->n_faults * AG_CUDA_FAULT;
    bind(plan, (uintptr_t)q->scratch);
    int code = run(issue, plan, &index);
    if (code > OF_BLAS) *error = blas_error(issue, plan, index, code - OF_BLAS);
    if (code > OF_BLAS) return AG_CU_OK;
    if (code != AG_CU_OK) {
        *error = call_error(issue, plan, index, code);
        return AG_CU_OK;
    }
    if (n == 0) return AG_CU_OK;
    issue->call = "cuMemHostAlloc";
    uint8_t *faults = ag_cuda_ring_take(q, n, &issue->flight->ring_end, &code); /* fits: see ag_cuda_plan_node */
    if (faults == NULL) return code;
    issue->flight->faults = faults;
    return AG_CU(issue, cuMemcpyDtoHAsync, faults, plan->arena + (uint64_t)plan->first_fault, n, q->cuda);
}

static ag_error *fault_of(ag_plan *plan, const uint8_t *faults, const char *device)
{
    const ag_cuda_plan *mine = plan->device;
    for (size_t i = 0; i < mine->n_nodes; ++i) {
        if (mine->nodes[i].fault < 0) continue;
        int64_t fault[4];
        memcpy(fault, faults + (mine->nodes[i].fault - mine->first_fault), sizeof fault);
        if (fault[0] == 0) continue;
        char text[160];
        bool diagonal = fault[0] == 2; /* of solve_tri */
        if (diagonal) {
            snprintf(text, sizeof text, "element %lld of the diagonal of matrix %lld is 0", (long long)fault[1],
                     (long long)fault[2]);
        } else {
            snprintf(text, sizeof text, "index %lld at position %lld is outside 0..%lld", (long long)fault[1],
                     (long long)fault[2], (long long)fault[3] - 1);
        }
        ag_error *error = node_error(mine, device, i, diagonal ? AG_INVALID_ARGUMENT : AG_OUT_OF_BOUNDS, text);
        for (size_t k = 0; k < plan->n_partial; ++k) { /* later nodes wrote what they made of it; this one nothing */
            if (k < mine->n_partial && mine->partial_nodes[k] > i) ag_storage_set_poison(plan->partial[k], error);
        }
        return error;
    }
    return NULL;
}

static bool is_sum(const ag_plan *plan)
{
    const ag_cuda_plan *mine = plan->device;
    return mine->sum != NULL;
}

static void issue_sum(ag_cuda_issue *issue, ag_slot *slot)
{
    ag_cuda_plan *plan = slot->u.plan.plan->device;
    ag_cuda_issue_sum(issue, slot, plan->sum, plan->rank, &plan->part);
}

static void drop(void *device)
{
    ag_cuda_plan_free(device);
}

void ag_cuda_plan_attach(ag_plan *plan, ag_cuda_plan *mine, size_t scratch)
{
    static const ag_cuda_plan_calls calls = {
        .drop = drop, .is_sum = is_sum, .issue = issue_plan, .issue_sum = issue_sum, .fault = fault_of};
    ag_cuda_set_plan_calls(&calls);
    mine->scratch = scratch;
    plan->device = mine;
    plan->drop_device = drop;
}
