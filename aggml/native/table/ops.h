/* The ops: their numbers, and the facts that ops.def states about each. Not here: nodes (lower/node.h). */
#ifndef AGK_OPS_H
#define AGK_OPS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum agk_op {
#define AGK_OP(name, group, units, ps, in_place, stage, traits) AGK_OP_##name,
#include "ops.def"
#undef AGK_OP
    AGK_OP_COUNT
} agk_op;

/* The units in which an op's arithmetic is counted: X(name). All sources are read in full unless the comment says
 * otherwise. */
#define AGK_EACH_UNITS(X) \
    X(NOTHING)  /* nothing happens at run time */ \
    X(UNKNOWN)  /* a user's function: nobody knows */ \
    X(EACH)     /* elements of the largest operand, the result being one */ \
    X(PLACES)   /* the same; a row of the result is what one place of a window, source 0, covers */ \
    X(MOVE)     /* elements of source 0; of the others nothing is read (cpy: the target) */ \
    X(TAKE)     /* elements of the result; as many of source 0 are read */ \
    X(CHOICES)  /* elements of source 1; as many of source 0 are read */ \
    X(GIVE)     /* elements of source 0; as many of the result are written */ \
    X(PATCH)    /* elements that are put in, and those around them unless they are in place */ \
    X(DOTS)     /* products of a matrix product: k for each element of the result */ \
    X(EXPERTS)  /* the same; matrices that no id names are not read */ \
    X(OUTER)    /* the same, k being ne[1] */ \
    X(KEYS)     /* elements of the queries, source 0, times keys, ne[1] of source 1 */ \
    X(WINDOW)   /* elements of the result times weights of one kernel */ \
    X(SPREAD)   /* elements of source 1 times weights for one channel of it */ \
    X(TAPS)     /* elements of the result times the length of source 1 */ \
    X(POOL_1D)  /* elements of result or gradient times those of a window, which params tell */ \
    X(POOL_2D)  /* likewise */ \
    X(STATE)    /* elements of a value times the rows of its state */ \
    X(HEADS)    /* elements of the result times heads times their width */ \
    X(ROUNDS)   /* elements of the result times rounds */ \
    X(TRIANGLE) /* elements of the result times half the matrix's side */

/* The part that an op can take in a chain of fused nodes (lower/chain.c): X(name). */
#define AGK_EACH_STAGE(X) \
    X(ALONE)    /* none: it is computed by itself */ \
    X(BINARY)   /* two operands, of which b may repeat */ \
    X(SCALE)    /* its own parameters */ \
    X(UNARY)    /* a function of one operand */ \
    X(GATED)    /* two operands of one shape; a chain does not begin with it */ \
    X(NORM)     /* whole rows */ \
    X(SOFT_MAX) /* whole rows, and a mask */

typedef enum agk_units {
#define AGK_UNIT(name) AGK_UNITS_##name,
    AGK_EACH_UNITS(AGK_UNIT)
#undef AGK_UNIT
} agk_units;

typedef enum agk_stage_kind {
#define AGK_STAGE(name) AGK_STAGE_##name,
    AGK_EACH_STAGE(AGK_STAGE)
#undef AGK_STAGE
} agk_stage_kind;

/* Facts that are true of some ops only: X(name, bit). */
#define AGK_EACH_TRAIT(X) \
    X(LEAF, 0)   /* no operation: a tensor that a graph is given */ \
    X(VIEW, 1)   /* looks at the bytes of its source in another way: nothing is computed (ggml_is_view_op) */ \
    X(CHECKS, 2) /* looks at its data first, such as ids, and may refuse to run: the run then fails */ \
    X(PACKS, 3)  /* source 0 may be weights, of which kernels keep a packed copy */ \
    X(SMALL_WEIGHTS, \
      4) /* its weights (rope's factors, attention's sinks) are too small to decide which device runs it */ \
    X(WRITES_ANY, 5) /* a user's function: it may write whatever it likes */ \
    X(NO_BATCH, 6) /* is never worth sending to a device that its weights are not on; how large a batch a node is: */ \
    X(BATCH_1, 7)  /* ne[1] tells */ \
    X(BATCH_2, 8)  /* ne[2] tells; else the number of rows (get_op_batch_size of ggml's CUDA backend) */ \
    X(NO_BF16, 9)  /* a function that ggml has for f32 and f16 only */ \
    X(PARTLY, 10)  /* writes a part of its result only */

enum {
#define AGK_TRAIT(name, bit) AGK_##name = 1u << bit,
    AGK_EACH_TRAIT(AGK_TRAIT)
#undef AGK_TRAIT
        AGK_TARGETS_AT = 12, /* 10 bits from here: the sources of AGK_TARGET */
    AGK_UPDATES_AT = 22,     /* likewise of AGK_UPDATES */
};

/* Source i is the place where the result goes: it is written, not read. */
#define AGK_TARGET(i) (1u << (AGK_TARGETS_AT + (i)))
/* Source i is both read and written, in addition to the result. */
#define AGK_UPDATES(i) (1u << (AGK_UPDATES_AT + (i)))

typedef struct agk_op_traits {
    const char *name, *group;
    uint32_t ps, traits;
    uint8_t units, in_place, stage; /* agk_units, number of operands, agk_stage_kind */
} agk_op_traits;

extern const agk_op_traits agk_ops[AGK_OP_COUNT];

static inline bool agk_is(int op, uint32_t trait)
{
    return (agk_ops[op].traits & trait) != 0;
}

const char *agk_op_name(int op);   /* NULL if unknown */
int agk_op_find(const char *name); /* -1 if unknown */

#endif
