/* flash_attn_ext: the walk over tiles of rows, and over the keys that each tile sees.
 *
 * Not here: the lowering (flash_attn_ext.c), the look at the mask (flash_look.c), matrix tiles (flash_panels.c), few
 * rows (flash_decode.c), the kernels (kernels/scalar/flash.c, kernels/vec/flash.h, kernels/avx512/flash_pairs.c). */
#include <math.h>

#include "lower/alibi.h"
#include "flash_plan.h"

typedef struct walk {
    const agk_task *task;
    const agk_node *node;
    agk_flash_plan plan;
    const char *q, *k, *v, *mask, *sinks;
    char *out;
    const agk_flash_mask *looks;
    float *keys, *values;
    bool k_as_is, v_as_is;
    int64_t have,
        /* keys and values hold rows of this head of k and v (counted over all batches), beginning with row `from`;
         * -1: none */
        from;
    void *engine; /* state of tiles with one term, and how many of them were begun */
    int64_t begun;
} walk;

/* A tile under way: which keys it may see, and where its rows are. */
typedef struct job {
    agk_flash_tile tile;
    const agk_flash_mask *seen; /* NULL: no mask */
    int64_t begin, end;         /* keys */
    int64_t i, head, batch;
} job;

/* Prefetches rows that are needed soon. */
static void fetch(const agk_view *view, const char *rows, int64_t first, int64_t last)
{
    const int64_t bytes = (int64_t)agk_row_size(view->type, view->ne[0]);
    if (last > view->ne[1]) last = view->ne[1];
    for (int64_t j = first; j < last; ++j) {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(rows + j * view->nb[1] + i, 0, 2);
    }
}

/* Rows first .. first+n-1 of k in the form that the kernel reads: where they lie, or in scratch, which holds the
 * rows from w->from on. */
static const void *keys_at(const walk *w, const char *rows, int64_t first)
{
    const agk_view *k = &w->node->src[1];
    if (w->k_as_is) return rows + first * k->nb[1];
    const int64_t row = k->ne[0] * (agk_flash_is(&w->plan, AGK_FLASH_PAIRED) ? 2 : 4);
    return (const char *)w->keys + (first - w->from) * row;
}

/* The same for v. In pairs of keys, the result begins with the pair that has the first row. */
static const void *values_at(const walk *w, const char *rows, int64_t first)
{
    const agk_view *v = &w->node->src[2];
    if (w->v_as_is) return rows + first * v->nb[1];
    if (!agk_flash_is(&w->plan, AGK_FLASH_PAIRED)) return w->values + (first - w->from) * v->ne[0];
    return (const char *)w->values + ((first & ~(int64_t)1) - w->from) * 2 * v->ne[0];
}

/* Converts the rows of a head from `from` on, an even number, to `to`, unless they are there already. */
static void bring(walk *w, int64_t head, const char *k_rows, const char *v_rows, int64_t from, int64_t to)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    if (w->have == head && w->from == from && agk_flash_is(&w->plan, AGK_FLASH_HELD)) return;
    const bool paired = agk_flash_is(&w->plan, AGK_FLASH_PAIRED);
    const size_t row = (size_t)k->ne[0] * 2;
    if (!w->k_as_is && !paired) agk_flash_floats(k, k_rows, w->plan.read_k.floats, from, to - from, w->keys);
    for (int64_t j = from; !w->k_as_is && paired && j < to; ++j) {
        memcpy((char *)w->keys + (size_t)(j - from) * row, k_rows + j * k->nb[1], row);
    }
    if (!w->v_as_is && !paired) agk_flash_floats(v, v_rows, w->plan.read_v.floats, from, to - from, w->values);
    if (paired) w->plan.read_v.paired(to - from, v->ne[0], v_rows + from * v->nb[1], v->nb[1], w->values);
    w->have = head;
    w->from = from;
}

static const char *head_of(const agk_view *view, const char *data, int64_t head)
{
    return data + head % view->ne[2] * view->nb[2] + head / view->ne[2] * view->nb[3];
}

