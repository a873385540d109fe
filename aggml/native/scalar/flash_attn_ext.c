/* flash_attn_ext: softmax(scale Q K^T + mask) V in one pass over the keys, with ALiBi, softcap and sinks.
 *
 * Here: the lowering, the look at the mask, the walk over tiles. Not here: the kernels (flash_kernels.c,
 * vec/flash_attn_ext.h, vec/flash_narrow.h; amx/flash_terms.c). Online softmax: Milakov and Gimelshein, 2018; Dao et al., 2022. */
#include <math.h>

#include "../alibi.h"
#include "../flash.h"
#include "../kernel_types.h"
#include "../refuse.h"
#include "../strided.h"

/* slots of node->aux; BEGIN, BLOCK, END: the three parts of the kernel; PACK, TILE: those of the kernel for matrix tiles,
 * PACKED: where in the work memory it finds keys and values; or, of a split, PART: keys of a part, PARTS: how many,
 * PARTIAL: where in the work memory what is known of each lies */
enum { PER_CHUNK, UNITS, FLAGS, TILES, PACKED, PACK, TILE, READ_K, READ_V, BEGIN, BLOCK, END };
enum { PARTIAL = PACKED, PART = PACK, PARTS = TILE };
enum { CACHED = 1, AHEAD = 2, NARROW = 4, GROUPED = 8, SPLIT = 16, TERMS = 256 /* times their number; 0: lanes */ };

static bool has(const agk_node *node, int64_t flag)
{
    return (node->aux.i[FLAGS] & flag) != 0;
}

static int terms_of(const agk_node *node)
{
    return (int)(node->aux.i[FLAGS] / TERMS);
}

/* --- the look at the mask --- */

static const uint16_t minus_infinity = 0xfc00;

static int64_t mask_planes(const agk_view *m)
{
    return m->ne[2] * m->ne[3];
}

static agk_flash_mask look(const char *rows, int64_t step, int64_t n_rows, int64_t n_keys)
{
    agk_flash_mask found = {.kind = AGK_FLASH_NO_MASK, .begin = (int32_t)n_keys, .end = 0};
    bool same = true, zero = true;
    for (int64_t i = 0; i < n_rows; ++i) {
        const uint16_t *row = (const uint16_t *)(const void *)(rows + i * step);
        int64_t begin = 0, end = n_keys;
        while (end > 0 && row[end - 1] == minus_infinity) --end;
        while (begin < end && row[begin] == minus_infinity) ++begin;
        if (begin < found.begin && begin < end) found.begin = (int32_t)begin;
        if (end > found.end) found.end = (int32_t)end;
        same = same && (i == 0 || memcmp(rows, row, (size_t)n_keys * sizeof *row) == 0);
    }
    if (found.begin > found.end) found.begin = found.end;
    for (int64_t j = found.begin; same && zero && j < found.end; ++j) {
        zero = ((const uint16_t *)(const void *)rows)[j] == 0;
    }
    found.kind = same ? (zero ? AGK_FLASH_NO_MASK : AGK_FLASH_SAME_MASK) : AGK_FLASH_FULL_MASK;
    return found;
}

/* A chunk is one plane of the mask. */
static agk_status run_look(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *m = &node->src[3];
    const int64_t tiles = node->aux.i[TILES];
    agk_flash_mask *found = (agk_flash_mask *)agk_work(task, node) + chunk * tiles;
    const char *plane = (const char *)agk_data(task, m) + chunk % m->ne[2] * m->nb[2] + chunk / m->ne[2] * m->nb[3];
    const int64_t step = m->ne[1] == 1 ? 0 : m->nb[1];
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile * AGK_FLASH_TILE, rest = q->ne[1] - first;
        const int64_t rows = step == 0 ? 1 : rest < AGK_FLASH_TILE ? rest : AGK_FLASH_TILE;
        found[tile] = look(plane + first * step, step, rows, node->src[1].ne[1]);
    }
    return AGK_OK;
}

/* --- keys and values for matrix tiles --- */

static void convert(const agk_view *view, const char *rows, agk_to_float_fn *read, int64_t first, int64_t n, float *to)
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

/* What is packed of one head: keys, then values. After all heads: whether each panel of each head has terms. */
typedef struct packed {
    char *k, *v;
    bool *fine;
    size_t v_step; /* from one 32 of the width of values to the next */
} packed;

