/* Recurrences over the tokens of a sequence, one state for each head: ssm_conv, ssm_scan (Mamba 1 and 2), rwkv_wkv6 and
 * rwkv_wkv7, gated_linear_attn, gated_delta_net.
 *
 * A unit is a head of a sequence: one thread computes it, token after token. Results hold all outputs first, then
 * the states. Here: the lowering and the steps. Not here: shape rules, which are checked before a node gets here. */
#include <math.h>
#include <stdio.h>

#include "table/kernel_types.h"
#include "recurrent.h"

enum { TOKEN, DECAYS }; /* slots of node->aux: kernels */

static float *result_at(const agk_task *task, const agk_node *node, int64_t i)
{
    return (float *)agk_data(task, &node->dst) + i;
}

/* src sx [d_conv - 1 + t, d, s], c [d_conv, d] -> [d, t, s]. A unit is a token. */
static agk_status run_conv(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *sx = &node->src[0], *c = &node->src[1], *dst = &node->dst;
    const char *x = agk_data(task, sx), *weights = agk_data(task, c);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t t = unit % dst->ne[1], s = unit / dst->ne[1];
        float *y = result_at(task, node, unit * dst->ne[0]);
        for (int64_t i = 0; i < dst->ne[0]; ++i) {
            const float *line = agk_f32_row(sx, x, i, s, 0) + t, *w = agk_f32_row(c, weights, i, 0, 0);
            float sum = 0.0f;
            for (int64_t k = 0; k < c->ne[0]; ++k) sum += line[k] * w[k];
            y[i] = sum;
        }
    }
    return AGK_OK;
}

/* The states after the outputs: snapshot `back` is the state `back` tokens before the end. */
typedef struct snapshots {
    float *first;
    int64_t stride, count, size; /* floats from one snapshot to the next, number of snapshots, floats of a state */
} snapshots;

/* Where a token writes the state: directly to the place where it is kept. To copy it would move as much memory again
 * as a token reads: a head of Mamba 2 has 32 KB. */
static float *state_at(const snapshots *s, int64_t back, float *scratch)
{
    return back < s->count ? s->first + back * s->stride : scratch;
}

/* Snapshots from before the first token are the initial state. */
static void keep_initial(const snapshots *s, int64_t tokens, const float *state)
{
    for (int64_t back = tokens; back < s->count; ++back) {
        memcpy(s->first + back * s->stride, state, (size_t)s->size * sizeof *state);
    }
}

/* A state with rows of n floats, `stride` bytes apart: used where it lies, or copied to scratch. */
static const float *dense_state(const char *data, int64_t rows, int64_t n, int64_t stride, float *scratch)
{
    if (stride == n * (int64_t)sizeof(float)) return (const float *)(const void *)data;
    for (int64_t i = 0; i < rows; ++i) memcpy(scratch + i * n, data + i * stride, (size_t)n * sizeof(float));
    return scratch;
}

/* src s [n, p, h, slots], x [p, h, t, seqs], dt [h, t, seqs], A [n or 1, h], B and C [n, groups, t, seqs], ids
 * [seqs] */
enum { S, X, DT, A, B, C, IDS };

static int32_t slot_of(const agk_node *node, const char *ids, int64_t seq)
{
    int32_t slot;
    memcpy(&slot, ids + seq * node->src[IDS].nb[0], sizeof slot);
    return slot;
}

static agk_status check_slots(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const char *ids = agk_data(task, &node->src[IDS]);
    for (int64_t seq = 0; seq < node->src[IDS].ne[0]; ++seq) {
        const int32_t slot = slot_of(node, ids, seq);
        if (slot >= 0 && slot < node->src[S].ne[3]) continue;
        snprintf(task->message, AGK_MESSAGE, "[ssm_scan] state %d of sequence %lld is outside 0..%lld", slot,
                 (long long)seq, (long long)node->src[S].ne[3] - 1);
        return AGK_OUT_OF_BOUNDS;
    }
    return AGK_OK;
}

static float softplus(float x)
{
    return x <= 20.0f ? log1pf(expf(x)) : x;
}

