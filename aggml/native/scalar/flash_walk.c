/* flash_attn_ext: the walk over tiles of rows, and over the keys that each sees.
 *
 * Not here: the lowering (flash_attn_ext.c), the look at the mask (flash_look.c), matrix tiles (flash_panels.c), the kernels
 * (flash_kernels.c, vec/flash_attn_ext.h, vec/flash_narrow.h, avx512/flash_pairs.c). */
#include <math.h>

#include "../alibi.h"
#include "flash_plan.h"

void agk_flash_floats(const agk_view *view, const char *rows, agk_to_float_fn *read, int64_t first, int64_t n,
                      float *to)
{
    if (read == NULL) {
        for (int64_t j = 0; j < n; ++j) {
            const float *row = (const float *)(const void *)(rows + (first + j) * view->nb[1]);
            for (int64_t i = 0; i < view->ne[0]; ++i) to[j * view->ne[0] + i] = row[i];
        }
        return;
    }
    if (view->nb[1] == (int64_t)agk_row_size(view->type, view->ne[0])) {
        read(rows + first * view->nb[1], to, n * view->ne[0]);
        return;
    }
    for (int64_t j = 0; j < n; ++j) read(rows + (first + j) * view->nb[1], to + j * view->ne[0], view->ne[0]);
}

typedef struct walk {
    const agk_task *task;
    const agk_node *node;
    agk_flash_plan plan;
    const char *q, *k, *v, *mask, *sinks;
    char *out;
    const agk_flash_mask *looks;
    float *keys, *values;
    bool k_as_is, v_as_is;
    int64_t have; /* the head of k and v, of all batches, whose rows lie in keys and values; -1: none */
    agk_flash_tile tile;
} walk;

/* Asks for rows that are wanted soon. Rows of a head lie apart: the hardware does not see where that leads. */
static void fetch(const agk_view *view, const char *rows, int64_t first, int64_t last)
{
    const int64_t bytes = (int64_t)agk_row_size(view->type, view->ne[0]);
    if (last > view->ne[1]) last = view->ne[1];
    for (int64_t j = first; j < last; ++j) {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(rows + j * view->nb[1] + i, 0, 2);
    }
}

/* Rows first .. first+n-1 of k as the kernel wants them: where they lie, or in scratch, which keeps a whole head or a block.
 * `fresh`: scratch has nothing of this head yet. */
static const void *bring_keys(walk *w, const char *rows, int64_t first, int64_t n, bool fresh)
{
    const agk_view *k = &w->node->src[1];
    if (w->k_as_is) return rows + first * k->nb[1];
    const bool held = agk_flash_is(&w->plan, AGK_FLASH_HELD), paired = agk_flash_is(&w->plan, AGK_FLASH_PAIRED);
    const int64_t from = held ? 0 : first, row = k->ne[0] * (paired ? 2 : 4);
    if (held) n = k->ne[1];
    if (fresh && paired) {
        for (int64_t j = 0; j < n; ++j) memcpy((char *)w->keys + j * row, rows + (from + j) * k->nb[1], (size_t)row);
    } else if (fresh) {
        agk_flash_floats(k, rows, w->plan.read_k.floats, from, n, w->keys);
    }
    return (const char *)w->keys + (first - from) * row;
}

/* The same of v; in pairs of keys: from the pair on that has the first. */
static const void *bring_values(walk *w, const char *rows, int64_t first, int64_t n, bool fresh)
{
    const agk_view *v = &w->node->src[2];
    if (w->v_as_is) return rows + first * v->nb[1];
    const bool held = agk_flash_is(&w->plan, AGK_FLASH_HELD);
    if (agk_flash_is(&w->plan, AGK_FLASH_PAIRED)) {
        const int64_t even = first & ~(int64_t)1, from = held ? 0 : even, last = held ? v->ne[1] : first + n;
        if (fresh) w->plan.read_v.paired(last - from, v->ne[0], rows + from * v->nb[1], v->nb[1], w->values);
        return (const char *)w->values + (even - from) * 2 * v->ne[0];
    }
    const int64_t from = held ? 0 : first;
    if (fresh) agk_flash_floats(v, rows, w->plan.read_v.floats, from, held ? v->ne[1] : n, w->values);
    return w->values + (first - from) * v->ne[0];
}