static int64_t panels_of(const agk_node *node)
{
    return agk_flash_up(node->src[1].ne[1]) / AGK_FLASH_PANEL;
}

static packed packed_at(const agk_task *task, const agk_node *node, int64_t head)
{
    const agk_view *k = &node->src[1], *v = &node->src[2];
    const int terms = terms_of(node);
    const size_t keys = agk_flash_terms_k_bytes(terms, k->ne[1], k->ne[0]);
    const size_t values = agk_flash_terms_k_bytes(terms, k->ne[1], v->ne[0]);
    char *base = (char *)agk_work(task, node) + node->aux.i[PACKED];
    packed p = {.k = base + (size_t)head * (keys + values)};
    p.v = p.k + keys;
    p.v_step = agk_flash_terms_k_bytes(terms, k->ne[1], AGK_FLASH_PANEL);
    p.fine = (bool *)(void *)(base + (size_t)(k->ne[2] * k->ne[3]) * (keys + values)) + head * panels_of(node);
    return p;
}

enum { PACK_PANELS = 8 }; /* in a chunk */

static agk_status run_pack(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *k = &node->src[1], *v = &node->src[2];
    const int64_t panels = panels_of(node), all = panels * k->ne[2] * k->ne[3];
    const int terms = terms_of(node);
    const size_t k_step = agk_flash_terms_k_bytes(terms, AGK_FLASH_PANEL, k->ne[0]);
    for (int64_t i = chunk * PACK_PANELS; i < all && i < (chunk + 1) * PACK_PANELS; ++i) {
        const int64_t head = i / panels, panel = i % panels, first = panel * AGK_FLASH_PANEL;
        const int64_t left = k->ne[1] - first, n = left < AGK_FLASH_PANEL ? left : AGK_FLASH_PANEL;
        const int64_t i2 = head % k->ne[2], i3 = head / k->ne[2];
        const char *k_rows = (const char *)agk_data(task, k) + i2 * k->nb[2] + i3 * k->nb[3];
        const char *v_rows = (const char *)agk_data(task, v) + i2 * v->nb[2] + i3 * v->nb[3];
        float *keys = task->scratch, *values = keys + AGK_FLASH_PANEL * k->ne[0];
        const packed p = packed_at(task, node, head);
        convert(k, k_rows, (agk_to_float_fn *)node->aux.fn[READ_K], first, n, keys);
        convert(v, v_rows, (agk_to_float_fn *)node->aux.fn[READ_V], first, n, values);
        p.fine[panel] = ((agk_flash_terms_pack_fn *)node->aux.fn[PACK])(
            terms, n, k->ne[0], keys, v->ne[0], values, p.k + (size_t)panel * k_step,
            p.v + (size_t)panel * (size_t)terms * 2048, p.v_step);
    }
    return AGK_OK;
}

/* One tile; false: a number without terms is among what it sees, so lanes must do it. */
static bool run_terms(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t head, int64_t begin,
                      int64_t end)
{
    const packed p = packed_at(task, node, head);
    for (int64_t i = begin / AGK_FLASH_PANEL; i * AGK_FLASH_PANEL < end; ++i) {
        if (!p.fine[i]) return false;
    }
    const agk_flash_terms x = {
        .terms = terms_of(node), .n_keys = node->src[1].ne[1], .begin = begin, .end = end, .k = p.k, .v = p.v};
    return ((agk_flash_terms_tile_fn *)node->aux.fn[TILE])(t, &x);
}

/* --- parts of the keys, of few rows --- */

enum { PART_KEYS = 128, MOST_PARTS = 64 };

static int64_t parts_of(const agk_node *node)
{
    return has(node, SPLIT) ? node->aux.i[PARTS] : 1;
}

/* Maximum, sum and sums of values of a row of Q, of all heads and batches, over one part of the keys. */
static float *partial_at(const agk_task *task, const agk_node *node, int64_t batch, int64_t part, int64_t row)
{
    const int64_t rows = node->src[0].ne[1] * node->src[0].ne[2], floats = 2 + node->dst.ne[0];
    float *first = (float *)(void *)((char *)agk_work(task, node) + node->aux.i[PARTIAL]);
    return first + ((batch * parts_of(node) + part) * rows + row) * floats;
}