/* Scratch: a state, then the decays of its columns. */
static agk_status run_scan(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *src = node->src, *s = &src[S], *x = &src[X];
    const int64_t n = s->ne[0], size = n * s->ne[1], heads = s->ne[2], tokens = x->ne[2], seqs = x->ne[3];
    const char *data[7];
    for (int i = 0; i < 7; ++i) data[i] = agk_data(task, &src[i]);
    float *scratch = task->scratch, *decay = scratch + size;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t h = unit % heads, seq = unit / heads, group = h / (heads / src[B].ne[1]);
        const char *initial = data[S] + slot_of(node, data[IDS], seq) * s->nb[3] + h * s->nb[2];
        const float *a = agk_f32_row(&src[A], data[A], h, 0, 0);
        const snapshots kept = {result_at(task, node, agk_nelements(x) + unit * size), seqs * heads * size,
                                node->params[0], size};
        const float *before = dense_state(initial, s->ne[1], n, s->nb[1], scratch);
        keep_initial(&kept, tokens, before);
        for (int64_t t = 0; t < tokens; ++t) {
            const float dt = softplus(agk_f32_row(&src[DT], data[DT], t, seq, 0)[h]);
            const agk_token token = {.n = n,
                                     .rows = s->ne[1],
                                     .before = before,
                                     .state = state_at(&kept, tokens - 1 - t, scratch),
                                     .y = result_at(task, node, ((seq * tokens + t) * heads + h) * s->ne[1]),
                                     .k = agk_f32_row(&src[B], data[B], group, t, seq),
                                     .v = agk_f32_row(x, data[X], h, t, seq),
                                     .r = agk_f32_row(&src[C], data[C], group, t, seq),
                                     .decay = decay,
                                     .scale = dt,
                                     .one_decay = src[A].ne[0] == 1};
            ((agk_recurrent_decays_fn *)node->aux.fn[DECAYS])(token.one_decay ? 1 : n, decay, a, dt);
            ((agk_recurrent_scan_fn *)node->aux.fn[TOKEN])(&token);
            before = token.state;
        }
    }
    return AGK_OK;
}

static agk_status check_and_scan(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_status status = check_slots(task, node, chunk);
    return status == AGK_OK ? run_scan(task, node, chunk) : status;
}

/* rwkv_wkv6: src k, v, r [d, h, t], tf [d, h], td [d, h, t], state; gated_linear_attn: k, v, q, g [d, h, t], state.
 * The state is [k][v]: y += r_k (tf_k k_k v + row_k), row_k = td_k row_k + k_k v; y += q_k scale row_k after
 * row_k = g_k row_k + k_k v. */
static agk_status run_outer(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *src = node->src, *k = &src[0];
    const bool gla = node->op == AGK_OP_gated_linear_attn;
    const int64_t d = k->ne[0], heads = k->ne[1], all = k->ne[2], size = d * d;
    const agk_view *state = &src[gla ? 4 : 5];
    const int64_t seqs = state->ne[1], tokens = seqs > 0 ? all / seqs : 0;
    const char *data[6];
    for (int i = 0; i < node->n_src; ++i) data[i] = agk_data(task, &src[i]);
    const float scale = gla ? agk_param_f32(node, 0) : 1.0f;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t h = unit % heads, seq = unit / heads;
        float *rows = result_at(task, node, all * heads * d + unit * size);
        const float *before = (const float *)(const void *)data[gla ? 4 : 5] + unit * size;
        if (tokens == 0) memcpy(rows, before, (size_t)size * sizeof *rows);
        for (int64_t t = seq * tokens; t < (seq + 1) * tokens; ++t) {
            const agk_token token = {.n = d,
                                     .rows = d,
                                     .before = before,
                                     .state = rows,
                                     .y = result_at(task, node, (t * heads + h) * d),
                                     .k = agk_f32_row(k, data[0], h, t, 0),
                                     .v = agk_f32_row(&src[1], data[1], h, t, 0),
                                     .r = agk_f32_row(&src[2], data[2], h, t, 0),
                                     .decay = gla ? agk_f32_row(&src[3], data[3], h, t, 0)
                                                  : agk_f32_row(&src[4], data[4], h, t, 0),
                                     .first = gla ? NULL : agk_f32_row(&src[3], data[3], h, 0, 0),
                                     .scale = scale};
            ((agk_recurrent_outer_fn *)node->aux.fn[TOKEN])(gla, &token);
            before = rows;
        }
    }
    return AGK_OK;
}

/* src r, w, k, v, a, b [d, h, t], state. The state is [v][k]: row_v = w row_v + v_v k + (a . row_v) b, y_v = r .
 * row_v. */
static agk_status run_wkv7(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *src = node->src;
    const int64_t d = src[0].ne[0], heads = src[0].ne[1], all = src[0].ne[2], size = d * d;
    const int64_t seqs = src[6].ne[1], tokens = seqs > 0 ? all / seqs : 0;
    const char *data[7];
    for (int i = 0; i < 7; ++i) data[i] = agk_data(task, &src[i]);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t h = unit % heads, seq = unit / heads;
        float *rows = result_at(task, node, all * heads * d + unit * size);
        const float *before = (const float *)(const void *)data[6] + unit * size;
        if (tokens == 0) memcpy(rows, before, (size_t)size * sizeof *rows);
        for (int64_t t = seq * tokens; t < (seq + 1) * tokens; ++t) {
            const float *in[6];
            for (int i = 0; i < 6; ++i) in[i] = agk_f32_row(&src[i], data[i], h, t, 0);
            const agk_token token = {.n = d,
                                     .rows = d,
                                     .before = before,
                                     .state = rows,
                                     .y = result_at(task, node, (t * heads + h) * d),
                                     .r = in[0],
                                     .decay = in[1],
                                     .k = in[2],
                                     .v = in[3],
                                     .a = in[4],
                                     .b = in[5]};
            ((agk_recurrent_wkv7_fn *)node->aux.fn[TOKEN])(&token);
            before = rows;
        }
    }
    return AGK_OK;
}

