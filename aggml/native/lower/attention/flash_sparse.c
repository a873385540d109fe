/* flash_attn_ext of a sparse mask: the node promises (ops.flash_attn_ext_set_n_kv_max) that a query sees few of the
 * keys. For each query the keys whose mask is not -inf are gathered, 64 at a time, and given to the kernel for few
 * rows; the others are never read.
 *
 * The mask alone decides: a query that sees more keys than promised gets all of them. Not here: the lowering of other
 * masks (flash_attn_ext.c), the kernels (kernels/vec/flash_narrow.h). */
#include <math.h>

#include "lower/alibi.h"
#include "flash_plan.h"

/* A query sees at most a third of the keys if queries are few, or an eighth if there are many, which tiles of rows
 * multiply faster. Ms on one thread of an EPYC without matrix tiles, all keys and gathered, f16, 8 heads of 128 on 2:
 *   1 query of 16,384 keys that sees 2,048: 2.1 and 0.6; that sees 8,000: 1.9 and 2.3
 *   8 queries of 8,192 that see 1,024: 20 and 1.5; 64 of 4,096 that see 256: 21 and 2.6 */
enum { PART_OF_NARROW = 3, PART_OF_WIDE = 8 };

static const uint16_t minus_infinity = 0xfc00;

/* A unit is a query of the heads of Q that share a head of K and a plane of the mask. */
typedef struct plan {
    int64_t per_chunk;
    int32_t heads, rows; /* units of a query; heads of Q of a unit */
    agk_to_float_fn *read_k, *read_v;
    agk_flash_begin_fn *begin;
    agk_flash_block_fn *block;
    agk_flash_end_fn *end;
} plan;

AGK_PLAN_IN_AUX(plan, plan_of)

/* A block of gathered rows, as they lie or widened to floats. */
typedef struct gathered {
    agk_to_float_fn *read; /* NULL: rows are copied */
    const char *rows;      /* of the head */
    int64_t step, width, bytes;
    char *to;
} gathered;

static bool lies(int type, const plan *p)
{
    const bool plain = AGK_IS_PLAIN(flash_narrow_block, (agk_any_fn *)p->block); /* it reads f32 */
    return plain ? type == AGK_F32 : agk_flash_as_it_lies(type);
}

static int64_t row_bytes(const agk_view *view, const plan *p)
{
    return lies(view->type, p) ? (int64_t)agk_row_size(view->type, view->ne[0]) : 4 * view->ne[0];
}

/* The state of the kernel, which may be the one in plain C. */
static int64_t state_floats(int64_t rows, int64_t d, int64_t dv)
{
    const int64_t narrow = agk_flash_narrow_floats(rows, d, dv), plain = agk_flash_state_floats(d, dv);
    return narrow > plain ? narrow : plain;
}

static gathered open_rows(const agk_view *view, const plan *p, agk_to_float_fn *read, char *to)
{
    return (gathered){.read = lies(view->type, p) ? NULL : read,
                      .step = view->nb[1],
                      .width = view->ne[0],
                      .bytes = row_bytes(view, p),
                      .to = to};
}

static void gather(const gathered *g, const int32_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        const char *from = g->rows + keys[i] * g->step;
        if (g->read == NULL)
            memcpy(g->to + i * g->bytes, from, (size_t)g->bytes);
        else
            g->read(from, (float *)(void *)(g->to + i * g->bytes), g->width);
    }
}

/* The next keys from *j on that the row of the mask shows, at most a block, and their mask. */
static int64_t next_keys(const uint16_t *mask, int64_t *j, int64_t n_keys, int32_t *keys, uint16_t *seen)
{
    const uint64_t hidden = minus_infinity * 0x0001000100010001u;
    int64_t n = 0;
    while (*j < n_keys && n < AGK_FLASH_KEYS) {
        uint64_t four;
        if (*j + 4 <= n_keys) {
            memcpy(&four, mask + *j, sizeof four);
            if (four == hidden) {
                *j += 4;
                continue;
            }
        }
        keys[n] = (int32_t)*j;
        seen[n] = mask[*j];
        n += mask[(*j)++] != minus_infinity;
    }
    return n;
}