static void save_partial(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t batch,
                         int64_t part, int64_t row, bool any)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t->state);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        float *to = partial_at(task, node, batch, part, row + r);
        to[0] = any ? f.max[r] : -INFINITY;
        to[1] = any ? f.sum[r] : 0.0f;
        if (any) memcpy(to + 2, f.o + r * t->dv, (size_t)t->dv * sizeof(float));
    }
}

static int64_t rows_combined(const agk_node *node) /* in a chunk */
{
    const double ns = (double)parts_of(node) * (0.5 * (double)node->dst.ne[0] + 20.0);
    return agk_units_per_chunk(agk_nrows(&node->src[0]), ns);
}

/* Row by row, what END does with the state of one unit. */
static agk_status run_combine(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *dst = &node->dst, *sinks = &node->src[4];
    const int64_t per_batch = q->ne[1] * q->ne[2], all = per_batch * q->ne[3], parts = parts_of(node), dv = dst->ne[0];
    const int64_t per_chunk = rows_combined(node);
    for (int64_t i = chunk * per_chunk; i < all && i < (chunk + 1) * per_chunk; ++i) {
        const int64_t batch = i / per_batch, row = i % per_batch, head = row / q->ne[1];
        float *out = (float *)(void *)((char *)agk_data(task, dst) + head * dst->nb[1] + row % q->ne[1] * dst->nb[2] +
                                       batch * dst->nb[3]);
        float sink = -INFINITY;
        if (agk_has(node, 4)) memcpy(&sink, (char *)agk_data(task, sinks) + head * sinks->nb[0], sizeof sink);
        float top = sink, total = 0.0f;
        for (int64_t part = 0; part < parts; ++part) {
            const float max = partial_at(task, node, batch, part, row)[0];
            if (max > top) top = max;
        }
        const float safe = top > -INFINITY ? top : 0.0f;
        bool none = true;
        for (int64_t e = 0; e < dv; ++e) out[e] = 0.0f;
        for (int64_t part = 0; part < parts; ++part) {
            const float *x = partial_at(task, node, batch, part, row);
            if (x[1] <= 0.0f && x[1] >= 0.0f) continue; /* nothing was seen; o may be anything */
            const float weight = expf(x[0] - safe);
            none = false;
            total += weight * x[1];
            for (int64_t e = 0; e < dv; ++e) out[e] += weight * x[2 + e];
        }
        total += expf(sink - safe);
        for (int64_t e = 0; e < dv; ++e) out[e] = none ? 0.0f : out[e] / total;
    }
    return AGK_OK;
}

/* --- the walk over tiles --- */

