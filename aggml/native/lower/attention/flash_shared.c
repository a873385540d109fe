/* flash_attn_ext of one query for each of several sequences that begin with the same keys (decoding with a common
 * prompt). The shared keys are read and widened once, for the queries of all sequences, which are the rows of one tile.
 * The result is a part (flash_parts.c), like the parts of each sequence's own keys (flash_decode.c).
 *
 * 4 rows of 128 take as long as memory needs for a key, so 8 sequences of 4 gain if a tile of 32 rows is computed in
 * less time than 8 separate reads by 4 rows. Not here: the lowering of the rest (flash_attn_ext.c). */
#include <math.h>

#include "lower/alibi.h"
#include "lower/units.h"
#include "flash_plan.h"

enum {
    LEAST_KEYS = 64,        /* fewer shared keys are not worth a step */
    SHARED_KEYS = 512,      /* keys of a part, and the most parts that there are */
    MOST_SHARED_PARTS = 64, /* each part costs memory for a state of all rows */
};

/* Tiles keep maxima for exponentials with base 2, parts for base e. */
static const float ln_2 = 0.693147181f;

typedef struct shared {
    const agk_task *task;
    const agk_node *node;
    agk_flash_decode_plan plan;
    const char *q, *k, *v; /* k and v: those of the sequence that is read */
    const char *mask;
    const agk_flash_mask *looks;
    float *keys, *values; /* a converted block */
    agk_flash_tile tile[AGK_FLASH_BUNDLE];
    float *rows[AGK_FLASH_BUNDLE];   /* of Q */
    uint16_t *cut[AGK_FLASH_BUNDLE]; /* the mask of a block [32][AGK_FLASH_KEYS] */
} shared;

static int64_t rows_of_head(const agk_node *node) /* rows of a head of K: those of all sequences */
{
    const agk_view *q = &node->src[0], *k = &node->src[1];
    return q->ne[2] / k->ne[2] * q->ne[3];
}

static int64_t tiles_of_head(const agk_node *node)
{
    return (rows_of_head(node) + AGK_FLASH_TILE - 1) / AGK_FLASH_TILE;
}

/* How many tiles of a head, and how many heads, process a block of keys before the next block is read. */
static int64_t tiles_at_once(const agk_node *node)
{
    const int64_t tiles = tiles_of_head(node);
    return tiles < AGK_FLASH_BUNDLE ? tiles : AGK_FLASH_BUNDLE;
}

static int64_t heads_at_once(const agk_node *node)
{
    int64_t heads = AGK_FLASH_BUNDLE / tiles_at_once(node);
    while (node->src[1].ne[2] % heads != 0) --heads;
    return heads;
}

static int64_t at_once(const agk_node *node)
{
    return tiles_at_once(node) * heads_at_once(node);
}

static int64_t units_of(const agk_node *node, const agk_flash_decode_plan *plan)
{
    return node->src[1].ne[2] / heads_at_once(node) * plan->shared_parts;
}

static int64_t keys_of_part(int64_t n_keys)
{
    const int64_t fewest = (n_keys + MOST_SHARED_PARTS - 1) / MOST_SHARED_PARTS;
    return fewest <= SHARED_KEYS ? SHARED_KEYS : (fewest + AGK_FLASH_KEYS - 1) / AGK_FLASH_KEYS * AGK_FLASH_KEYS;
}

static int64_t state_floats(const agk_node *node)
{
    const int64_t d = node->src[0].ne[0], dv = node->src[2].ne[0];
    const int64_t tile = agk_flash_state_floats(d, dv), narrow = agk_flash_narrow_floats(AGK_FLASH_NARROW, d, dv);
    return tile > narrow ? tile : narrow;
}

/* Floats of a tile's scratch: state, rows of Q, mask. */
static int64_t tile_floats(const agk_node *node)
{
    return state_floats(node) + AGK_FLASH_TILE * node->src[0].ne[0] + AGK_FLASH_TILE * AGK_FLASH_KEYS / 2;
}

