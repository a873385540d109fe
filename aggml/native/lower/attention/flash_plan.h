/* The plan of flash_attn_ext: decided by its lowering (flash_attn_ext.c), carried out by its steps. */
#ifndef AGK_SCALAR_FLASH_PLAN_H
#define AGK_SCALAR_FLASH_PLAN_H

#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "lower/strided.h"

/* How keys and values get to a kernel, and what a unit is; bits of `flags`. */
enum {
    AGK_FLASH_HELD = 1,   /* `held` keys of a head are converted once, for several of its tiles */
    AGK_FLASH_AHEAD = 2,  /* the next head is prefetched while one is computed */
    AGK_FLASH_PAIRED = 4, /* bf16 is read as it is, with values in pairs of keys */
    AGK_FLASH_LONG = 8,   /* blocks of pairs have AGK_FLASH_KEYS keys */
    /* a block ends with the keys for which the mask is 0; without a mask it has twice as many if keys are held */
    AGK_FLASH_CUT = 16,
};

/* Tiles of a head. */
static inline int64_t agk_flash_tiles(const agk_node *node)
{
    return (node->src[0].ne[1] + AGK_FLASH_TILE - 1) / AGK_FLASH_TILE;
}

/* Parameters of the node: the most keys that a query sees (0: all), the number of first keys that are the same for all
 * batches, and the batch from which they are read. */
enum { AGK_FLASH_N_KV_MAX = 4, AGK_FLASH_SHARED = 5, AGK_FLASH_SHARED_FROM = 6 };

/* Before the first keys of a part: AGK_FLASH_HEADS_AHEAD bytes of keys, a block of keys, or a block of keys and of
 * values. */
enum { AGK_FLASH_ASKED_BYTES, AGK_FLASH_ASKED_KEYS, AGK_FLASH_ASKED_BOTH };

/* The plan for few rows, kept in node->aux: read by flash_decode.c, flash_shared.c and flash_parts.c. */
typedef struct agk_flash_decode_plan {
    int64_t per_chunk;       /* bunches of a chunk; a bunch is some heads, for one part of the keys */
    int64_t part_keys;       /* keys of a part */
    int64_t room;            /* offset of the states of parts in the work memory */
    int32_t heads, together; /* units of a batch; units of a bunch */
    /* rows of a unit; keys that all heads of a bunch process before the next keys are read */
    int32_t rows, block_keys;
    int32_t parts;            /* the number of all parts, 1: nothing has to be put together */
    bool grouped;             /* a unit is one query of all heads that share a head of K; else one head of Q */
    uint8_t asked;            /* what all_heads expects to be prefetched: one of AGK_FLASH_ASKED_* */
    uint16_t at_once;         /* keys that all_heads computes in one call, at most */
    int32_t shared_parts;     /* the first parts are those of shared keys; 0: there are none */
    int32_t shared_per_chunk; /* heads and parts of a chunk of shared keys */
    agk_to_float_fn *read_k, *read_v;
    agk_flash_begin_fn *begin, *shared_begin;
    agk_flash_block_fn *block, *shared_block;
    agk_flash_heads_fn *all_heads; /* a block of all heads, in the order of memory; NULL: there is no such kernel */
    agk_flash_pairs_pack_fn *pack; /* packs shared values to pairs of keys; NULL: values are converted to floats */
    agk_flash_end_fn *end;
} agk_flash_decode_plan;

AGK_PLAN_IN_AUX(agk_flash_decode_plan, agk_flash_decode_plan_of)

enum { AGK_FLASH_DECODE_HEADS = 32 }; /* heads of a bunch, at most */

/* Whether the kernel for few rows reads the type as it lies; else a block is widened first. */
bool agk_flash_as_it_lies(int type);

