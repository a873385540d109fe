/* The types that a lowering and its steps use: operands, nodes, chunks, tasks of a thread.
 *
 * A *lowering* looks at one node of a graph, decides how it is cut into chunks, and adds one or more steps. The plan
 * executor (runtime/plan_run.c) runs the steps in order, the chunks of a step on any threads in any order. Not here:
 * kernels, which get pointers and numbers only (table/kernel_types.h). No Python and no runtime header here. */
#ifndef AGK_NODE_H
#define AGK_NODE_H

#include "table/kernels.h"

#define AGK_MAX_SRC 10
#define AGK_MAX_STEPS 4
#define AGK_MAX_STAGES 6
#define AGK_MESSAGE 192

typedef enum agk_status {
    AGK_OK = 0,
    AGK_UNSUPPORTED = 1,
    AGK_OUT_OF_BOUNDS = 2,
    AGK_INVALID = 3,
    AGK_NO_MEMORY = 4,
} agk_status;

/* One operand. ne and nb are ggml's: ne[0] innermost, nb in bytes. */
typedef struct agk_view {
    uintptr_t addr;       /* absolute, or an offset into the arena */
    uintptr_t arena_mask; /* all ones if addr is an offset, else 0 */
    int64_t ne[4];
    int64_t nb[4];
    int32_t type; /* agk_type; AGK_NONE: an optional operand that was not given */
} agk_view;

/* One of several operations that a node stands for. It turns the value computed so far into the next one, element by
 * element or row by row (lower/chain.c). */
typedef struct agk_stage {
    int32_t op;        /* agk_op */
    int32_t operand;   /* the index in src of its other operand; -1: it has none */
    int32_t params[4]; /* the first params of the operation, laid out as in ops.def */
    bool first;        /* the other operand comes first, and the value so far second */
    void (*kernel)(void);
} agk_stage;

/* One operation of a graph, or several that are fused; then dst is the result of the last. It is immutable once
 * lowered: any number of threads read it. */
typedef struct agk_node {
    int32_t op; /* agk_op */
    int32_t n_src;
    int32_t number; /* its number among the operations of its graph, for messages */
    agk_view dst;
    agk_view src[AGK_MAX_SRC]; /* the sources of the operation, then operands of stages */
    int32_t params[16];        /* laid out as in ops.def */
    int32_t n_stages;          /* 0: nothing is fused */
    agk_stage stage[AGK_MAX_STAGES];
    size_t work;      /* offset in the arena of the memory that the node's steps share, 64-byte aligned */
    bool for_columns; /* only one product reads dst, as its columns */
    bool has_columns; /* src[1] was written in the packed form of this product's columns */
    /* the packed forms in which this node can write them: bits of agk_columns_form (kernels/mul_mat_panels.h) */
    uint8_t gives_columns;
    uint8_t columns_form; /* dst is in this form, with columns_k k in a block; 0: dst is a plain tensor */
    int32_t columns_k;
    union {
        int64_t i[16];
        double f[16];
        const void *p[16];
        void (*fn[16])(void);
    } aux; /* for the node's own steps: the decisions of the lowering, such as rows per chunk and chosen kernels */
} agk_node;