typedef struct walk {
    const agk_task *task;
    const agk_node *node;
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

/* Rows first .. first+n-1 of k or v as f32 without gaps: where they lie, or in `held`, which keeps a whole head or a
 * block. `fresh`: held has nothing of this head yet. `as_is`: the kernel takes them where and as they lie. */
static const void *bring(const agk_view *view, const char *rows, agk_to_float_fn *read, int64_t first, int64_t n,
                         float *held, bool as_is, bool cached, bool fresh)
{
    if (as_is || (view->type == AGK_F32 && view->nb[1] == 4 * view->ne[0])) return rows + first * view->nb[1];
    if (!cached) {
        convert(view, rows, read, first, n, held);
        return held;
    }
    if (fresh) convert(view, rows, read, 0, view->ne[1], held);
    return held + first * view->ne[0];
}

static void run_blocks(walk *w, int64_t kv_head, int64_t kv_batch, int64_t begin, int64_t end)
{
    const agk_node *node = w->node;
    const agk_view *k = &node->src[1], *v = &node->src[2];
    const bool cached = has(node, CACHED) != 0;
    const int64_t want = kv_batch * k->ne[2] + kv_head;
    bool fresh = w->have != want;
    const char *k_rows = w->k + kv_head * k->nb[2] + kv_batch * k->nb[3];
    const char *v_rows = w->v + kv_head * v->nb[2] + kv_batch * v->nb[3];
    if (has(node, NARROW)) { /* all misses at once, and values while products are computed */
        const int64_t last = end < begin + AGK_FLASH_KEYS ? end : begin + AGK_FLASH_KEYS;
        fetch(k, k_rows, begin, last);
        fetch(v, v_rows, begin, last);
    }
    for (int64_t j = begin; j < end; j += AGK_FLASH_KEYS) {
        const int64_t n = end - j < AGK_FLASH_KEYS ? end - j : AGK_FLASH_KEYS;
        const void *keys =
            bring(k, k_rows, (agk_to_float_fn *)node->aux.fn[READ_K], j, n, w->keys, w->k_as_is, cached, fresh);
        const void *values =
            bring(v, v_rows, (agk_to_float_fn *)node->aux.fn[READ_V], j, n, w->values, w->v_as_is, cached, fresh);
        if (!has(node, AHEAD)) {
            const int64_t last = end < j + n + AGK_FLASH_KEYS ? end : j + n + AGK_FLASH_KEYS;
            fetch(k, k_rows, j + n, last);
            fetch(v, v_rows, j + n, last);
        }
        if (has(node, NARROW))
            ((agk_flash_block_narrow_fn *)node->aux.fn[BLOCK])(&w->tile, j, n, keys, values);
        else
            ((agk_flash_block_fn *)node->aux.fn[BLOCK])(&w->tile, j, n, keys, values);
        fresh = false;
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
    const int64_t tiles = w->node->aux.i[TILES], kv = k->ne[1], group = q->ne[2] / k->ne[2];
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
    const int64_t tiles = node->aux.i[TILES], group = q->ne[2] / k->ne[2];
    const bool grouped = has(node, GROUPED) != 0;
    const int64_t heads = grouped ? k->ne[2] : q->ne[2]; /* of units */
    const int64_t parts = parts_of(node), part = unit / tiles / heads % parts;
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
    if (w->mask != NULL) {
        const int64_t m2 = head % m->ne[2], m3 = batch % m->ne[3];
        const agk_flash_mask *found = &w->looks[(m3 * m->ne[2] + m2) * tiles + i];
        t->mask = w->mask + first * t->mask_step + m2 * m->nb[2] + m3 * m->nb[3];
        t->mask_kind = found->kind;
        begin = found->begin;
        end = found->end;
    }
    if (has(node, SPLIT)) {
        const int64_t from = part * node->aux.i[PART], to = from + node->aux.i[PART];
        begin = begin > from ? begin : from;
        end = end < to ? end : to;
    }
    const int64_t kv_head = head / group, kv_batch = batch / (q->ne[3] / k->ne[3]);
    if (terms_of(node) != 0 && run_terms(w->task, node, t, kv_batch * k->ne[2] + kv_head, begin, end)) return;
    ((agk_flash_begin_fn *)node->aux.fn[BEGIN])(t);
    if (has(node, AHEAD)) fetch_next_head(w, i, head, batch);
    run_blocks(w, kv_head, kv_batch, begin, end);
    if (has(node, SPLIT))
        save_partial(w->task, node, t, batch, part, head * q->ne[1], begin < end);
    else
        ((agk_flash_end_fn *)node->aux.fn[END])(t);
}

static bool taken_as_it_is(const agk_node *node, const agk_view *view)
{
    return has(node, NARROW) && (view->type == AGK_F32 || view->type == AGK_F16 || view->type == AGK_BF16);
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const bool grouped = has(node, GROUPED) != 0;
    const float softcap = agk_param_f32(node, 2);
    walk w = {.task = task, .node = node, .have = -1, .out = agk_data(task, &node->dst)};
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
    w.k_as_is = taken_as_it_is(node, k);
    w.v_as_is = taken_as_it_is(node, v);
    t->k_type = w.k_as_is ? k->type : AGK_F32;
    t->v_type = w.v_as_is ? v->type : AGK_F32;
    t->k_step = w.k_as_is ? k->nb[1] : 4 * k->ne[0];
    t->v_step = w.v_as_is ? v->nb[1] : 4 * v->ne[0];
    for (int64_t r = 0; r < AGK_FLASH_TILE; ++r) {
        t->slope[r] = 1.0f;
        t->sink[r] = -INFINITY;
    }
    w.keys = t->state + agk_flash_state_floats(t->d, t->dv);
    w.values = w.keys + (has(node, CACHED) ? k->ne[1] : AGK_FLASH_KEYS) * t->d;
    const int64_t last = agk_chunk_end(chunk, node->aux.i[PER_CHUNK], node->aux.i[UNITS]);
    for (int64_t unit = chunk * node->aux.i[PER_CHUNK]; unit < last; ++unit) run_unit(&w, unit);
    return AGK_OK;
}

/* --- the lowering --- */

enum {
    TERMS_ROWS = 24,        /* fewer rows of a tile leave half of its products unused */
    TERMS_MOST = 256 << 20, /* bytes of packed keys and values */
};

static agk_status check_mask(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *m = &node->src[3], *sinks = &node->src[4];
    if (!agk_has(node, 3)) {
        if (agk_param_f32(node, 1) > 0.0f) {
            return agk_refuse(lowering, AGK_INVALID, "max_bias is %g without a mask", (double)agk_param_f32(node, 1));
        }
    } else {
        if (m->type != AGK_F16) {
            return agk_refuse(lowering, AGK_UNSUPPORTED, "the mask is %s, not f16", agk_type_name(m->type));
        }
        const bool fits = m->ne[0] == k->ne[1] && (m->ne[1] == 1 || m->ne[1] >= q->ne[1]) && m->ne[2] > 0 &&
                          m->ne[3] > 0 && q->ne[2] % m->ne[2] == 0 && q->ne[3] % m->ne[3] == 0;
        if (!fits || m->nb[0] != 2) {
            return agk_refuse(
                lowering, AGK_INVALID,
                "a mask of %lld x %lld x %lld x %lld for %lld keys, %lld queries, %lld heads, %lld batches",
                (long long)m->ne[0], (long long)m->ne[1], (long long)m->ne[2], (long long)m->ne[3], (long long)k->ne[1],
                (long long)q->ne[1], (long long)q->ne[2], (long long)q->ne[3]);
        }
    }
    if (agk_has(node, 4) && (sinks->type != AGK_F32 || sinks->ne[0] != q->ne[2] || agk_nelements(sinks) != q->ne[2])) {
        return agk_refuse(lowering, AGK_INVALID, "%lld sinks of %s for %lld heads", (long long)agk_nelements(sinks),
                          agk_type_name(sinks->type), (long long)q->ne[2]);
    }
    return AGK_OK;
}

static agk_status check_rows(agk_lowering *lowering, const char *name, const agk_view *kv)
{
    const agk_view *q = &lowering->node->src[0];
    const agk_type_traits *traits = agk_traits(kv->type);
    if (traits->to_float == NULL || kv->nb[0] != (int64_t)traits->type_size) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "%s is %s with elements %lld bytes apart", name,
                          agk_type_name(kv->type), (long long)kv->nb[0]);
    }
    if (kv->ne[2] < 1 || kv->ne[3] < 1 || q->ne[2] % kv->ne[2] != 0 || q->ne[3] % kv->ne[3] != 0) {
        return agk_refuse(lowering, AGK_INVALID, "%s has %lld heads and %lld batches, q %lld and %lld", name,
                          (long long)kv->ne[2], (long long)kv->ne[3], (long long)q->ne[2], (long long)q->ne[3]);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *q = &node->src[0], *k = &node->src[1], *v = &node->src[2];
    if (q->type != AGK_F32 || dst->type != AGK_F32 || q->nb[0] != 4 || dst->nb[0] != 4) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "q is %s, the result %s; both must be rows of f32",
                          agk_type_name(q->type), agk_type_name(dst->type));
    }
    if (dst->ne[0] != v->ne[0] || dst->ne[1] != q->ne[2] || dst->ne[2] != q->ne[1] || dst->ne[3] != q->ne[3]) {
        return agk_refuse(lowering, AGK_INVALID, "a result of %lld x %lld x %lld x %lld for %lld queries of %lld heads",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)dst->ne[2], (long long)dst->ne[3],
                          (long long)q->ne[1], (long long)q->ne[2]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (k->ne[0] != q->ne[0] || k->ne[1] != v->ne[1]) {
        return agk_refuse(lowering, AGK_INVALID, "q is %lld wide, k %lld; k has %lld rows, v %lld", (long long)q->ne[0],
                          (long long)k->ne[0], (long long)k->ne[1], (long long)v->ne[1]);
    }
    agk_status status = check_rows(lowering, "k", k);
    if (status == AGK_OK) status = check_rows(lowering, "v", v);
    if (status == AGK_OK && (k->ne[2] != v->ne[2] || k->ne[3] != v->ne[3])) {
        return agk_refuse(lowering, AGK_INVALID, "k has %lld heads and %lld batches, v %lld and %lld",
                          (long long)k->ne[2], (long long)k->ne[3], (long long)v->ne[2], (long long)v->ne[3]);
    }
    return status == AGK_OK ? check_mask(lowering) : status;
}