/* How many keys a block from key j on has, if it may have `most`, or `clear` without a mask: it ends, where a multiple
 * of 8 allows, with the keys for which the mask is 0. */
static int64_t clear_keys(const job *x, int64_t j, int64_t most, int64_t clear)
{
    if (x->seen == NULL) return clear;
    if (j < x->seen->clear_begin) return most;
    const int64_t left = (x->seen->clear_end - j) / 8 * 8;
    return left <= 0 ? most : left < clear ? left : clear;
}

static void run_blocks(walk *w, job *x, int64_t head, int64_t begin, int64_t end)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    const bool held = agk_flash_is(&w->plan, AGK_FLASH_HELD);
    const bool short_blocks = (w->plan.flags & (AGK_FLASH_PAIRED | AGK_FLASH_LONG)) == AGK_FLASH_PAIRED;
    const bool cut = agk_flash_is(&w->plan, AGK_FLASH_CUT);
    const int64_t most = short_blocks ? AGK_FLASH_PAIRED_KEYS : AGK_FLASH_KEYS, clear = cut && held ? 2 * most : most;
    const char *k_rows = head_of(k, w->k, head), *v_rows = head_of(v, w->v, head);
    for (int64_t j = begin, n; j < end; j += n) {
        n = (cut ? clear_keys(x, j, most, clear) : most) - (j & 1); /* so that the next block begins with a pair */
        if (n > end - j) n = end - j;
        if (!held) {
            const int64_t last = end < j + n + most ? end : j + n + most;
            bring(w, head, k_rows, v_rows, agk_flash_is(&w->plan, AGK_FLASH_PAIRED) ? j & ~(int64_t)1 : j, j + n);
            fetch(k, k_rows, j + n, last);
            fetch(v, v_rows, j + n, last);
        }
        if (x->seen != NULL) {
            const bool plain = x->seen->clear_begin <= j && j + n <= x->seen->clear_end;
            x->tile.mask_form = plain ? AGK_FLASH_NO_MASK : x->seen->form;
        }
        w->plan.block(&x->tile, j, n, keys_at(w, k_rows, j), values_at(w, v_rows, j));
    }
}

/* While tile i of a head is computed, prefetches its share of the next head. */
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

static int64_t kv_head_of(const agk_node *node, int64_t head, int64_t batch)
{
    const agk_view *q = &node->src[0], *k = &node->src[1];
    return batch / (q->ne[3] / k->ne[3]) * k->ne[2] + head / (q->ne[2] / k->ne[2]);
}

/* Fills in where unit number `unit` has its rows and which keys it sees; the fields that all units share are set
 * already. */
static void open_job(const walk *w, job *x, int64_t unit)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *m = &node->src[3], *dst = &node->dst;
    const int64_t tiles = w->plan.tiles;
    x->i = unit % tiles;
    x->head = unit / tiles % q->ne[2];
    x->batch = unit / tiles / q->ne[2];
    const int64_t first = x->i * AGK_FLASH_TILE, rest = q->ne[1] - first;
    agk_flash_tile *t = &x->tile;
    t->n_rows = rest < AGK_FLASH_TILE ? rest : AGK_FLASH_TILE;
    t->q = w->q + first * q->nb[1] + x->head * q->nb[2] + x->batch * q->nb[3];
    t->out = w->out + x->head * dst->nb[1] + first * dst->nb[2] + x->batch * dst->nb[3];
    const float max_bias = agk_param_f32(node, 1);
    if (max_bias > 0.0f) t->slope[0] = agk_alibi_slope(x->head, q->ne[2], max_bias);
    if (w->sinks != NULL) memcpy(&t->sink[0], w->sinks + x->head * node->src[4].nb[0], sizeof *t->sink);
    for (int64_t r = 1; r < AGK_FLASH_TILE; ++r) {
        t->slope[r] = t->slope[0];
        t->sink[r] = t->sink[0];
    }
    x->begin = 0;
    x->end = k->ne[1];
    x->seen = NULL;
    if (w->mask != NULL) {
        const int64_t m2 = x->head % m->ne[2], m3 = x->batch % m->ne[3];
        x->seen = &w->looks[(m3 * m->ne[2] + m2) * tiles + x->i];
        t->mask = w->mask + first * t->mask_step + m2 * m->nb[2] + m3 * m->nb[3];
        t->mask_form = x->seen->form;
        x->begin = x->seen->begin;
        x->end = x->seen->end;
    }
}

