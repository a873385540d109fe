/* Plans of a device of ggml: a list of tensors, from which a graph is built when it first runs.
 *
 * A plan is built once for each place of its scratch. Not here: building (build.c). */
#include <stdlib.h>

#include "state.h"

ag_ggml_plan *ag_ggml_plan_new(ag_ggml_device *device)
{
    ag_ggml_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return NULL;
    plan->device = device;
    pthread_mutex_init(&plan->lock, NULL);
    return plan;
}

void ag_ggml_plan_free(ag_ggml_plan *plan)
{
    if (plan == NULL) return;
    ag_ggml_built_unref(plan->built);
    pthread_mutex_destroy(&plan->lock);
    free(plan->nodes);
    free(plan);
}

bool ag_ggml_plan_add(ag_ggml_plan *plan, const ag_ggml_node *node)
{
    if (plan->n == plan->cap) {
        size_t cap = plan->cap ? 2 * plan->cap : 16;
        ag_ggml_node *grown = realloc(plan->nodes, cap * sizeof *grown);
        if (grown == NULL) return false;
        plan->nodes = grown;
        plan->cap = cap;
    }
    plan->nodes[plan->n++] = *node;
    return true;
}

typedef struct question {
    ag_ggml_plan *plan;
    ag_ggml_built *built;
    bool yes;
    size_t size;
} question;

static void ask_support(void *argument)
{
    question *q = argument;
    ag_ggml_device *device = q->plan->device;
    ag_ggml_build_all(q->plan, 0, false, q->built);
    ag_ggml_tensor *last = q->built->tensors[q->plan->n - 1];
    int64_t bytes = 1; /* a builder that counts extents in another way cannot be checked by this */
    const ag_ggml_node *node = &q->plan->nodes[q->plan->n - 1];
    const agk_type_traits *traits = agk_traits(node->type);
    for (int k = 0; k < 4; ++k) bytes *= node->ne[k];
    bytes = bytes / traits->blck_size * (int64_t)traits->type_size;
    if (node->view < 0 && (int64_t)device->f->ggml_nbytes(last) != bytes)
        ag_ggml_fail("this library's '%s' gives another shape", agk_op_name(node->op));
    /* A top_k of some versions is a view of an argsort, which has no place. */
    if (node->view < 0 && node->op != AGK_OP_none && strcmp(device->f->ggml_op_desc(last), "VIEW") == 0)
        ag_ggml_fail("this library makes '%s' of several nodes", agk_op_name(node->op));
    q->yes = device->f->ggml_backend_dev_supports_op(device->handle, last);
    /* An RPC client says yes to every node, and a server may end because of one. Most servers compute on the CPU of
     * this library. */
    const ag_ggml_device *near = device->remote ? ag_ggml_cpu_of(device->library) : NULL;
    if (near != NULL) q->yes = q->yes && near->f->ggml_backend_dev_supports_op(near->handle, last);
}

static void ask_offload(void *argument)
{
    question *q = argument;
    ag_ggml_build_all(q->plan, 0, false, q->built);
    q->yes =
        q->plan->device->f->ggml_backend_dev_offload_op(q->plan->device->handle, q->built->tensors[q->plan->n - 1]);
}

static void ask_nothing(void *argument)
{
    question *q = argument;
    ag_ggml_build_all(q->plan, 0, false, q->built);
}

/* A server is asked over its connection: one at a time. */
static void ask_size(void *argument)
{
    question *q = argument;
    ag_ggml_device *device = q->plan->device;
    q->size = device->f->ggml_backend_buft_get_alloc_size(device->type, q->built->tensors[q->plan->n - 1]);
}

/* Checks memory alone: no remote device is asked. */
static bool ask(ag_ggml_plan *plan, ag_ggml_call *call, question *q, char *why)
{
    *q = (question){.plan = plan, .built = ag_ggml_built_new(plan)};
    why[0] = '\0';
    return q->built != NULL && ag_ggml_guarded(NULL, call, q, why);
}

static bool is_yes(ag_ggml_plan *plan, ag_ggml_call *call, char *why)
{
    question q;
    bool fine = ask(plan, call, &q, why);
    ag_ggml_built_unref(q.built);
    return fine && q.yes;
}

bool ag_ggml_plan_supports(ag_ggml_plan *plan, char *why)
{
    return is_yes(plan, ask_support, why);
}

bool ag_ggml_plan_offloads(ag_ggml_plan *plan)
{
    char why[AG_GGML_MESSAGE];
    return is_yes(plan, ask_offload, why);
}

size_t ag_ggml_plan_alloc_size(ag_ggml_plan *plan)
{
    char why[AG_GGML_MESSAGE];
    question q;
    bool fine = ask(plan, ask_nothing, &q, why);
    ag_error *error = fine ? ag_ggml_ask(plan->device, "alloc_size", ask_size, &q, sizeof q) : NULL;
    /* otherwise the thread that asked may still be inside the library */
    if (error == NULL) ag_ggml_built_unref(q.built);
    ag_error_unref(error);
    return fine && error == NULL ? q.size : 0;
}

void ag_ggml_plan_drop(void *device)
{
    ag_ggml_plan_free(device);
}

void ag_ggml_plan_attach(ag_plan *plan, ag_ggml_plan *made)
{
    plan->device = made;
    plan->drop_device = ag_ggml_plan_drop;
}

static void build(ag_ggml_plan *plan, uintptr_t arena)
{
    ag_ggml_built_unref(plan->built); /* a run that has not ended keeps it */
    plan->built = ag_ggml_built_new(plan);
    if (plan->built == NULL) ag_ggml_fail("no memory for a graph");
    ag_ggml_build_all(plan, arena, true, plan->built);
    plan->built->whole = true;
    plan->built->last = plan->built->tensors[plan->n - 1];
    plan->arena = arena;
}

/* Guarded, by the thread of a queue: throws, or returns ggml_status. */
int ag_ggml_plan_run(const ag_ggml_run *run, ag_ggml_built **built)
{
    ag_ggml_plan *plan = run->plan;
    const ag_ggml_functions *f = plan->device->f;
    if (plan->n == 0) return 0;
    if (plan->built == NULL || !plan->built->whole || plan->arena != run->arena) build(plan, run->arena);
    atomic_fetch_add(&plan->built->refs, 1);
    *built = plan->built;
    int status = f->ggml_backend_graph_compute_async(run->backend, plan->built->graph);
    if (run->ahead) return status;
    uint8_t byte; /* for a server, synchronized only means sent */
    f->ggml_backend_synchronize(run->backend);
    if (status == 0 && plan->device->remote) f->ggml_backend_tensor_get(plan->built->last, &byte, 0, 1);
    return status;
}

void ag_ggml_plan_tail(ag_ggml_handle *backend, const ag_ggml_built *built, uint8_t *byte)
{
    built->f->ggml_backend_tensor_get_async(backend, built->last, byte, 0, 1);
}