/* How many bf16 terms: as many as the type has bits for, so that a result is as accurate as in lanes; quantized types round
 * to bf16 within 2^-9. 0: lanes. */
static int choose_terms(const agk_lowering *lowering, int64_t rows)
{
    const agk_view *k = &lowering->node->src[1], *v = &lowering->node->src[2];
    const uint32_t needs = AGK_AMX_BF16 | AGK_AVX512 | AGK_AVX512_BF16;
    if ((lowering->cpu & needs) != needs || rows < TERMS_ROWS || k->ne[1] < AGK_FLASH_PANEL) return 0;
    const int of_k = k->type == AGK_F32 ? 3 : k->type == AGK_F16 ? 2 : 1;
    const int of_v = v->type == AGK_F32 ? 3 : v->type == AGK_F16 ? 2 : 1;
    const int terms = of_k > of_v ? of_k : of_v;
    const int64_t heads = k->ne[2] * k->ne[3], width = agk_flash_up(k->ne[0]) + agk_flash_up(v->ne[0]);
    return agk_flash_up(k->ne[1]) * width * heads * terms * 2 <= TERMS_MOST ? terms : 0;
}

/* Few rows see many keys: cut between keys as well, by the shape alone. More units than heads, and memory is read nearly in
 * order: 8 heads of 64 f16 at 300 keys of 8 sequences, two threads: 20.7 -> 13.9 us a head. */