int64_t agk_flash_shared_keys(const agk_node *node)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2];
    const int64_t n = node->params[AGK_FLASH_SHARED], batches = q->ne[3];
    const bool apart = batches > 1 && k->ne[3] == batches && v->ne[3] == batches && k->ne[2] == v->ne[2];
    if (n < LEAST_KEYS || q->ne[1] != 1 || !apart) return 0;
    return agk_has(node, 3) && node->src[3].ne[2] != 1 ? 0 : n;
}

void agk_flash_plan_shared(const agk_lowering *lowering, agk_flash_decode_plan *plan)
{
    const agk_node *node = lowering->node;
    const agk_view *k = &node->src[1], *v = &node->src[2];
    const uint32_t cpu = lowering->cpu;
    const int64_t n = agk_flash_shared_keys(node), of_part = keys_of_part(n);
    plan->shared_parts = (int32_t)((n + of_part - 1) / of_part);
    plan->shared_begin = AGK_PICK(flash_begin, cpu);
    plan->shared_block = AGK_PICK(flash_block, cpu);
    plan->pack = NULL;
    if (rows_of_head(node) < AGK_FLASH_NARROW) {
        plan->shared_begin = plan->begin;
        plan->shared_block = plan->block;
    } else if (k->type == AGK_BF16 && v->type == AGK_BF16 && k->ne[0] % 2 == 0 &&
               AGK_PICK(flash_pairs_block, cpu) != NULL) {
        plan->shared_begin = AGK_PICK(flash_pairs_begin, cpu);
        plan->shared_block = AGK_PICK(flash_pairs_block, cpu);
        plan->pack = AGK_PICK(flash_pairs_pack, cpu);
    }
    /* A tile of 32 rows takes some 0.6 ns for each key and element. */
    const int64_t width = k->ne[0] + v->ne[0], tiles = tiles_of_head(node) * heads_at_once(node);
    const double unit_ns = (double)(of_part * width * tiles) * 0.6;
    plan->shared_per_chunk = (int32_t)agk_units_per_chunk(units_of(node, plan), unit_ns);
}

void agk_flash_add_shared(agk_lowering *lowering, const agk_flash_decode_plan *plan)
{
    const agk_node *node = lowering->node;
    const int64_t width = node->src[0].ne[0] + node->src[2].ne[0];
    const int64_t floats = at_once(node) * tile_floats(node) + AGK_FLASH_KEYS * width;
    const size_t scratch = (size_t)floats * sizeof(float);
    if (lowering->scratch_size < scratch) lowering->scratch_size = scratch;
    agk_add_step(lowering, agk_flash_shared_step, agk_chunks(units_of(node, plan), plan->shared_per_chunk));
}

static bool is_narrow(const shared *w)
{
    return w->plan.shared_block == w->plan.block;
}

/* Narrow kernels read most types as they lie. */
static bool lies(const shared *w, const agk_view *view)
{
    return is_narrow(w) && agk_flash_as_it_lies(view->type);
}

/* Tile i has the rows of head kv from `first` on: copies its queries, one behind the other. */
static void open_tile(shared *w, int64_t i, int64_t kv, int64_t first)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0];
    const int64_t group = q->ne[2] / node->src[1].ne[2], rest = rows_of_head(node) - first;
    agk_flash_tile *t = &w->tile[i];
    const float max_bias = agk_param_f32(node, 1);
    t->n_rows = rest < AGK_FLASH_TILE ? rest : AGK_FLASH_TILE;
    for (int64_t r = 0; r < t->n_rows; ++r) {
        const int64_t batch = (first + r) / group, head = kv * group + (first + r) % group;
        memcpy(w->rows[i] + r * t->d, w->q + head * q->nb[2] + batch * q->nb[3], (size_t)t->d * sizeof(float));
        if (max_bias > 0.0f) t->slope[r] = agk_alibi_slope(head, q->ne[2], max_bias);
    }
    w->plan.shared_begin(t);
}

