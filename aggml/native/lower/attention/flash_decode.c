/* flash_attn_ext of few rows and any number of keys (decoding): the walk over keys and heads.
 *
 * Memory bandwidth is the limit here, so keys and values are read in the order in which they lie. A chunk is a part of
 * the keys, for all heads that lie side by side if that leaves enough chunks. It goes over the keys in blocks, and
 * within a block over the heads. While a head is computed, its share of the next block is prefetched
 * (kernels/vec/flash_narrow.h). Going head by head instead, with a part of the keys each, 8 heads of 128 f16 reached
 * 0.4 of the read bandwidth on a Zen 4.
 *
 * Not here: the lowering (flash_attn_ext.c), the look at the mask (flash_look.c), how parts are put together
 * (flash_parts.c), keys that several sequences share (flash_shared.c), rows that fill tiles (flash_walk.c). */
#include <math.h>

#include "lower/alibi.h"
#include "flash_plan.h"

/* A unit is either all heads of Q that share a head of K (grouped), or one head of Q. */
typedef struct decode {
    const agk_task *task;
    const agk_node *node;
    agk_flash_decode_plan plan;
    const char *q, *k, *v, *mask, *sinks;
    char *out;
    const agk_flash_mask *looks;
    float *keys, *values; /* a converted block, if the kernel does not read rows as they lie */
} decode;

typedef struct unit {
    agk_flash_tile *tile;
    const agk_flash_mask *seen; /* NULL: no mask */
    int64_t begin, end;         /* keys */
    const char *k, *v;          /* rows of the unit's head */
    int64_t head;               /* the index of the head of K, counted over all batches */
} unit;

static agk_flash_tile common_tile(const decode *w)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const bool grouped = w->plan.grouped, k_lies = agk_flash_as_it_lies(k->type),
               v_lies = agk_flash_as_it_lies(v->type);
    const float softcap = agk_param_f32(node, 2);
    agk_flash_tile t = {.d = q->ne[0], .dv = v->ne[0], .mask_form = AGK_FLASH_NO_MASK, .n_rows = w->plan.rows};
    t.q_step = grouped ? q->nb[2] : q->nb[1];
    t.out_step = grouped ? node->dst.nb[1] : node->dst.nb[2];
    t.mask_step = w->mask != NULL && m->ne[1] > 1 && !grouped ? m->nb[1] : 0;
    t.scale = agk_param_f32(node, 0);
    t.softcap = softcap > 0.0f ? softcap : 0.0f;
    t.k_type = k_lies ? k->type : AGK_F32;
    t.v_type = v_lies ? v->type : AGK_F32;
    t.k_step = k_lies ? k->nb[1] : 4 * k->ne[0];
    t.v_step = v_lies ? v->nb[1] : 4 * v->ne[0];
    for (int64_t r = 0; r < AGK_FLASH_TILE; ++r) {
        t.slope[r] = 1.0f;
        t.sink[r] = -INFINITY;
    }
    return t;
}

/* Fills in unit number `at` of a batch, for the keys from .. to - 1. */
static void open_unit(const decode *w, unit *x, int64_t at, int64_t batch, int64_t from, int64_t to)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3], *dst = &node->dst;
    const int64_t group = q->ne[2] / k->ne[2], head = w->plan.grouped ? at * w->plan.rows : at;
    const int64_t kv = head / group, kv_batch = batch / (q->ne[3] / k->ne[3]);
    agk_flash_tile *t = x->tile;
    t->q = w->q + head * q->nb[2] + batch * q->nb[3];
    t->out = w->out + head * dst->nb[1] + batch * dst->nb[3];
    const float max_bias = agk_param_f32(node, 1);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        const int64_t its = w->plan.grouped ? head + r : head;
        if (max_bias > 0.0f) t->slope[r] = agk_alibi_slope(its, q->ne[2], max_bias);
        if (w->sinks != NULL) memcpy(&t->sink[r], w->sinks + its * node->src[4].nb[0], sizeof *t->sink);
    }
    x->k = w->k + kv * k->nb[2] + kv_batch * k->nb[3];
    x->v = w->v + kv * v->nb[2] + kv_batch * v->nb[3];
    x->head = kv_batch * k->ne[2] + kv;
    x->begin = from;
    x->end = to;
    x->seen = NULL;
    if (w->mask != NULL) {
        const int64_t m2 = head % m->ne[2], m3 = batch % m->ne[3];
        x->seen = &w->looks[m3 * m->ne[2] + m2];
        t->mask = w->mask + m2 * m->nb[2] + m3 * m->nb[3];
        if (x->seen->begin > from) x->begin = x->seen->begin;
        if (x->seen->end < to) x->end = x->seen->end;
    }
    w->plan.begin(t);
}