static int64_t keys_of_part(int64_t n_keys)
{
    const int64_t fewest = (n_keys + MOST_PARTS - 1) / MOST_PARTS;
    return fewest <= PART_KEYS ? PART_KEYS : (fewest + AGK_FLASH_KEYS - 1) / AGK_FLASH_KEYS * AGK_FLASH_KEYS;
}

static void lower_split(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *q = &node->src[0];
    const int64_t n_keys = node->src[1].ne[1], rows = q->ne[1] * q->ne[2] * q->ne[3];
    node->aux.i[FLAGS] |= SPLIT;
    node->aux.i[PART] = keys_of_part(n_keys);
    node->aux.i[PARTS] = (n_keys + node->aux.i[PART] - 1) / node->aux.i[PART];
    node->aux.i[UNITS] *= node->aux.i[PARTS];
    node->aux.i[PARTIAL] = (int64_t)((lowering->work_size + 63) / 64 * 64);
    const int64_t floats = rows * node->aux.i[PARTS] * (2 + node->dst.ne[0]);
    lowering->work_size = (size_t)node->aux.i[PARTIAL] + (size_t)floats * sizeof(float);
}

/* Matrix tiles: a step that packs, its room, the kernels. */
static void lower_terms(agk_lowering *lowering, int terms)
{
    agk_node *node = lowering->node;
    const agk_view *k = &node->src[1], *v = &node->src[2];
    node->aux.i[FLAGS] += terms * TERMS;
    node->aux.fn[PACK] = (agk_any_fn *)AGK_PICK(flash_terms_pack, lowering->cpu);
    node->aux.fn[TILE] = (agk_any_fn *)AGK_PICK(flash_terms_tile, lowering->cpu);
    node->aux.i[PACKED] = (int64_t)((lowering->work_size + 63) / 64 * 64);
    const int64_t heads = k->ne[2] * k->ne[3], all = panels_of(node) * heads;
    const size_t head_bytes =
        agk_flash_terms_k_bytes(terms, k->ne[1], k->ne[0]) + agk_flash_terms_k_bytes(terms, k->ne[1], v->ne[0]);
    lowering->work_size = (size_t)node->aux.i[PACKED] + (size_t)heads * head_bytes + (size_t)all;
    const size_t tile = agk_flash_terms_state_bytes(terms, k->ne[0], v->ne[0]);
    if (lowering->scratch_size < tile) lowering->scratch_size = tile;
    agk_add_step(lowering, run_pack, (all + PACK_PANELS - 1) / PACK_PANELS);
}