/* The mask of the rows of a tile for keys j .. j + n - 1. */
static void see(shared *w, int64_t i, int64_t first, int64_t j, int64_t n)
{
    agk_flash_tile *t = &w->tile[i];
    t->mask_form = AGK_FLASH_NO_MASK;
    if (w->mask == NULL) return;
    const agk_view *q = &w->node->src[0], *m = &w->node->src[3];
    const int64_t group = q->ne[2] / w->node->src[1].ne[2];
    bool clear = true;
    for (int64_t b = first / group; b <= (first + t->n_rows - 1) / group; ++b) {
        const agk_flash_mask *seen = &w->looks[b % m->ne[3]];
        clear = clear && seen->clear_begin <= j && j + n <= seen->clear_end;
    }
    if (clear) return;
    t->mask_form = AGK_FLASH_FULL_MASK;
    for (int64_t r = 0; r < t->n_rows; ++r) {
        const char *row = w->mask + (first + r) / group % m->ne[3] * m->nb[3];
        memcpy(w->cut[i] + r * AGK_FLASH_KEYS, row + 2 * j, 2 * (size_t)n);
    }
}

/* What head i of n prefetches while keys j .. j + some - 1 are computed: its own rows of the next block; or, if the
 * heads fill whole rows of memory, the i-th part of that block. */
static agk_flash_ahead ahead_of(const agk_view *view, const char *rows, int64_t i, int64_t n, int64_t j, int64_t some)
{
    const int64_t row = (int64_t)agk_row_size(view->type, view->ne[0]);
    const bool whole = view->nb[1] == n * view->nb[2] && view->nb[2] == row;
    agk_flash_ahead ahead = {.rows = rows, .stride = whole ? row : view->nb[1]};
    if (j + 2 * some > view->ne[1]) return ahead;
    ahead.bytes = row;
    ahead.rows += (j + some) * view->nb[1];
    if (whole) ahead.rows += i * (some - 1) * row; /* `rows` already points to those of head i */
    return ahead;
}

/* Converts keys and values j .. j + n - 1 of a head to the form that the kernel reads. */
static void bring(const shared *w, const char *k_rows, const char *v_rows, int64_t j, int64_t n)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    const size_t row = (size_t)k->ne[0] * 2;
    if (w->plan.pack == NULL) {
        if (!lies(w, k)) agk_flash_floats(k, k_rows, w->plan.read_k, j, n, w->keys);
        if (!lies(w, v)) agk_flash_floats(v, v_rows, w->plan.read_v, j, n, w->values);
        return;
    }
    for (int64_t i = 0; i < n; ++i) memcpy((char *)w->keys + (size_t)i * row, k_rows + (j + i) * k->nb[1], row);
    w->plan.pack(n, v->ne[0], v_rows + j * v->nb[1], v->nb[1], w->values);
}

/* Stores the state of each row of a tile where parts are put together. */
static void save(const shared *w, const agk_flash_tile *t, int64_t kv, int64_t part, int64_t first)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0];
    const int64_t group = q->ne[2] / node->src[1].ne[2];
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const float *sums = t->state + AGK_FLASH_TILE * t->d; /* sums of values [dv][32] */
    const float *max = sums + AGK_FLASH_TILE * (t->dv + 2 * AGK_FLASH_KEYS);
    const bool narrow = is_narrow(w);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        const int64_t batch = (first + r) / group, head = kv * group + (first + r) % group;
        float *to = agk_flash_part_at(w->task, node, batch, part, head);
        to[0] = narrow ? f.max[r] : max[r] * ln_2;
        to[1] = narrow ? f.sum[r] : max[AGK_FLASH_TILE + r];
        for (int64_t i = 0; i < t->dv; ++i) to[2 + i] = narrow ? f.o[r * t->dv + i] : sums[i * AGK_FLASH_TILE + r];
    }
}

/* Keys from .. to - 1 of some heads, beginning with kv; for each head, n tiles beginning with row `first`. */
static void run_tiles(shared *w, int64_t kv, int64_t first, int64_t n, int64_t from, int64_t to)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    const int64_t heads = heads_at_once(w->node), each = w->plan.pack != NULL ? AGK_FLASH_PAIRED_KEYS : AGK_FLASH_KEYS;
    for (int64_t i = 0; i < heads * n; ++i) open_tile(w, i, kv + i / n, first + i % n * AGK_FLASH_TILE);
    for (int64_t j = from, some; j < to; j += some) {
        some = to - j < each ? to - j : each;
        for (int64_t h = 0; h < heads; ++h) {
            const char *k_rows = w->k + (kv + h) * k->nb[2], *v_rows = w->v + (kv + h) * v->nb[2];
            bring(w, k_rows, v_rows, j, some);
            const void *keys = lies(w, k) ? (const void *)(k_rows + j * k->nb[1]) : w->keys;
            const void *values = lies(w, v) ? (const void *)(v_rows + j * v->nb[1]) : w->values;
            for (int64_t i = 0; i < n; ++i) {
                agk_flash_tile *t = &w->tile[h * n + i];
                t->k_ahead = ahead_of(k, k_rows, h, heads, j, some);
                t->v_ahead = ahead_of(v, v_rows, h, heads, j, some);
                if (i > 0) t->k_ahead.bytes = t->v_ahead.bytes = 0;
                see(w, h * n + i, first + i * AGK_FLASH_TILE, j, some);
                w->plan.shared_block(t, 0, some, keys, values);
            }
        }
        agk_breathe(w->task);
    }
}

