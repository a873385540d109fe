/* Functions of the user as nodes: map_custom1 to 3, custom.
 *
 * Here: functions in C, which workers run and which get tensors in the layout of ggml's header; and the step that
 * stands for a function in Python, which the stream's own thread runs (runtime/stream.c, aggml/plan/call.py). */
#include "refuse.h"
#include "units.h"

#define MAX_TASKS 512 /* the most threads that ggml has, so no function can rely on more */
#define UNITS 4096    /* elements for each task, if the function leaves the number of tasks to the lowering */
#define MANY_TASKS 64

/* struct ggml_tensor. These fields are not set, so they are 0: buffer, op, op_params, view_src, name, extra. */
typedef struct c_tensor {
    int32_t type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op, op_params[16], flags;
    struct c_tensor *src[AGK_MAX_SRC];
    struct c_tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
} c_tensor;

_Static_assert(sizeof(void *) != 8 || (sizeof(c_tensor) == 336 && offsetof(c_tensor, data) == 248), "as in ggml.h");

typedef void fn1(c_tensor *dst, const c_tensor *a, int ith, int nth, void *user);
typedef void fn2(c_tensor *dst, const c_tensor *a, const c_tensor *b, int ith, int nth, void *user);
typedef void fn3(c_tensor *dst, const c_tensor *a, const c_tensor *b, const c_tensor *c, int ith, int nth, void *user);
typedef void fn(c_tensor *dst, int ith, int nth, void *user);

static uintptr_t address(const agk_node *node, int i)
{
    uint64_t value;
    memcpy(&value, &node->params[i], sizeof value);
    return (uintptr_t)value;
}

static void fill(c_tensor *t, const agk_view *view, const agk_task *task)
{
    t->type = view->type;
    t->data = agk_data(task, view);
    for (int i = 0; i < 4; ++i) {
        t->ne[i] = view->ne[i];
        t->nb[i] = (size_t)view->nb[i];
    }
}

static agk_status run_c(const agk_task *task, const agk_node *node, int64_t chunk)
{
    c_tensor dst = {0}, src[AGK_MAX_SRC] = {0};
    fill(&dst, &node->dst, task);
    for (int i = 0; i < node->n_src; ++i) {
        if (!agk_has(node, i)) continue;
        fill(&src[i], &node->src[i], task);
        dst.src[i] = &src[i];
    }
    const int ith = (int)chunk, nth = (int)node->aux.i[0];
    const uintptr_t at = address(node, 2);
    void *user = (void *)address(node, 4); /* NOLINT */
    switch (node->op) {
    case AGK_OP_map_custom1: ((fn1 *)at)(&dst, &src[0], ith, nth, user); break;
    case AGK_OP_map_custom2: ((fn2 *)at)(&dst, &src[0], &src[1], ith, nth, user); break;
    case AGK_OP_map_custom3: ((fn3 *)at)(&dst, &src[0], &src[1], &src[2], ith, nth, user); break;
    default: ((fn *)at)(&dst, ith, nth, user); break;
    }
    return AGK_OK;
}

agk_status agk_lower_custom(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    if (node->params[1] == 0) {
        agk_add_step(lowering, AGK_CALL_OUT, 1);
        return AGK_OK;
    }
    if (address(node, 2) == 0) return agk_refuse(lowering, AGK_INVALID, "the address of the function is 0");
    int64_t tasks = node->params[0];
    if (tasks < 0) { /* from the shape alone, like all chunks */
        tasks = agk_nelements(&node->dst) / UNITS;
        tasks = tasks < 1 ? 1 : tasks > MANY_TASKS ? MANY_TASKS : tasks;
    }
    node->aux.i[0] = tasks < MAX_TASKS ? tasks : MAX_TASKS;
    agk_add_step(lowering, run_c, node->aux.i[0]);
    return AGK_OK;
}
