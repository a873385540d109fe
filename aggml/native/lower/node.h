/* What a lowering and its steps see: operands, nodes, chunks, what a thread gives.
 *
 * A *lowering* looks at one node of a graph, decides how it is cut into chunks, and adds one or more steps. The plan
 * executor (runtime/plan.c) runs the steps in order, the chunks of a step on any threads in any order. Not here:
 * kernels, which see pointers and numbers (table/kernel_types.h). No Python and no runtime header here. */
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

/* One of several operations that a node stands for: it makes the value so far into the next, element by element or
 * row by row (lower/chain.c). */
typedef struct agk_stage {
    int32_t op;        /* agk_op */
    int32_t operand;   /* index in src of its other operand; -1: it has none */
    int32_t params[4]; /* the first ones of the operation, layouts in ops.def */
    bool first;        /* the other operand comes first, the value so far second */
    void (*kernel)(void);
} agk_stage;

/* One operation of a graph, or several that are fused: then dst is that of the last. Immutable once lowered: any number
 * of threads read it. */
typedef struct agk_node {
    int32_t op; /* agk_op */
    int32_t n_src;
    int32_t number; /* among the operations of its graph, for messages */
    agk_view dst;
    agk_view src[AGK_MAX_SRC]; /* those of the operation, then operands of stages */
    int32_t params[16];        /* layouts in ops.def */
    int32_t n_stages;          /* 0: nothing is fused */
    agk_stage stage[AGK_MAX_STAGES];
    size_t work;        /* offset in the arena of what the node's steps share, 64-byte aligned */
    bool for_columns;   /* nobody reads dst but one product, whose columns it is */
    bool gives_columns; /* and this node can write them as that product packs them */
    bool has_columns;   /* src[1] was written so */
    int32_t columns_k;  /* dst is: so many k a block (mul_mat/tiles.h); 0: it is what it says */
    union {
        int64_t i[16];
        double f[16];
        const void *p[16];
        void (*fn[16])(void);
    } aux; /* what the lowering decided, for its own steps: rows per chunk, chosen kernels */
} agk_node;

/* A lowering may keep a struct of its own in aux: defines the function `plan_of` that reads it. */
#define AGK_PLAN_IN_AUX(plan, plan_of) \
    _Static_assert(sizeof(plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux"); \
    static inline plan plan_of(const agk_node *node) \
    { \
        plan p; \
        memcpy(&p, &node->aux, sizeof p); \
        return p; \
    }

/* What a step gets from the thread that runs it. */
typedef struct agk_task {
    uintptr_t arena;
    void *scratch;         /* scratch_size bytes of this thread alone, 64-byte aligned, undefined content */
    char *message;         /* AGK_MESSAGE bytes, to be filled when a step fails */
    int threads;           /* how many may be at work on the step; no result may depend on it */
    void (*breathe)(void); /* see agk_breathe; NULL: need not be called */
} agk_task;

/* To be called by what may compute for more than 0.1 ms, some 10 to 100 us apart: an event loop may be waiting for this
 * core. */
static inline void agk_breathe(const agk_task *task)
{
    if (task->breathe != NULL) task->breathe();
}

/* Chunks are given out one by one, in turns. Which piece of its data a chunk takes, so that each thread goes on where
 * it was as long as they keep step: data streamed from memory comes 13 to 21 % faster than every other 73 KB do. */
static inline int64_t agk_in_streams(const agk_task *task, int64_t chunk, int64_t chunks)
{
    const int64_t n = task->threads < 1 ? 1 : task->threads < chunks ? task->threads : chunks;
    const int64_t stream = chunk % n, each = chunks / n, more = chunks % n;
    return stream * each + (stream < more ? stream : more) + chunk / n;
}

/* Run chunk 0 <= chunk < n_chunks. Anything but AGK_OK fails the node; then the message says value and place. */
typedef agk_status agk_step_fn(const agk_task *task, const agk_node *node, int64_t chunk);

/* A step that no worker can run: the executor has the thread outside the pool that serves the stream's calls run it,
 * and goes on behind it. */
#define AGK_CALL_OUT ((agk_step_fn *)0)
struct agk_weights;
struct agk_packed;

typedef struct agk_lowering {
    agk_node *node;
    struct agk_weights *weights; /* where src[0] lies, if it may be packed (lower/weights.h); else NULL */
    struct agk_packed *packed;   /* what the lowering made of it; the plan keeps it */
    const agk_node *source;      /* the node that makes src[1] of a product, if it can give columns; NULL: none */
    int32_t source_k;            /* it is to write them, in blocks of so many k; 0: it is not */
    const agk_node *columns;     /* a node before this one whose columns are still in the work memory; NULL: none */
    bool lays_columns;           /* those of this node are there behind it */
    uint32_t cpu;                /* features the plan may use; 0 asks for the exact scalar kernels */
    int n_steps;
    struct {
        agk_step_fn *run;
        int64_t n_chunks; /* >= 1; 1 is run without any synchronisation */
    } step[AGK_MAX_STEPS];
    const char
        *weights_at;    /* what the last step reads once, its chunks one behind the other; NULL: nothing of that kind */
    size_t chunk_bytes; /* of each of them */
    bool fused;         /* the steps carry out the stages of the node, too */
    size_t work_size;   /* bytes of the arena that the steps of this node share */
    size_t scratch_size;       /* bytes each thread needs of its own */
    char message[AGK_MESSAGE]; /* why not, if not AGK_OK */
} agk_lowering;

/* Chunks are cut by the shape alone, never by the number of threads, so results do not depend on it. 5 to 20 us
 * each is right: below some 10 us of work in total a node is one chunk. */
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

/* One lowering for each group of ops.def; groups come up once for each of their ops. */
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