static void run_blocks(walk *w, const agk_flash_mask *seen, int64_t kv_head, int64_t kv_batch, int64_t begin,
                       int64_t end)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    const bool held = agk_flash_is(&w->plan, AGK_FLASH_HELD), few = agk_flash_is(&w->plan, AGK_FLASH_FEW);
    const int64_t want = kv_batch * k->ne[2] + kv_head;
    const int64_t most = agk_flash_is(&w->plan, AGK_FLASH_PAIRED) ? AGK_FLASH_PAIRED_KEYS : AGK_FLASH_KEYS;
    bool fresh = !held || w->have != want;
    const char *k_rows = w->k + kv_head * k->nb[2] + kv_batch * k->nb[3];
    const char *v_rows = w->v + kv_head * v->nb[2] + kv_batch * v->nb[3];
    if (few) { /* all misses at once, and values while products are computed */
        const int64_t last = end < begin + AGK_FLASH_KEYS ? end : begin + AGK_FLASH_KEYS;
        fetch(k, k_rows, begin, last);
        fetch(v, v_rows, begin, last);
    }
    for (int64_t j = begin, n; j < end; j += n) {
        n = most - (j & 1); /* the next block begins with a pair */
        if (n > end - j) n = end - j;
        const void *keys = bring_keys(w, k_rows, j, n, fresh), *values = bring_values(w, v_rows, j, n, fresh);
        if (!agk_flash_is(&w->plan, AGK_FLASH_AHEAD)) {
            const int64_t last = end < j + n + most ? end : j + n + most;
            fetch(k, k_rows, j + n, last);
            fetch(v, v_rows, j + n, last);
        }
        if (seen != NULL) {
            const bool clear = seen->clear_begin <= j && j + n <= seen->clear_end;
            w->tile.mask_kind = clear ? AGK_FLASH_NO_MASK : seen->kind;
        }
        w->plan.block(&w->tile, j, n, keys, values);
        fresh = !held;
        w->have = want;
    }
}

/* While tile i of a head is computed, its share of the next head is fetched. */
static void fetch_next_head(const walk *w, int64_t i, int64_t head, int64_t batch)
{
    const agk_view *q = &w->node->src[0], *k = &w->node->src[1], *v = &w->node->src[2];
    if (++head == q->ne[2]) {
        head = 0;
        ++batch;
    }
    if (batch == q->ne[3]) return;
    const int64_t tiles = w->plan.tiles, kv = k->ne[1], group = q->ne[2] / k->ne[2];
    const int64_t kv_batch = batch / (q->ne[3] / k->ne[3]), first = kv * i / tiles, last = kv * (i + 1) / tiles;
    fetch(q, w->q + head * q->nb[2] + batch * q->nb[3], AGK_FLASH_TILE * i, AGK_FLASH_TILE * (i + 1));
    if (head % group != 0) return;
    fetch(k, w->k + head / group * k->nb[2] + kv_batch * k->nb[3], first, last);
    fetch(v, w->v + head / group * v->nb[2] + kv_batch * v->nb[3], first, last);
}

static void run_unit(walk *w, int64_t unit)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *m = &node->src[3], *dst = &node->dst;
    const int64_t tiles = w->plan.tiles, group = q->ne[2] / k->ne[2];
    const bool grouped = agk_flash_is(&w->plan, AGK_FLASH_GROUPED), split = agk_flash_is(&w->plan, AGK_FLASH_SPLIT);
    const int64_t heads = grouped ? k->ne[2] : q->ne[2]; /* of units */
    const int64_t parts = agk_flash_parts(&w->plan), part = unit / tiles / heads % parts;
    const int64_t i = unit % tiles, unit_head = unit / tiles % heads, batch = unit / tiles / heads / parts;
    const int64_t head = grouped ? unit_head * group : unit_head, first = i * AGK_FLASH_TILE;
    const int64_t rest = grouped ? group : q->ne[1] - first;
    agk_flash_tile *t = &w->tile;
    t->n_rows = rest < AGK_FLASH_TILE ? rest : AGK_FLASH_TILE;
    t->q = w->q + first * q->nb[1] + head * q->nb[2] + batch * q->nb[3];
    t->out = w->out + head * dst->nb[1] + first * dst->nb[2] + batch * dst->nb[3];
    const float max_bias = agk_param_f32(node, 1);
    for (int64_t r = 0; r < t->n_rows && (r == 0 || grouped); ++r) {
        if (max_bias > 0.0f) t->slope[r] = agk_alibi_slope(head + r, q->ne[2], max_bias);
        if (w->sinks != NULL) memcpy(&t->sink[r], w->sinks + (head + r) * node->src[4].nb[0], sizeof *t->sink);
    }
    for (int64_t r = 1; r < AGK_FLASH_TILE && !grouped; ++r) {
        t->slope[r] = t->slope[0];
        t->sink[r] = t->sink[0];
    }
    int64_t begin = 0, end = k->ne[1];
    const agk_flash_mask *seen = NULL;
    if (w->mask != NULL) {
        const int64_t m2 = head % m->ne[2], m3 = batch % m->ne[3];
        seen = &w->looks[(m3 * m->ne[2] + m2) * tiles + i];
        t->mask = w->mask + first * t->mask_step + m2 * m->nb[2] + m3 * m->nb[3];
        t->mask_kind = seen->kind;
        begin = seen->begin;
        end = seen->end;
    }
    if (split) {
        const int64_t from = part * w->plan.as.parts.keys, to = from + w->plan.as.parts.keys;
        begin = begin > from ? begin : from;
        end = end < to ? end : to;
    }
    const int64_t kv_head = head / group, kv_batch = batch / (q->ne[3] / k->ne[3]);
    const int64_t all_head = kv_batch * k->ne[2] + kv_head;
    if (w->plan.terms != 0 && agk_flash_matrix_tile(w->task, node, t, all_head, begin, end)) return;
    w->plan.begin(t);
    if (agk_flash_is(&w->plan, AGK_FLASH_AHEAD)) fetch_next_head(w, i, head, batch);
    run_blocks(w, seen, kv_head, kv_batch, begin, end);
    if (split)
        agk_flash_save_part(w->task, node, t, batch, part, head * q->ne[1], begin < end);
    else
        w->plan.end(t);
}

