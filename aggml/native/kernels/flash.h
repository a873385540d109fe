/* Shared by the lowering of flash_attn_ext and its kernels: the description of a tile and the layout of its scratch.
 *
 * A unit of work is one tile: up to AGK_FLASH_TILE rows of Q that see the same keys. They are queries of one head
 * or, for a single query, the heads that share a head of K. Tiles of a head follow each other, then heads, then
 * batches, so that keys and values converted to scratch serve several units. With few rows and many keys, a unit is
 * a part of the keys. All heads of a part follow each other, since their keys lie side by side, and the parts are
 * put together at the end. */
#ifndef AGK_FLASH_H
#define AGK_FLASH_H

#include "table/kernels.h"

enum {
    AGK_FLASH_TILE = 32,        /* rows: two vectors of 16 lanes */
    AGK_FLASH_KEYS = 64,        /* keys of a block: S, K, V, Q and O of width 32 fit L1 together, of width 128 L2 */
    AGK_FLASH_PAIRED_KEYS = 32, /* of bf16 pairs: all of it in an L1 of 32 KB, width 128 */
    AGK_FLASH_NARROW = 9,       /* with fewer rows than this, lanes run along the width instead of along rows */
};

/* The facts about the mask under a tile that the first step finds, in the node's work memory. */
typedef struct agk_flash_mask {
    int32_t form;                   /* one of the values below */
    int32_t begin, end;             /* keys outside are masked for every row of the tile */
    int32_t clear_begin, clear_end; /* keys within this range are not masked: the mask is 0 */
} agk_flash_mask;

enum { AGK_FLASH_NO_MASK, AGK_FLASH_SAME_MASK, AGK_FLASH_FULL_MASK }; /* SAME: all rows of the tile have one mask */

/* Rows to prefetch, as many as a block has keys: `bytes` of each, 0: none. Narrow kernels prefetch row j while they
 * compute key j; those of tiles prefetch a few rows with each product. */
typedef struct agk_flash_ahead {
    const char *rows;
    int64_t stride, bytes;
} agk_flash_ahead;

/* One tile: row i of Q at q + i * q_step, of the result at out + i * out_step, of the mask (f16) at mask + i *
 * mask_step. A kernel consists of begin, block (called for each block of keys) and end; between these calls `state`
 * belongs to the kernel. */
typedef struct agk_flash_tile {
    const char *q, *mask;
    char *out;
    int64_t q_step, mask_step, out_step;
    int64_t n_rows, d, dv;
    int64_t k_step, v_step; /* bytes between rows of k and v, for the narrow kernel alone: */
    int32_t k_type, v_type; /* f32, f16, bf16, q8_0 or q4_0; the kernel for tiles reads f32 without gaps */
    agk_flash_ahead k_ahead, v_ahead;
    int32_t mask_form;
    float scale, softcap;        /* softcap 0: none */
    float slope[AGK_FLASH_TILE]; /* the factor for the mask of a row */
    float sink[AGK_FLASH_TILE];  /* -inf: none */
    float *state;                /* agk_flash_state_floats(d, dv) floats, 64-byte aligned */
} agk_flash_tile;

enum {
    AGK_FLASH_HEADS_AHEAD = 24576
}; /* bytes that zen5/flash_heads.c prefetches ahead, and expects of the first; amd512, avx2: a block ahead */

/* Rows of a block for a kernel that computes all heads of K together. The rows of the heads lie side by side and fill
 * all memory from k to k + n * k_step, likewise v; next: the keys that are read after this block. */
typedef struct agk_flash_rows {
    int64_t first, n;
    const char *k, *v, *next;
} agk_flash_rows;

/* The state of the narrow vector kernel: products [rows][keys], with rows padded to groups of four; then for each
 * row its maximum (or a number not far below it), sum and last factor; then the sums of values [rows][dv]. Between
 * block and end it describes the result for the keys so far. */
typedef struct agk_flash_narrow {
    float *s, *max, *sum, *shrink, *o;
} agk_flash_narrow;