agk_status agk_flash_sparse_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3], *dst = &node->dst;
    const plan p = plan_of(node);
    const float softcap = agk_param_f32(node, 2), max_bias = agk_param_f32(node, 1);
    const char *sinks = agk_has(node, 4) ? agk_data(task, &node->src[4]) : NULL;
    const int64_t group = q->ne[2] / k->ne[2];
    agk_flash_tile t = {.d = q->ne[0], .dv = v->ne[0], .n_rows = p.rows, .state = task->scratch};
    char *room = (char *)(t.state + state_floats(p.rows, t.d, t.dv));
    gathered keys = open_rows(k, &p, p.read_k, room);
    gathered values = open_rows(v, &p, p.read_v, room + AGK_FLASH_KEYS * ((keys.bytes + 63) / 64 * 64));
    int32_t at[AGK_FLASH_KEYS];
    _Alignas(64) uint16_t seen[2 * AGK_FLASH_KEYS]; /* kernels read whole vectors */
    t.q_step = q->nb[2];
    t.out_step = dst->nb[1];
    t.scale = agk_param_f32(node, 0);
    t.softcap = softcap > 0.0f ? softcap : 0.0f;
    t.k_type = keys.read == NULL ? k->type : AGK_F32;
    t.v_type = values.read == NULL ? v->type : AGK_F32;
    t.k_step = keys.bytes;
    t.v_step = values.bytes;
    t.mask = (const char *)seen;
    t.mask_form = AGK_FLASH_SAME_MASK;
    const int64_t last = agk_chunk_end(chunk, p.per_chunk, p.heads * q->ne[1] * q->ne[3]);
    for (int64_t unit = chunk * p.per_chunk; unit < last; ++unit) {
        const int64_t head = unit % p.heads * p.rows, i = unit / p.heads % q->ne[1], batch = unit / p.heads / q->ne[1];
        const int64_t kv = head / group, kv_batch = batch / (q->ne[3] / k->ne[3]);
        for (int64_t r = 0; r < p.rows; ++r) {
            t.slope[r] = max_bias > 0.0f ? agk_alibi_slope(head + r, q->ne[2], max_bias) : 1.0f;
            t.sink[r] = -INFINITY;
            if (sinks != NULL) memcpy(&t.sink[r], sinks + (head + r) * node->src[4].nb[0], sizeof *t.sink);
        }
        t.q = (char *)agk_data(task, q) + i * q->nb[1] + head * q->nb[2] + batch * q->nb[3];
        t.out = (char *)agk_data(task, dst) + head * dst->nb[1] + i * dst->nb[2] + batch * dst->nb[3];
        keys.rows = (char *)agk_data(task, k) + kv * k->nb[2] + kv_batch * k->nb[3];
        values.rows = (char *)agk_data(task, v) + kv * v->nb[2] + kv_batch * v->nb[3];
        const char *mask = (char *)agk_data(task, m) + (m->ne[1] > 1 ? i * m->nb[1] : 0) + head % m->ne[2] * m->nb[2] +
                           batch % m->ne[3] * m->nb[3];
        p.begin(&t);
        for (int64_t j = 0, n; (n = next_keys((const uint16_t *)(const void *)mask, &j, k->ne[1], at, seen)) > 0;) {
            gather(&keys, at, n);
            gather(&values, at, n);
            p.block(&t, 0, n, keys.to, values.to);
        }
        p.end(&t);
        agk_breathe(task);
    }
    return AGK_OK;
}

bool agk_flash_sparse_lower(agk_lowering *lowering, int64_t heads_of_unit)
{
    agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const uint32_t cpu = lowering->cpu;
    const int64_t seen = node->params[AGK_FLASH_N_KV_MAX],
                  part = q->ne[1] < AGK_FLASH_NARROW ? PART_OF_NARROW : PART_OF_WIDE;
    if (seen < 1 || !agk_has(node, 3) || seen > k->ne[1] / part || node->params[AGK_FLASH_SHARED] > 0) return false;
    plan p = {.rows = (int32_t)(m->ne[2] == 1 ? heads_of_unit : 1),
              .read_k = agk_reader(k->type, cpu),
              .read_v = agk_reader(v->type, cpu),
              .begin = AGK_PICK(flash_narrow_begin, cpu),
              .block = AGK_PICK(flash_narrow_block, cpu),
              .end = AGK_PICK(flash_narrow_end, cpu)};
    p.heads = (int32_t)(q->ne[2] / p.rows);
    const double width = (double)(q->ne[0] + v->ne[0]);
    const double ns = (double)seen * width * (0.06 + 0.025 * (double)p.rows) + 0.15 * (double)k->ne[1] + 100.0;
    const int64_t units = p.heads * q->ne[1] * q->ne[3];
    p.per_chunk = agk_units_per_chunk(units, ns);
    memcpy(&node->aux, &p, sizeof p);
    const size_t rows =
        AGK_FLASH_KEYS * (size_t)((row_bytes(k, &p) + 63) / 64 * 64 + (row_bytes(v, &p) + 63) / 64 * 64);
    lowering->scratch_size = (size_t)state_floats(p.rows, q->ne[0], v->ne[0]) * sizeof(float) + rows;
    agk_add_step(lowering, agk_flash_sparse_step, agk_chunks(units, p.per_chunk));
    return true;
}