/* Whether the kernel reads rows where and as they lie. */
static bool taken_as_it_is(const walk *w, const agk_view *view, const char *rows, bool values)
{
    const bool dense = view->nb[1] == (int64_t)agk_row_size(view->type, view->ne[0]);
    const bool words = ((int64_t)(uintptr_t)rows | view->nb[2] | view->nb[3]) % 4 == 0; /* a pair is one */
    if (agk_flash_is(&w->plan, AGK_FLASH_PAIRED)) return dense && words && !values;
    if (!agk_flash_is(&w->plan, AGK_FLASH_FEW)) return dense && view->type == AGK_F32;
    return view->type == AGK_F32 || view->type == AGK_F16 || view->type == AGK_BF16;
}

agk_status agk_flash_walk_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const agk_flash_plan plan = agk_flash_plan_of(node);
    const bool grouped = agk_flash_is(&plan, AGK_FLASH_GROUPED);
    const float softcap = agk_param_f32(node, 2);
    walk w = {.task = task, .node = node, .plan = plan, .have = -1, .out = agk_data(task, &node->dst)};
    w.q = agk_data(task, q);
    w.k = agk_data(task, k);
    w.v = agk_data(task, v);
    w.mask = agk_has(node, 3) ? agk_data(task, m) : NULL;
    w.looks = agk_work(task, node);
    w.sinks = agk_has(node, 4) ? agk_data(task, &node->src[4]) : NULL;
    agk_flash_tile *t = &w.tile;
    t->q_step = grouped ? q->nb[2] : q->nb[1];
    t->out_step = grouped ? node->dst.nb[1] : node->dst.nb[2];
    t->mask_step = w.mask != NULL && m->ne[1] > 1 && !grouped ? m->nb[1] : 0;
    t->d = q->ne[0];
    t->dv = v->ne[0];
    t->mask_kind = AGK_FLASH_NO_MASK;
    t->scale = agk_param_f32(node, 0);
    t->softcap = softcap > 0.0f ? softcap : 0.0f;
    t->state = task->scratch;
    w.k_as_is = taken_as_it_is(&w, k, w.k, false);
    w.v_as_is = taken_as_it_is(&w, v, w.v, true);
    t->k_type = w.k_as_is ? k->type : AGK_F32;
    t->v_type = w.v_as_is ? v->type : AGK_F32;
    t->k_step = w.k_as_is ? k->nb[1] : 4 * k->ne[0];
    t->v_step = w.v_as_is ? v->nb[1] : 4 * v->ne[0];
    for (int64_t r = 0; r < AGK_FLASH_TILE; ++r) {
        t->slope[r] = 1.0f;
        t->sink[r] = -INFINITY;
    }
    w.keys = t->state + agk_flash_state_floats(t->d, t->dv);
    w.values = w.keys + (agk_flash_is(&plan, AGK_FLASH_HELD) ? k->ne[1] : AGK_FLASH_KEYS) * t->d;
    const int64_t last = agk_chunk_end(chunk, plan.per_chunk, plan.units);
    for (int64_t unit = chunk * plan.per_chunk; unit < last; ++unit) run_unit(&w, unit);
    return AGK_OK;
}