/* What unit i of n prefetches while keys from .. from + n_keys - 1 are computed: its own rows of the next block; or,
 * if the heads fill whole rows of memory, the i-th part of that block, which is then read from end to end. */
static agk_flash_ahead ahead_of(const agk_view *view, const char *rows, const char *first, bool whole, int64_t i,
                                int64_t from, int64_t n_keys)
{
    agk_flash_ahead ahead = {.rows = rows, .stride = 0, .bytes = 0};
    if (from + 2 * n_keys > view->ne[1]) return ahead;
    ahead.bytes = (int64_t)agk_row_size(view->type, view->ne[0]);
    ahead.stride = whole ? ahead.bytes : view->nb[1];
    ahead.rows = (whole ? first : rows) + (from + n_keys) * view->nb[1] + (whole ? i * n_keys * ahead.bytes : 0);
    return ahead;
}

static void ask_for_block(const agk_view *view, const unit *x, int64_t n, int64_t from, int64_t n_keys, bool values)
{
    const int64_t bytes = (int64_t)agk_row_size(view->type, view->ne[0]);
    const int64_t last = from + n_keys < view->ne[1] ? from + n_keys : view->ne[1];
    for (int64_t j = from; j < last; ++j) {
        for (int64_t i = 0; i < n; ++i) {
            if (i > 0 && x[i].head == x[i - 1].head) continue;
            const char *row = (values ? x[i].v : x[i].k) + j * view->nb[1];
            for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
        }
    }
}

/* Whether the rows of n heads lie side by side and with nothing in between: then a block of keys is one piece of
 * memory. */
static bool fills_memory(const agk_view *view, int64_t n)
{
    const int64_t row = (int64_t)agk_row_size(view->type, view->ne[0]);
    return view->nb[1] == n * row && (n == 1 || view->nb[2] == row);
}

static void set_mask_form(const unit *x, int64_t begin, int64_t end)
{
    if (x->seen == NULL) return;
    const bool clear = x->seen->clear_begin <= begin && end <= x->seen->clear_end;
    x->tile->mask_form = clear ? AGK_FLASH_NO_MASK : x->seen->form;
}

/* Computes the keys from .. to - 1 for n units whose rows fill memory from end to end, in the order of memory. Returns
 * how many keys it computed; the others are left to the kernel for one head. */
static int64_t run_all_heads(const decode *w, unit *x, int64_t n, int64_t from, int64_t to)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    for (int64_t i = 0; i < n; ++i) {
        if (x[i].begin > from || x[i].end < to) return 0; /* a mask hides some of them */
        set_mask_form(&x[i], from, to);
    }
    const agk_flash_rows rows = {.first = from,
                                 .n = to - from,
                                 .k = x[0].k + from * k->nb[1],
                                 .v = x[0].v + from * v->nb[1],
                                 .next = x[0].k + to * k->nb[1]};
    return w->plan.all_heads(x[0].tile, n, &rows);
}

/* Computes the keys from .. to - 1, at most a block, for one unit after the other. Whether the rows of all units fill
 * memory: k_whole, v_whole. */