static inline agk_flash_narrow agk_flash_narrow_of(const agk_flash_tile *t)
{
    agk_flash_narrow f = {.s = t->state};
    const int64_t room = (t->n_rows + 15) / 16 * 16;
    f.max = f.s + (t->n_rows + 3) / 4 * 4 * AGK_FLASH_KEYS;
    f.sum = f.max + room;
    f.shrink = f.sum + room;
    f.o = f.shrink + room;
    return f;
}

static inline int64_t agk_flash_narrow_floats(int64_t rows, int64_t d, int64_t dv)
{
    const int64_t codes = 1 + d + d / 32; /* of a query as integers (avx512/flash_codes.c) */
    const int64_t again = d;              /* in the order in which amd512/flash_heads.c reads it */
    return ((rows + 3) / 4 * 4 * AGK_FLASH_KEYS + (rows + 15) / 16 * 16 * 3 + rows * (dv + codes + again) + 15) / 16 *
           16;
}

/* Floats of a tile's state: Q^T [d][32], O^T [dv][32], S^T [keys][32], mask [keys][32], maxima and sums [2][32]. */
static inline int64_t agk_flash_state_floats(int64_t d, int64_t dv)
{
    return AGK_FLASH_TILE * (d + dv + 2 * AGK_FLASH_KEYS + 2);
}

/* Attention on matrix tiles, in bf16 terms (mul_mat_panels.h). Keys and values of a head are packed once for all its
 * tiles of rows: keys in panels of 32 keys [keys / 32][d / 32][terms][32 keys][32 d], and values with the keys in
 * the lines, [dv / 32][keys / 32][terms][32 dv][32 keys]; zeros beyond keys, d and dv. */
enum { AGK_FLASH_PANEL = 32, AGK_FLASH_AT_ONCE = 256 /* keys of a block: S is 32 KB, P 16 for each term */ };

typedef struct agk_flash_terms {
    int terms;
    int64_t n_keys, begin, end;     /* keys of the head; keys that a row of the tile may see */
    int64_t clear_begin, clear_end; /* keys for which the mask is 0 */
    const char *k, *v;
} agk_flash_terms;

static inline int64_t agk_flash_up(int64_t n)
{
    return (n + 31) / 32 * 32;
}

static inline size_t agk_flash_terms_k_bytes(int terms, int64_t n_keys, int64_t d)
{
    return (size_t)(agk_flash_up(n_keys) * agk_flash_up(d) * terms * 2);
}

/* With one term, keys are transposed and values keep their order, in pairs (kernels/amx/flash_bf16.c); this takes as
 * many bytes. Blocks are this small, and this few chunks of S wait, because all of it should stay in L1 together
 * with the keys and values that pass through. */
enum {
    AGK_FLASH_BF16_PANELS = 4,  /* of 32 keys, in a block */
    AGK_FLASH_BF16_SLOTS = 2,   /* for S of 32 keys */
    AGK_FLASH_BF16_HEAD = 2048, /* bytes of the fields that describe both tiles */
};

/* Head, sums [2][32][16], Q [32][d], P [2][32][keys of a block], S [slots and one][32][32], O [dv][32]. */
static inline size_t agk_flash_bf16_state_bytes(int64_t d, int64_t dv)
{
    const int64_t p = 2 * AGK_FLASH_BF16_PANELS * 2048, s = (AGK_FLASH_BF16_SLOTS + 1) * 4096;
    return (size_t)(AGK_FLASH_BF16_HEAD + 4096 + 64 * agk_flash_up(d) + p + s + 128 * agk_flash_up(dv));
}

/* Scratch of a tile: Q [32][d], Q^T, S^T, P, O^T [dv][32] in tiles, and the floats that the scalar kernel unpacks
 * from a panel. */
static inline size_t agk_flash_terms_state_bytes(int terms, int64_t d, int64_t dv)
{
    const int64_t wide = agk_flash_up(d), high = agk_flash_up(dv);
    const int64_t floats = 32 * wide + 32 * AGK_FLASH_AT_ONCE + 32 * high;
    const int64_t scalar = agk_flash_state_floats(d, dv) + AGK_FLASH_PANEL * (d + dv);
    return (size_t)(floats * 4 + terms * 2 * 32 * (wide + AGK_FLASH_AT_ONCE) + scalar * 4);
}

#endif
