/* Builds a plan as a graph of ggml: tensors in a context of their own, at their places in buffers.
 *
 * All functions run guarded and throw. After a throw, `built` holds whatever was made until then, and the caller
 * frees it. Not here: single nodes (builders.c), when a plan is built (plan.c). */
#include <stdlib.h>

#include "state.h"

static ag_ggml_tensor *leaf(const ag_ggml_plan *plan, const ag_ggml_built *built, const ag_ggml_node *node, int type)
{
    return plan->device->f->ggml_new_tensor_4d(built->context, type, node->ne[0], node->ne[1], node->ne[2],
                                               node->ne[3]);
}

/* Memory of the host that is not ggml's: one buffer that begins at the first address stands for all of it. */
static ag_ggml_handle *host_memory(ag_ggml_library *library, uintptr_t *base)
{
    static const uintptr_t first = 4096;
    *base = first;
    ag_ggml_handle *made = atomic_load(&library->host_memory), *none = NULL;
    if (made != NULL) return made;
    made = library->f.ggml_backend_cpu_buffer_from_ptr((void *)first, (size_t)1 << 55);
    if (made == NULL) ag_ggml_fail("host memory cannot be wrapped");
    if (atomic_compare_exchange_strong(&library->host_memory, &none, made)) return made;
    return none; /* another thread was first; the objects made here are small */
}

static void place(ag_ggml_plan *plan, uintptr_t arena, ag_ggml_built *built, size_t k)
{
    const ag_ggml_node *node = &plan->nodes[k];
    const ag_ggml_functions *f = plan->device->f;
    ag_ggml_tensor *tensor = built->tensors[k];
    if (f->ggml_get_data(tensor) != NULL) { /* a view of a tensor that already has its place */
        if (f->ggml_backend_view_init(tensor) != 0) ag_ggml_fail("'%s' cannot be placed", node->name);
        return;
    }
    uintptr_t address = node->address + (node->in_arena ? arena : 0), base;
    if (address == 0) return; /* an empty tensor */
    ag_ggml_buffer *buffer = ag_ggml_buffer_at(address, f->ggml_nbytes(tensor));
    ag_ggml_handle *handle;
    if (buffer != NULL) {
        built->buffers[built->n_buffers++] = buffer;
        handle = buffer->handle;
        base = address - buffer->base + buffer->real;
    } else {
        if (!plan->device->host) ag_ggml_fail("'%s' lies in memory that the device does not reach", node->name);
        handle = host_memory(plan->device->library, &base);
        base = address;
    }
    if (f->ggml_backend_tensor_alloc(handle, tensor, (void *)base) != 0)
        ag_ggml_fail("'%s' cannot lie there", node->name);
}

/* A tensor in memory of the device's own formats, which all graphs share. NULL: the node is not such a tensor. */
static ag_ggml_tensor *declare(const ag_ggml_node *node, ag_ggml_built *built, int type)
{
    ag_ggml_declared d;
    if (node->op != AGK_OP_none || node->address == 0 || node->in_arena) return NULL;
    ag_ggml_buffer *buffer = ag_ggml_buffer_at(node->address, 0);
    bool found = buffer != NULL && buffer->extra && ag_ggml_declared_at(buffer, node->address - buffer->base, &d) &&
                 d.type == type && memcmp(d.ne, node->ne, sizeof d.ne) == 0;
    if (found) {
        built->buffers[built->n_buffers++] = buffer;
        return d.tensor;
    }
    bool extra = buffer != NULL && buffer->extra;
    ag_ggml_buffer_unref(buffer);
    if (extra) ag_ggml_fail("'%s' is not what lies there in a format of the device's own", node->name);
    return NULL;
}

static void make(ag_ggml_plan *plan, uintptr_t arena, bool placed, ag_ggml_built *built, size_t k)
{
    const ag_ggml_node *node = &plan->nodes[k];
    const ag_ggml_functions *f = plan->device->f;
    ag_ggml_site site = {.library = plan->device->library, .f = f, .c = built->context, .node = node};
    site.type = ag_ggml_type(site.library, node->type);
    if (site.type < 0) ag_ggml_fail("this library has no type %s", agk_traits(node->type)->name);
    for (int s = 0; s < AG_GGML_SRC; ++s) {
        site.src[s] = node->src[s] < 0 ? NULL : built->tensors[node->src[s]];
        site.operands[s] = node->src[s] < 0 ? NULL : &plan->nodes[node->src[s]];
    }
    site.converts = node->src[0] >= 0 && plan->nodes[node->src[0]].type != node->type;
    ag_ggml_tensor *tensor = declare(node, built, site.type);
    if (tensor != NULL) {
        built->tensors[k] = tensor;
        return;
    }
    tensor = node->op == AGK_OP_none ? leaf(plan, built, node, site.type) : ag_ggml_build(&site);
    if (tensor == NULL) ag_ggml_fail("'%s' could not be made", agk_op_name(node->op));
    built->tensors[k] = tensor;
    if (node->name[0] != '\0') f->ggml_set_name(tensor, node->name);
    if (node->param && node->op == AGK_OP_none) f->ggml_set_param(tensor);
    if (node->keep) f->ggml_set_output(tensor);
    if (placed) place(plan, arena, built, k);
}

void ag_ggml_build_all(ag_ggml_plan *plan, uintptr_t arena, bool placed, ag_ggml_built *built)
{
    const ag_ggml_functions *f = plan->device->f;
    size_t n = 2 * plan->n + 8; /* some builders make a tensor that only tells extents */
    ag_ggml_init_params params = {.size = n * f->ggml_tensor_overhead(), .no_alloc = true};
    if (placed) params.size += f->ggml_graph_overhead_custom(n, false);
    built->tensors = calloc(n, sizeof *built->tensors);
    built->buffers = calloc(n, sizeof *built->buffers);
    if (built->tensors == NULL || built->buffers == NULL) ag_ggml_fail("no memory for a graph");
    built->context = f->ggml_init(params);
    if (built->context == NULL) ag_ggml_fail("no memory for a graph");
    for (size_t k = 0; k < plan->n; ++k) make(plan, arena, placed, built, k);
    if (!placed) return;
    built->graph = f->ggml_new_graph_custom(built->context, n, false);
    for (size_t k = 0; k < plan->n; ++k) {
        if (plan->nodes[k].op != AGK_OP_none) f->ggml_build_forward_expand(built->graph, built->tensors[k]);
    }
}

ag_ggml_built *ag_ggml_built_new(const ag_ggml_plan *plan)
{
    ag_ggml_built *built = calloc(1, sizeof *built);
    if (built == NULL) return NULL;
    atomic_init(&built->refs, 1);
    built->f = plan->device->f;
    return built;
}

static void free_context(void *argument)
{
    ag_ggml_built *built = argument;
    built->f->ggml_free(built->context);
}

void ag_ggml_built_unref(ag_ggml_built *built)
{
    char message[AG_GGML_MESSAGE];
    if (built == NULL || atomic_fetch_sub(&built->refs, 1) != 1) return;
    if (built->context != NULL) (void)ag_ggml_guarded(NULL, free_context, built, message);
    for (size_t k = 0; k < built->n_buffers; ++k) ag_ggml_buffer_unref(built->buffers[k]);
    free(built->tensors);
    free(built->buffers);
    free(built);
}