agk_status agk_lower_flash_attn_ext(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(&node->dst) == 0) return status;

    const int64_t group = q->ne[2] / k->ne[2];
    const bool grouped = q->ne[1] == 1 && group > 1 && group <= AGK_FLASH_TILE && (!agk_has(node, 3) || m->ne[2] == 1);
    const int64_t rows = grouped ? group : q->ne[1];
    const bool narrow = rows < AGK_FLASH_NARROW, vectors = (lowering->cpu & AGK_AVX2) != 0;
    const int64_t width = q->ne[0] + v->ne[0], n_keys = k->ne[1];
    const int64_t tiles = grouped ? 1 : (rows + AGK_FLASH_TILE - 1) / AGK_FLASH_TILE;
    const int64_t units = tiles * (grouped ? k->ne[2] : q->ne[2]) * q->ne[3];
    const bool small = n_keys * width * 4 <= 256 * 1024 && !narrow, cached = small && rows > AGK_FLASH_TILE;
    node->aux.fn[READ_K] = (agk_any_fn *)agk_reader(k->type, lowering->cpu);
    node->aux.fn[READ_V] = (agk_any_fn *)agk_reader(v->type, lowering->cpu);
    node->aux.fn[BEGIN] = narrow ? (agk_any_fn *)AGK_PICK(flash_begin_narrow, lowering->cpu)
                                 : (agk_any_fn *)AGK_PICK(flash_begin, lowering->cpu);
    node->aux.fn[BLOCK] = narrow ? (agk_any_fn *)AGK_PICK(flash_block_narrow, lowering->cpu)
                                 : (agk_any_fn *)AGK_PICK(flash_block, lowering->cpu);
    node->aux.fn[END] = narrow ? (agk_any_fn *)AGK_PICK(flash_end_narrow, lowering->cpu)
                               : (agk_any_fn *)AGK_PICK(flash_end, lowering->cpu);
    node->aux.i[FLAGS] = (cached ? CACHED : 0) | (small && !grouped ? AHEAD : 0) | (grouped ? GROUPED : 0) |
                         (narrow && vectors ? NARROW : 0); /* the scalar kernel is one for both, and takes f32 */
    node->aux.i[TILES] = tiles;
    node->aux.i[UNITS] = units;
    /* A tile makes some 60 products per ns, half of that if it fills one vector only; a narrow one 10 per row. */
    const double each = narrow ? 0.1 + 0.05 * (double)rows : rows > AGK_FLASH_TILE / 2 ? 0.4 : 0.25;
    const int terms = choose_terms(lowering, rows);
    static const double terms_each[4] = {1.0, 0.1, 0.2, 0.4}; /* of lanes */
    double unit_ns = (double)(n_keys * width) * each * terms_each[terms] * (vectors ? 1.0 : 40.0) + 100.0;
    const bool split = has(node, NARROW) && terms == 0 && n_keys > PART_KEYS;
    if (agk_has(node, 3)) {
        lowering->work_size = (size_t)(mask_planes(m) * tiles) * sizeof(agk_flash_mask);
        agk_add_step(lowering, run_look, mask_planes(m));
    }
    if (split) {
        lower_split(lowering);
        unit_ns /= (double)node->aux.i[PARTS];
    }
    const int64_t n_units = node->aux.i[UNITS];
    int64_t per_chunk = agk_units_per_chunk(n_units, unit_ns);
    if (per_chunk > tiles && per_chunk < n_units)
        per_chunk -= per_chunk % tiles; /* a head's keys are converted once */
    else if (per_chunk < tiles && tiles <= 2 * per_chunk)
        per_chunk = tiles;
    node->aux.i[PER_CHUNK] = per_chunk;
    lowering->scratch_size = sizeof(float) * (size_t)(agk_flash_state_floats(q->ne[0], v->ne[0]) +
                                                      (cached ? n_keys : AGK_FLASH_KEYS) * width);
    if (terms != 0) lower_terms(lowering, terms);
    agk_add_step(lowering, run, agk_chunks(n_units, node->aux.i[PER_CHUNK]));
    if (split) agk_add_step(lowering, run_combine, agk_chunks(agk_nrows(q), rows_combined(node)));
    return AGK_OK;
}