/* src q, k [d, hk, t, s], v [d, h, t, s], g [1 or d, h, t, s], beta [1, h, t, s], state [d, d, h, s]. Scratch: a state
 * [v][k], then the decays. */
static agk_status run_delta(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *src = node->src, *v = &src[2], *g = &src[3];
    const int64_t d = v->ne[0], heads = v->ne[1], tokens = v->ne[2], seqs = v->ne[3], size = d * d;
    const char *data[6];
    for (int i = 0; i < 6; ++i) data[i] = agk_data(task, &src[i]);
    float *scratch = task->scratch, *decay = scratch + size;
    const float scale = 1.0f / sqrtf((float)d);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t h = unit % heads, s = unit / heads;
        const snapshots kept = {result_at(task, node, agk_nelements(v) + unit * size), seqs * heads * size,
                                node->params[0], size};
        const float *before = (const float *)(const void *)data[5] + unit * size;
        keep_initial(&kept, tokens, before);
        for (int64_t t = 0; t < tokens; ++t) {
            const float *gate = agk_f32_row(g, data[3], h, t, s);
            const agk_token token = {.n = d,
                                     .rows = d,
                                     .before = before,
                                     .state = state_at(&kept, tokens - 1 - t, scratch),
                                     .y = result_at(task, node, ((s * tokens + t) * heads + h) * d),
                                     .k = agk_f32_row(&src[1], data[1], h % src[1].ne[1], t, s),
                                     .v = agk_f32_row(v, data[2], h, t, s),
                                     .r = agk_f32_row(&src[0], data[0], h % src[0].ne[1], t, s),
                                     .decay = decay,
                                     .scale = scale,
                                     .beta = *agk_f32_row(&src[4], data[4], h, t, s),
                                     .one_decay = g->ne[0] == 1};
            ((agk_recurrent_decays_fn *)node->aux.fn[DECAYS])(g->ne[0], decay, gate, 1.0f);
            ((agk_recurrent_delta_fn *)node->aux.fn[TOKEN])(&token);
            before = token.state;
        }
    }
    return AGK_OK;
}

static agk_status unfit(agk_lowering *lowering)
{
    return agk_refuse(lowering, AGK_INVALID, "the operands' extents do not fit the %lld elements of the result",
                      (long long)agk_nelements(&lowering->node->dst));
}