static void run_each_head(const decode *w, unit *x, int64_t n, int64_t from, int64_t to, bool k_whole, bool v_whole)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    const bool k_lies = agk_flash_as_it_lies(k->type), v_lies = agk_flash_as_it_lies(v->type);
    int64_t have = -1;
    for (int64_t i = 0; i < n; ++i) {
        agk_flash_tile *t = x[i].tile;
        const int64_t begin = x[i].begin > from ? x[i].begin : from, end = x[i].end < to ? x[i].end : to;
        if (begin >= end) continue;
        const bool new_head = x[i].head != have; /* only the first unit of a head prefetches the next rows */
        if (new_head && !k_lies) agk_flash_floats(k, x[i].k, w->plan.read_k, from, to - from, w->keys);
        if (new_head && !v_lies) agk_flash_floats(v, x[i].v, w->plan.read_v, from, to - from, w->values);
        have = x[i].head;
        const agk_flash_ahead none = {.rows = x[i].k};
        t->k_ahead = new_head ? ahead_of(k, x[i].k, x[0].k, k_whole, i, from, to - from) : none;
        t->v_ahead = new_head ? ahead_of(v, x[i].v, x[0].v, v_whole, i, from, to - from) : none;
        set_mask_form(&x[i], begin, end);
        const char *keys = k_lies ? x[i].k + begin * k->nb[1] : (char *)(w->keys + (begin - from) * k->ne[0]);
        const char *values = v_lies ? x[i].v + begin * v->nb[1] : (char *)(w->values + (begin - from) * v->ne[0]);
        w->plan.block(t, begin, end - begin, keys, values);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Computes the keys from .. to - 1 for n units. */
static void run_units(const decode *w, unit *x, int64_t n, int64_t from, int64_t to)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    const int64_t each = w->plan.block_keys;
    const bool k_lies = agk_flash_as_it_lies(k->type), v_lies = agk_flash_as_it_lies(v->type);
    const bool one_each = n == 1 || x[0].head != x[1].head;
    const bool k_whole = one_each && fills_memory(k, n), v_whole = one_each && fills_memory(v, n);
    const bool all_heads = w->plan.all_heads != NULL && k_whole && v_whole && k_lies && v_lies;
    if (all_heads && w->plan.asked == AGK_FLASH_ASKED_BYTES) {
        for (int64_t i = 0; i < AGK_FLASH_HEADS_AHEAD; i += 64) __builtin_prefetch(x[0].k + from * k->nb[1] + i, 0, 0);
    } else {
        ask_for_block(k, x, n, from, each, false);
        if (!all_heads || w->plan.asked == AGK_FLASH_ASKED_BOTH) ask_for_block(v, x, n, from, each, true);
    }
    for (int64_t j = from, done; j < to; j += done) {
        done = all_heads ? run_all_heads(w, x, n, j, least(to, j + w->plan.at_once)) : 0;
        if (done == 0) {
            done = least(to - j, each);
            run_each_head(w, x, n, j, j + done, k_whole, v_whole);
        }
        agk_breathe(w->task);
    }
}

agk_status agk_flash_decode_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *k = &node->src[1];
    decode w = {.task = task, .node = node, .plan = agk_flash_decode_plan_of(node), .out = agk_data(task, &node->dst)};
    const agk_flash_decode_plan *p = &w.plan;
    w.q = agk_data(task, q);
    w.k = agk_data(task, k);
    w.v = agk_data(task, &node->src[2]);
    w.mask = agk_has(node, 3) ? agk_data(task, &node->src[3]) : NULL;
    w.looks = agk_work(task, node);
    w.sinks = agk_has(node, 4) ? agk_data(task, &node->src[4]) : NULL;
    const int64_t state = agk_flash_narrow_floats(p->rows, q->ne[0], node->dst.ne[0]);
    agk_flash_tile tiles[AGK_FLASH_DECODE_HEADS];
    unit units[AGK_FLASH_DECODE_HEADS];
    tiles[0] = common_tile(&w);
    for (int64_t i = 0; i < p->together; ++i) {
        tiles[i] = tiles[0];
        tiles[i].state = (float *)task->scratch + i * state;
        units[i].tile = &tiles[i];
    }
    w.keys = (float *)task->scratch + p->together * state;
    w.values = w.keys + p->block_keys * q->ne[0];

    const int64_t shared = p->shared_parts > 0 ? agk_flash_shared_keys(node) : 0, parts = p->parts - p->shared_parts;
    const int64_t bunches = p->heads / p->together, all = bunches * parts * q->ne[3];
    const int64_t last = agk_chunk_end(chunk, p->per_chunk, all);
    for (int64_t at = chunk * p->per_chunk; at < last; ++at) {
        const int64_t bunch = at % bunches, part = at / bunches % parts, batch = at / bunches / parts;
        const int64_t from = shared + part * p->part_keys;
        const int64_t to = k->ne[1] - from < p->part_keys ? k->ne[1] : from + p->part_keys;
        int64_t begin = to, end = from;
        for (int64_t i = 0; i < p->together; ++i) {
            open_unit(&w, &units[i], bunch * p->together + i, batch, from, to);
            if (units[i].begin < begin) begin = units[i].begin;
            if (units[i].end > end) end = units[i].end;
        }
        if (begin < end) run_units(&w, units, p->together, begin, end);
        for (int64_t i = 0; i < p->together; ++i) {
            const int64_t head = bunch * p->together + i, row = head * p->rows;
            if (p->parts > 1)
                agk_flash_save_part(task, node, units[i].tile, batch, p->shared_parts + part, row,
                                    units[i].begin < units[i].end);
            else
                p->end(units[i].tile);
        }
    }
    return AGK_OK;
}