/* Computes n tiles that see the same head of k and v, as many keys at a time as are held. */
static void run_jobs(walk *w, job *x, int64_t n, int64_t head)
{
    const agk_view *k = &w->node->src[1], *v = &w->node->src[2];
    int64_t first = k->ne[1], last = 0;
    for (int64_t i = 0; i < n; ++i) {
        w->plan.begin(&x[i].tile);
        if (x[i].begin < first) first = x[i].begin;
        if (x[i].end > last) last = x[i].end;
    }
    const char *k_rows = head_of(k, w->k, head), *v_rows = head_of(v, w->v, head);
    /* nothing is held: all keys, and never 0 */
    const int64_t held = w->plan.held, at_once = held > 0 ? held : k->ne[1] + 1;
    for (int64_t from = first / at_once * at_once; from < last; from += at_once) {
        const int64_t to = k->ne[1] - from < at_once ? k->ne[1] : from + at_once;
        const int64_t next = held > 0 && to < last ? (last - to < at_once ? last - to : at_once) : 0;
        if (held > 0) bring(w, head, k_rows, v_rows, from, to);
        for (int64_t i = 0; i < n; ++i) {
            if (agk_flash_is(&w->plan, AGK_FLASH_AHEAD)) fetch_next_head(w, x[i].i, x[i].head, x[i].batch);
            fetch(k, k_rows, to + next * i / n, to + next * (i + 1) / n);
            fetch(v, v_rows, to + next * i / n, to + next * (i + 1) / n);
            const int64_t begin = x[i].begin > from ? x[i].begin : from, end = x[i].end < to ? x[i].end : to;
            if (begin < end) run_blocks(w, &x[i], head, begin, end);
            agk_breathe(w->task);
        }
    }
    for (int64_t i = 0; i < n; ++i) w->plan.end(&x[i].tile);
}

/* Whether the kernel reads rows as they lie. */
static bool taken_as_it_is(const walk *w, const agk_view *view, const char *rows, bool values)
{
    const bool dense = view->nb[1] == (int64_t)agk_row_size(view->type, view->ne[0]);
    /* the kernel loads a pair as one number of 4 bytes */
    const bool words = ((int64_t)(uintptr_t)rows | view->nb[2] | view->nb[3]) % 4 == 0;
    if (agk_flash_is(&w->plan, AGK_FLASH_PAIRED)) return dense && words && !values;
    return dense && view->type == AGK_F32;
}

/* Fills in the fields that all tiles of a node have in common. */
static agk_flash_tile common_tile(const walk *w)
{
    const agk_node *node = w->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const float softcap = agk_param_f32(node, 2);
    agk_flash_tile t = {.d = q->ne[0], .dv = v->ne[0], .mask_form = AGK_FLASH_NO_MASK};
    t.q_step = q->nb[1];
    t.out_step = node->dst.nb[2];
    t.mask_step = w->mask != NULL && m->ne[1] > 1 ? m->nb[1] : 0;
    t.scale = agk_param_f32(node, 0);
    t.softcap = softcap > 0.0f ? softcap : 0.0f;
    t.k_type = w->k_as_is ? k->type : AGK_F32;
    t.v_type = w->v_as_is ? v->type : AGK_F32;
    t.k_step = w->k_as_is ? k->nb[1] : 4 * k->ne[0];
    t.v_step = w->v_as_is ? v->nb[1] : 4 * v->ne[0];
    for (int64_t r = 0; r < AGK_FLASH_TILE; ++r) {
        t.slope[r] = 1.0f;
        t.sink[r] = -INFINITY;
    }
    return t;
}

/* Computes one tile on matrix tiles, with one term. The end of a tile is computed together with the next tile. NULL:
 * only ends the last one. */
