/* The plan of flash_attn_ext: decided by its lowering (flash_attn_ext.c), carried out by its steps. */
#ifndef AGK_SCALAR_FLASH_PLAN_H
#define AGK_SCALAR_FLASH_PLAN_H

#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "lower/strided.h"

/* How keys and values come to a kernel, and what a unit is; bits of `flags`. */
enum {
    AGK_FLASH_HELD = 1,   /* `held` keys of a head are converted once for some of its tiles */
    AGK_FLASH_AHEAD = 2,  /* the next head is fetched while one is computed */
    AGK_FLASH_PAIRED = 4, /* bf16 as it is, values in pairs of keys */
};

/* Tiles of a head. */
static inline int64_t agk_flash_tiles(const agk_node *node)
{
    return (node->src[0].ne[1] + AGK_FLASH_TILE - 1) / AGK_FLASH_TILE;
}

/* Parameters of the node: how many first keys are the same for all batches, and the batch that they are read from. */
enum { AGK_FLASH_SHARED = 4, AGK_FLASH_SHARED_FROM = 5 };

/* Few rows, kept in node->aux: what flash_few.c, flash_shared.c and flash_parts.c are told. */
typedef struct agk_flash_few_plan {
    int64_t per_chunk;        /* bunches of a chunk: some heads, for one part of the keys */
    int64_t part_keys, parts; /* keys of a part; all parts, 1: nothing has to be put together */
    int64_t room;             /* offset in the work memory: of the states of parts */
    int32_t heads, together;  /* units of a batch, of a bunch */
    int32_t rows, block_keys; /* rows of a unit; keys that all heads of a bunch see before the next ones are read */
    bool grouped;             /* a unit is heads that share one of K, of one query; else one head */
    int32_t shared_parts;     /* the first ones are of shared keys; 0: there are none */
    int32_t shared_per_chunk; /* heads and parts of a chunk */
    agk_to_float_fn *read_k, *read_v;
    agk_flash_begin_fn *begin, *shared_begin;
    agk_flash_block_fn *block, *shared_block;
    agk_flash_pairs_pack_fn *pack; /* shared values to pairs of keys; NULL: to floats */
    agk_flash_end_fn *end;
} agk_flash_few_plan;

AGK_PLAN_IN_AUX(agk_flash_few_plan, agk_flash_few_plan_of)

enum { AGK_FLASH_FEW_HEADS = 32 }; /* of a bunch, at most */

/* Whether few rows read the type as it lies; else a block is widened first. */
bool agk_flash_as_it_lies(int type);

/* Rows that fill tiles, kept in node->aux: what flash_walk.c and flash_panels.c are told. */
typedef struct agk_flash_plan {
    int64_t per_chunk, units; /* units of a chunk, of all */
    int32_t tiles, held;      /* tiles of a head; keys in scratch, an even number or all of them, 0: a block */
    uint32_t flags;
    int32_t terms; /* of matrix tiles; 0: lanes */
    int64_t room;  /* offset in the work memory: of keys and values packed for matrix tiles */
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
        agk_to_float_fn *floats;         /* NULL: they are */
        agk_flash_pairs_pack_fn *paired; /* of values; keys are copied */
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

static inline int64_t agk_flash_panels(const agk_node *node) /* of keys, for matrix tiles */
{
    return agk_flash_up(node->src[1].ne[1]) / AGK_FLASH_PANEL;
}

enum {
    AGK_FLASH_PACK_PANELS = 8,      /* in a chunk */
    AGK_FLASH_BUNDLE = 8,           /* tiles that go over held keys together, at most */
    AGK_FLASH_BUNDLE_MOST = 400000, /* bytes of their states */
};

/* How many that is. Of a head that is held whole one after the other: their states would push it out of L2. */
static inline int64_t agk_flash_bundle(const agk_node *node, int64_t held)
{
    if (held == 0 || held == node->src[1].ne[1]) return 1;
    const int64_t floats = agk_flash_state_floats(node->src[0].ne[0], node->src[2].ne[0]);
    const int64_t most = AGK_FLASH_BUNDLE_MOST / (4 * floats);
    return most < 1 ? 1 : most < AGK_FLASH_BUNDLE ? most : AGK_FLASH_BUNDLE;
}

int64_t agk_flash_looks(const agk_node *node);                   /* chunks of the look at the mask */
int64_t agk_flash_combined(const agk_node *node, int64_t parts); /* rows in a chunk */
agk_step_fn agk_flash_look_step, agk_flash_pack_step, agk_flash_walk_step, agk_flash_few_step, agk_flash_shared_step,
    agk_flash_combine_step;

/* Few rows: how many first keys all batches share and are read once; 0: none. The plan of that; its step. */
int64_t agk_flash_shared_keys(const agk_node *node);
void agk_flash_plan_shared(const agk_lowering *lowering, agk_flash_few_plan *plan);
void agk_flash_add_shared(agk_lowering *lowering, const agk_flash_few_plan *plan);

/* Rows first .. first+n-1 of a head as floats without gaps. */
void agk_flash_floats(const agk_view *view, const char *rows, agk_to_float_fn *read, int64_t first, int64_t n,
                      float *to);
/* One tile on matrix tiles; false: it sees a number that has no terms, so lanes must compute it. */
bool agk_flash_matrix_tile(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t head,
                           int64_t begin, int64_t end);
/* The same of one term: whether its panels have all numbers, and what the kernel is given. */
bool agk_flash_bf16_of(const agk_task *task, const agk_node *node, int64_t head, int64_t begin, int64_t end,
                       agk_flash_terms *x);
/* Where a row of Q, of all heads of a batch, has its maximum, sum and sums of values over one part of the keys. */
float *agk_flash_part_at(const agk_task *task, const agk_node *node, int64_t batch, int64_t part, int64_t row);
/* The state of a tile after a part of the keys; any: it saw one. */
void agk_flash_save_part(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t batch,
                         int64_t part, int64_t row, bool any);

#endif