static agk_status lower_conv(agk_lowering *lowering)
{
    const agk_view *sx = &lowering->node->src[0], *c = &lowering->node->src[1], *dst = &lowering->node->dst;
    if (dst->ne[0] != sx->ne[1] || dst->ne[0] != c->ne[1] || dst->ne[1] + c->ne[0] - 1 != sx->ne[0] ||
        dst->ne[2] != sx->ne[2] || dst->ne[3] != 1) {
        return unfit(lowering);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    agk_add_units(lowering, run_conv, agk_nrows(dst), (5.0 + (double)c->ne[0]) * (double)dst->ne[0]);
    return AGK_OK;
}

static agk_status lower_scan(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *src = node->src, *s = &src[S], *x = &src[X];
    const int64_t n = s->ne[0], size = n * s->ne[1], heads = s->ne[2], tokens = x->ne[2], seqs = x->ne[3];
    const int64_t groups = src[B].ne[1], n_snapshots = node->params[0];
    const bool fits = n_snapshots > 0 && x->ne[0] == s->ne[1] && x->ne[1] == heads && src[DT].ne[0] == heads &&
                      src[DT].ne[1] == tokens && src[DT].ne[2] == seqs && (src[A].ne[0] == 1 || src[A].ne[0] == n) &&
                      src[A].ne[1] == heads && src[B].ne[0] == n && groups > 0 && heads % groups == 0 &&
                      src[B].ne[2] == tokens && src[B].ne[3] == seqs && agk_same_shape(&src[B], &src[C]) &&
                      src[IDS].ne[0] == seqs && src[IDS].type == AGK_I32 &&
                      agk_nelements(&node->dst) == agk_nelements(x) + n_snapshots * seqs * heads * size;
    if (!fits) return unfit(lowering);
    lowering->scratch_size = (size_t)(size + n) * sizeof(float);
    agk_add_units(lowering, run_scan, seqs * heads, (double)tokens * (2.0 * (double)size + 10.0 * (double)n) + 10.0);
    if (lowering->n_steps == 1 && lowering->step[0].n_chunks == 1) {
        lowering->step[0].run = check_and_scan;
    } else if (lowering->n_steps == 1) {
        lowering->step[1] = lowering->step[0];
        lowering->step[0].run = check_slots;
        lowering->step[0].n_chunks = 1;
        lowering->n_steps = 2;
    }
    return AGK_OK;
}

static agk_status lower_heads(agk_lowering *lowering, agk_step_fn *run, int n_like, const agk_view *state)
{
    const agk_node *node = lowering->node;
    const agk_view *first = &node->src[0];
    const int64_t d = first->ne[0], heads = first->ne[1], tokens = first->ne[2], seqs = state->ne[1];
    bool fits = agk_nelements(&node->dst) == tokens * heads * d + seqs * heads * d * d && first->ne[3] == 1 &&
                agk_contiguous(state) && agk_nelements(state) == seqs * heads * d * d &&
                (seqs > 0 ? tokens % seqs == 0 : tokens == 0);
    for (int i = 0; i < n_like; ++i) {
        const bool bonus = node->op == AGK_OP_rwkv_wkv6 && i == 3; /* tf is the same for all tokens */
        const agk_view *v = &node->src[i];
        fits = fits && (bonus ? v->ne[0] == d && v->ne[1] == heads : agk_same_shape(v, first));
    }
    if (!fits) return unfit(lowering);
    const double ns = seqs > 0 ? 10.0 + 2.0 * (double)(d * d) * (double)(tokens / seqs + 1) : 0.0;
    agk_add_units(lowering, run, seqs * heads * (d > 0), ns);
    return AGK_OK;
}

static agk_status lower_delta(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *src = node->src, *v = &src[2], *state = &src[5];
    const int64_t d = v->ne[0], heads = v->ne[1], tokens = v->ne[2], seqs = v->ne[3], n_snapshots = node->params[0];
    const int64_t size = d * d;
    bool fits = n_snapshots > 0 && agk_same_shape(&src[0], &src[1]) && src[0].ne[0] == d && src[0].ne[1] > 0 &&
                src[0].ne[2] == tokens && src[0].ne[3] == seqs && (src[3].ne[0] == 1 || src[3].ne[0] == d) &&
                src[4].ne[0] == 1 && agk_contiguous(state) && agk_nelements(state) == seqs * heads * size &&
                agk_nelements(&node->dst) == agk_nelements(v) + n_snapshots * seqs * heads * d * d;
    for (int i = 3; i < 5; ++i) {
        fits = fits && src[i].ne[1] == heads && src[i].ne[2] == tokens && src[i].ne[3] == seqs;
    }
    if (!fits) return unfit(lowering);
    lowering->scratch_size = (size_t)(d * d + d) * sizeof(float);
    agk_add_units(lowering, run_delta, seqs * heads * (d > 0), 10.0 + 2.5 * (double)(d * d) * (double)(tokens + 1));
    return AGK_OK;
}

agk_status agk_lower_recurrent(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const uint32_t cpu = lowering->cpu;
    node->aux.fn[TOKEN] = node->op == AGK_OP_ssm_scan          ? (agk_any_fn *)AGK_PICK(recurrent_scan, cpu)
                          : node->op == AGK_OP_rwkv_wkv7       ? (agk_any_fn *)AGK_PICK(recurrent_wkv7, cpu)
                          : node->op == AGK_OP_gated_delta_net ? (agk_any_fn *)AGK_PICK(recurrent_delta, cpu)
                                                               : (agk_any_fn *)AGK_PICK(recurrent_outer, cpu);
    node->aux.fn[DECAYS] = (agk_any_fn *)AGK_PICK(recurrent_decays, cpu);
    const int floats = node->op == AGK_OP_ssm_scan ? IDS : node->n_src;
    for (int i = 0; i < floats; ++i) {
        const agk_status status = agk_expect_rows(lowering, i);
        if (status != AGK_OK) return status;
    }
    switch (node->op) {
    case AGK_OP_ssm_conv: return lower_conv(lowering);
    case AGK_OP_ssm_scan: return lower_scan(lowering);
    case AGK_OP_rwkv_wkv6: return lower_heads(lowering, run_outer, 5, &node->src[5]);
    case AGK_OP_rwkv_wkv7: return lower_heads(lowering, run_wkv7, 6, &node->src[6]);
    case AGK_OP_gated_linear_attn: return lower_heads(lowering, run_outer, 4, &node->src[4]);
    default: return lower_delta(lowering);
    }
}
