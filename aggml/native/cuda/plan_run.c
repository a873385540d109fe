/* Runs plans of a CUDA device: launch by launch the first time, and as one CUDA graph from then on.
 *
 * Scratch belongs to the queue. If it has moved since the last run, the addresses relative to it are filled in again
 * before the run; the graph is then captured again and updated in place. Kernels report errors that depend on the data
 * (a row index out of range) in 32 bytes of their node. The bytes of all nodes come back with the run and are checked
 * when it is settled. Not here: how plans are made (plan.c). All but ag_cuda_plan_fault is called by the issuing
 * thread. */
#include <stdio.h>
#include <stdlib.h>

#include "plan_state.h"

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

static bool left_out(const ag_cuda_plan *plan, const launch *l)
{
    return l->when == (plan->nodes[l->node].kernels ? AG_CUDA_WITH_BLAS : AG_CUDA_WITHOUT_BLAS);
}

static ag_error *look_up(ag_cuda_issue *issue, ag_cuda_plan *plan)
{
    ag_error *error = look_up_products(issue, plan);
    if (error != NULL) return error;
    for (size_t i = 0; i < plan->n_launches; ++i) {
        launch *l = &plan->launches[i];
        if (l->kernel != NULL || l->gemm || left_out(plan, l)) continue;
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
        if (left_out(plan, l)) continue;
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

int ag_cuda_issue_plan(ag_cuda_issue *issue, ag_error **error)
{
    ag_cuda_queue *q = issue->queue;
    ag_cuda_plan *plan = issue->slot->u.plan.plan->device;
    if (plan == NULL || plan->device != q->device) {
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

ag_error *ag_cuda_plan_fault(ag_plan *plan, const uint8_t *faults, const char *device)
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