/* A lowering may keep a struct of its own in aux. This macro defines the function `plan_of` that reads it. */
#define AGK_PLAN_IN_AUX(plan, plan_of) \
    _Static_assert(sizeof(plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux"); \
    static inline plan plan_of(const agk_node *node) \
    { \
        plan p; \
        memcpy(&p, &node->aux, sizeof p); \
        return p; \
    }

/* What the thread that runs a step hands to it. */
typedef struct agk_task {
    uintptr_t arena;
    void *scratch;         /* scratch_size bytes that only this thread uses, 64-byte aligned, undefined content */
    char *message;         /* AGK_MESSAGE bytes; a step that fails writes its message here */
    void (*breathe)(void); /* see agk_breathe; NULL: it need not be called */
} agk_task;

/* To be called by code that may compute for more than 0.1 ms, about every 10 to 100 us, because an event loop may be
 * waiting for this core. */
static inline void agk_breathe(const agk_task *task)
{
    if (task->breathe != NULL) task->breathe();
}

/* Runs chunk 0 <= chunk < n_chunks. A thread takes neighbouring chunks one after the other (runtime/plan_claim.c), so
 * they should be neighbours in memory, too. A result other than AGK_OK fails the node; the message then says value
 * and place. */
typedef agk_status agk_step_fn(const agk_task *task, const agk_node *node, int64_t chunk);

/* A step that no worker can run: the executor has the thread outside the pool that serves the stream's calls run it,
 * then goes on with the next step. */
#define AGK_CALL_OUT ((agk_step_fn *)0)
struct agk_weights;
struct agk_packed;

typedef struct agk_lowering {
    agk_node *node;
    struct agk_weights *weights; /* the storage of src[0], if it may be packed (lower/weights.h); else NULL */
    struct agk_packed *packed;   /* the packed copy that the lowering made of it; the plan keeps it */
    /* the node that computes src[1] of a product, if it can write packed columns; NULL: none */
    const agk_node *source;
    int32_t source_k;        /* that node shall write them, in blocks of so many k; 0: it shall not */
    uint8_t source_form;     /* in this agk_columns_form */
    const agk_node *columns; /* an earlier node whose columns are still in the work memory; NULL: none */
    bool lays_columns;       /* after this node, its columns are in the work memory */
    uint32_t cpu;            /* features that the plan may use; 0 asks for the exact scalar kernels */
    int n_steps;
    struct {
        agk_step_fn *run;
        int64_t n_chunks; /* >= 1; 1 is run without any synchronisation */
    } step[AGK_MAX_STEPS];
    const char
        /* the bytes that the last step reads once, its chunks one after the other; NULL: there are none */
        *weights_at;
    size_t chunk_bytes;        /* bytes of each of these chunks */
    bool fused;                /* the steps carry out the node's stages, too */
    size_t work_size;          /* bytes of the arena that the steps of this node share */
    size_t scratch_size;       /* bytes each thread needs of its own */
    char message[AGK_MESSAGE]; /* the reason, if the result is not AGK_OK */
} agk_lowering;

/* Chunks are cut by the shape alone, never by the number of threads, so results do not depend on that number. A
 * chunk should take 5 to 20 us; a node below some 10 us of work in total is one chunk. */
typedef agk_status agk_lower_fn(agk_lowering *lowering);

static inline void agk_add_step(agk_lowering *lowering, agk_step_fn *run, int64_t n_chunks)
{
    lowering->step[lowering->n_steps].run = run;
    lowering->step[lowering->n_steps].n_chunks = n_chunks;
    ++lowering->n_steps;
}

static inline void *agk_data(const agk_task *task, const agk_view *view)
{
    return (void *)(view->addr + (task->arena & view->arena_mask)); /* NOLINT */
}

static inline void *agk_work(const agk_task *task, const agk_node *node)
{
    return (void *)(task->arena + node->work); /* NOLINT */
}

static inline bool agk_has(const agk_node *node, int i)
{
    return i < node->n_src && node->src[i].type != AGK_NONE;
}

static inline float agk_param_f32(const agk_node *node, int i)
{
    float value;
    memcpy(&value, &node->params[i], sizeof value);
    return value;
}

static inline int64_t agk_nrows(const agk_view *v)
{
    return v->ne[1] * v->ne[2] * v->ne[3];
}

static inline int64_t agk_nelements(const agk_view *v)
{
    return v->ne[0] * agk_nrows(v);
}

/* One lowering for each group of ops.def. Groups are listed once for each of their ops. */
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wredundant-decls"
#endif
#define AGK_OP(name, group, units, ps, in_place, stage, traits) agk_lower_fn agk_lower_##group;
#include "table/ops.def"
#undef AGK_OP
#ifdef __clang__
#pragma clang diagnostic pop
#endif

agk_status agk_lower(agk_lowering *lowering); /* by node->op */

#endif