static void run_bf16(walk *w, const job *x, job slots[2])
{
    const agk_node *node = w->node;
    job *own = x != NULL ? &slots[w->begun & 1] : NULL;
    agk_flash_terms terms = {0};
    if (x != NULL) {
        *own = *x;
        const int64_t head = kv_head_of(node, x->head, x->batch);
        if (!agk_flash_bf16_of(w->task, node, head, x->begin, x->end, &terms)) {
            run_jobs(w, own, 1, head);
            return;
        }
        if (x->seen != NULL) {
            terms.clear_begin = x->seen->clear_begin;
            terms.clear_end = x->seen->clear_end;
        }
    }
    if (x == NULL && w->begun == 0) return;
    const bool fine = w->plan.as.bf16.tile(own != NULL ? &own->tile : NULL, &terms, w->begun == 0, w->engine);
    if (!fine) {
        job *before = &slots[(w->begun & 1) ^ 1];
        run_jobs(w, before, 1, kv_head_of(node, before->head, before->batch));
    }
    ++w->begun;
}

agk_status agk_flash_walk_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2];
    const agk_flash_plan plan = agk_flash_plan_of(node);
    walk w = {.task = task, .node = node, .plan = plan, .have = -1, .out = agk_data(task, &node->dst)};
    w.q = agk_data(task, q);
    w.k = agk_data(task, k);
    w.v = agk_data(task, v);
    w.mask = agk_has(node, 3) ? agk_data(task, &node->src[3]) : NULL;
    w.looks = agk_work(task, node);
    w.sinks = agk_has(node, 4) ? agk_data(task, &node->src[4]) : NULL;
    w.k_as_is = taken_as_it_is(&w, k, w.k, false);
    w.v_as_is = taken_as_it_is(&w, v, w.v, true);
    const int64_t most = agk_flash_bundle(node, plan.held);
    const int64_t floats = agk_flash_state_floats(q->ne[0], v->ne[0]);
    job jobs[AGK_FLASH_BUNDLE];
    jobs[0].tile = common_tile(&w);
    for (int64_t i = 0; i < most; ++i) {
        jobs[i].tile = jobs[0].tile;
        jobs[i].tile.state = (float *)task->scratch + i * floats;
    }
    w.keys = (float *)task->scratch + most * floats;
    w.values = w.keys + (plan.held > 0 ? plan.held : AGK_FLASH_KEYS) * q->ne[0];
    const int64_t last = agk_chunk_end(chunk, plan.per_chunk, plan.units);
    if (plan.terms == 1) {
        job on_way[2];
        const int64_t held = plan.held > 0 ? plan.held : AGK_FLASH_KEYS;
        const size_t lanes = (size_t)(most * floats + held * (q->ne[0] + v->ne[0])) * sizeof(float);
        w.engine = (char *)task->scratch + (lanes + 63) / 64 * 64;
        for (int64_t unit = chunk * plan.per_chunk; unit < last; ++unit) {
            open_job(&w, &jobs[0], unit);
            run_bf16(&w, &jobs[0], on_way);
        }
        run_bf16(&w, NULL, on_way);
        return AGK_OK;
    }
    int64_t n = 0, head = -1;
    for (int64_t unit = chunk * plan.per_chunk; unit < last; ++unit) {
        job *x = &jobs[n];
        agk_breathe(task);
        open_job(&w, x, unit);
        const int64_t its_head = kv_head_of(node, x->head, x->batch);
        if (plan.terms !=
            0) { /* matrix tiles overwrite scratch, so tiles that wait have not begun, and keys are no longer held */
            float *own = x->tile.state;
            x->tile.state = task->scratch;
            w.have = -1;
            const bool done = agk_flash_matrix_tile(task, node, &x->tile, its_head, x->begin, x->end);
            x->tile.state = own;
            if (done) continue;
        }
        if (n > 0 && its_head != head) { /* a head ends here */
            run_jobs(&w, jobs, n, head);
            open_job(&w, jobs, unit);
            n = 0;
        }
        head = its_head;
        if (++n < most) continue;
        run_jobs(&w, jobs, n, head);
        n = 0;
    }
    if (n > 0) run_jobs(&w, jobs, n, head);
    return AGK_OK;
}