/* The plan for rows that fill tiles, kept in node->aux: read by flash_walk.c and flash_panels.c. */
typedef struct agk_flash_plan {
    int64_t per_chunk, units; /* units of a chunk; all units */
    /* tiles of a head; the number of keys held in scratch, even or all of them, 0: one block */
    int32_t tiles, held;
    uint32_t flags;
    int32_t terms; /* terms on matrix tiles; 0: lanes */
    int64_t room;  /* offset of keys and values packed for matrix tiles in the work memory */
    union {
        struct {
            agk_flash_terms_pack_fn *pack;
            agk_flash_terms_tile_fn *tile;
        } matrix;
        struct {
            agk_flash_bf16_pack_fn *pack;
            agk_flash_bf16_tile_fn *tile;
        } bf16; /* one term */
    } as;
    union {
        agk_to_float_fn *floats;         /* converts keys and values to floats; NULL: they are floats */
        agk_flash_pairs_pack_fn *paired; /* pairs values; keys are copied */
    } read_k, read_v;
    agk_flash_begin_fn *begin;
    agk_flash_block_fn *block;
    agk_flash_end_fn *end;
} agk_flash_plan;

AGK_PLAN_IN_AUX(agk_flash_plan, agk_flash_plan_of)

static inline bool agk_flash_is(const agk_flash_plan *p, uint32_t flag)
{
    return (p->flags & flag) != 0;
}

static inline int64_t agk_flash_panels(const agk_node *node) /* panels of keys, for matrix tiles */
{
    return agk_flash_up(node->src[1].ne[1]) / AGK_FLASH_PANEL;
}

enum {
    AGK_FLASH_PACK_PANELS = 8,      /* panels packed by one chunk */
    AGK_FLASH_BUNDLE = 8,           /* at most so many tiles go over held keys together */
    AGK_FLASH_BUNDLE_MOST = 400000, /* bytes of the states of these tiles */
};

/* How many tiles go together. If a head is held whole they go one after the other: the states of several would push
 * the head out of L2. */
static inline int64_t agk_flash_bundle(const agk_node *node, int64_t held)
{
    if (held == 0 || held == node->src[1].ne[1]) return 1;
    const int64_t floats = agk_flash_state_floats(node->src[0].ne[0], node->src[2].ne[0]);
    const int64_t most = AGK_FLASH_BUNDLE_MOST / (4 * floats);
    return most < 1 ? 1 : most < AGK_FLASH_BUNDLE ? most : AGK_FLASH_BUNDLE;
}

int64_t agk_flash_looks(const agk_node *node);                   /* chunks of the look at the mask */
int64_t agk_flash_combined(const agk_node *node, int64_t parts); /* rows in a chunk */
agk_step_fn agk_flash_look_step, agk_flash_pack_step, agk_flash_walk_step, agk_flash_decode_step, agk_flash_shared_step,
    agk_flash_combine_step;

/* Adds the step for a mask that shows few keys, as the node promises. False: there is no such promise, or reading all
 * keys is faster. heads_of_unit: the most heads of Q that can be rows of a tile. */
bool agk_flash_sparse_lower(agk_lowering *lowering, int64_t heads_of_unit);
agk_step_fn agk_flash_sparse_step;

/* Keys that all sequences share: how many first keys all batches share and so are read once (0: none); the plan of
 * that; its step. */
int64_t agk_flash_shared_keys(const agk_node *node);
void agk_flash_plan_shared(const agk_lowering *lowering, agk_flash_decode_plan *plan);
void agk_flash_add_shared(agk_lowering *lowering, const agk_flash_decode_plan *plan);

/* Converts rows first .. first+n-1 of a head to floats without gaps. */
void agk_flash_floats(const agk_view *view, const char *rows, agk_to_float_fn *read, int64_t first, int64_t n,
                      float *to);
/* Computes one tile on matrix tiles. False: it sees a number that has no terms, so lanes must compute it. */
bool agk_flash_matrix_tile(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t head,
                           int64_t begin, int64_t end);
/* The same with one term: whether all numbers of its panels have terms, and the arguments of the kernel. */
bool agk_flash_bf16_of(const agk_task *task, const agk_node *node, int64_t head, int64_t begin, int64_t end,
                       agk_flash_terms *x);
/* Where the state of a row of Q after one part of the keys lies, for all heads of a batch: maximum, sum, and sums of
 * values. */
float *agk_flash_part_at(const agk_task *task, const agk_node *node, int64_t batch, int64_t part, int64_t row);
/* Stores the state of a tile after a part of the keys; any: the tile saw a key. */
void agk_flash_save_part(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t batch,
                         int64_t part, int64_t row, bool any);

#endif