static void open_shared(shared *w, float *scratch)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2];
    const float softcap = agk_param_f32(node, 2);
    agk_flash_tile t = {.d = q->ne[0], .dv = v->ne[0], .q_step = 4 * q->ne[0]};
    t.k_type = lies(w, k) ? k->type : AGK_F32;
    t.v_type = lies(w, v) ? v->type : AGK_F32;
    t.k_step = lies(w, k) ? k->nb[1] : 4 * t.d;
    t.v_step = lies(w, v) ? v->nb[1] : 4 * t.dv;
    t.mask_step = 2 * AGK_FLASH_KEYS;
    t.scale = agk_param_f32(node, 0);
    t.softcap = softcap > 0.0f ? softcap : 0.0f;
    for (int64_t r = 0; r < AGK_FLASH_TILE; ++r) {
        t.slope[r] = 1.0f;
        t.sink[r] = -INFINITY;
    }
    for (int64_t i = 0; i < at_once(node); ++i) {
        w->tile[i] = t;
        w->tile[i].state = scratch;
        w->rows[i] = scratch + state_floats(node);
        w->cut[i] = (uint16_t *)(void *)(w->rows[i] + AGK_FLASH_TILE * t.d);
        w->tile[i].q = (const char *)w->rows[i];
        w->tile[i].mask = (const char *)w->cut[i];
        w->tile[i].k_ahead.rows = w->tile[i].v_ahead.rows = w->k;
        scratch += tile_floats(node);
    }
    w->keys = scratch;
    w->values = w->keys + AGK_FLASH_KEYS * t.d;
}

/* A unit is some heads of K that lie side by side, and a part of the shared keys. */
agk_status agk_flash_shared_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *k = &node->src[1], *v = &node->src[2];
    shared w = {.task = task, .node = node, .plan = agk_flash_decode_plan_of(node)};
    const int64_t from_batch = node->params[AGK_FLASH_SHARED_FROM];
    w.q = agk_data(task, &node->src[0]);
    w.k = (const char *)agk_data(task, k) + from_batch * k->nb[3];
    w.v = (const char *)agk_data(task, v) + from_batch * v->nb[3];
    w.mask = agk_has(node, 3) ? agk_data(task, &node->src[3]) : NULL;
    w.looks = agk_work(task, node);
    open_shared(&w, task->scratch);
    const int64_t n_keys = agk_flash_shared_keys(node), of_part = keys_of_part(n_keys), tiles = tiles_of_head(node);
    const int64_t heads = heads_at_once(node), most = tiles_at_once(node), bunches = k->ne[2] / heads;
    const int64_t last = agk_chunk_end(chunk, w.plan.shared_per_chunk, units_of(node, &w.plan));
    for (int64_t unit = chunk * w.plan.shared_per_chunk; unit < last; ++unit) {
        const int64_t kv = unit % bunches * heads, part = unit / bunches, from = part * of_part;
        const int64_t to = n_keys - from < of_part ? n_keys : from + of_part;
        for (int64_t tile = 0; tile < tiles; tile += most) {
            const int64_t n = tiles - tile < most ? tiles - tile : most;
            run_tiles(&w, kv, tile * AGK_FLASH_TILE, n, from, to);
            for (int64_t i = 0; i < heads * n; ++i) {
                save(&w, &w.tile[i], kv + i / n, part, (tile + i % n) * AGK_FLASH_TILE);
            }
        }
    }
    return AGK_OK;
}
