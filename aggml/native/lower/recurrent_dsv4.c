/* The ops of DeepSeek's V3.2 and V4: lightning_indexer (which keys a query should see), and hyper-connections, which
 * mix several residual streams: dsv4_hc_comb makes the matrix, dsv4_hc_pre reads the streams, dsv4_hc_post writes them.
 *
 * Here: the lowering and the steps. All operands are f32 except for the keys and the mask. */
#include <math.h>

#include "table/kernel_types.h"
#include "recurrent.h"
#include "unary.h"

enum { MAX_STREAMS = 16 };

/* src q [d, h, t, s], k [d, 1, n, s], weights [h, t, 1, s], mask f16 [n, t, 1, s'] -> [n, t, 1, s]. A unit is a key:
 * it is converted to f32 once, for all queries. */
static agk_status run_indexer(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *w = &node->src[2], *mask = &node->src[3], *dst = &node->dst;
    const char *queries = agk_data(task, q), *keys = agk_data(task, k), *weights = agk_data(task, w);
    const char *seen = agk_data(task, mask);
    char *y = agk_data(task, dst);
    float *key = task->scratch;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i = unit % k->ne[2], s = unit / k->ne[2];
        agk_traits(k->type)->to_float(keys + i * k->nb[2] + s * k->nb[3], key, k->ne[0]);
        for (int64_t t = 0; t < q->ne[2]; ++t) {
            const float *weight = agk_f32_row(w, weights, t, 0, s);
            float score = 0.0f;
            for (int64_t h = 0; h < q->ne[1]; ++h) {
                const float dot = agk_short_dot(q->ne[0], agk_f32_row(q, queries, h, t, s), key);
                score += (dot > 0.0f ? dot : 0.0f) * weight[h];
            }
            const char *m = seen + i * mask->nb[0] + t * mask->nb[1] + s % mask->ne[3] * mask->nb[3];
            agk_store(AGK_F32, y + i * dst->nb[0] + t * dst->nb[1] + s * dst->nb[3], score + agk_load(mask->type, m));
        }
    }
    return AGK_OK;
}

static void divide_lines(float *c, int64_t n, int64_t along, int64_t across, float eps)
{
    for (int64_t i = 0; i < n; ++i) {
        float sum = eps;
        for (int64_t j = 0; j < n; ++j) sum += c[i * across + j * along];
        for (int64_t j = 0; j < n; ++j) c[i * across + j * along] /= sum;
    }
}

/* src mixes [(2 + n) n, t], scale [3], base [(2 + n) n] -> [n, n, t]: a softmax of each row, then columns and rows
 * are normalised to a sum of 1 in turn (Sinkhorn), columns first and last. A unit is a token. */
static agk_status run_comb(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *mixes = &node->src[0], *dst = &node->dst;
    const char *data = agk_data(task, mixes), *base = agk_data(task, &node->src[2]);
    const float scale = agk_load(AGK_F32, (const char *)agk_data(task, &node->src[1]) + 2 * node->src[1].nb[0]);
    const int64_t n = dst->ne[0];
    const float eps = agk_param_f32(node, 0);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t t = units.first; t < units.last; ++t) {
        float *c = (float *)agk_data(task, dst) + t * n * n;
        for (int64_t i = 0; i < n; ++i) {
            float *row = c + i * n, most = -INFINITY, sum = 0.0f;
            for (int64_t j = 0; j < n; ++j) {
                const int64_t at = 2 * n + i * n + j;
                row[j] = agk_load(AGK_F32, data + at * mixes->nb[0] + t * mixes->nb[1]) * scale +
                         agk_load(AGK_F32, base + at * node->src[2].nb[0]);
                if (row[j] > most) most = row[j];
            }
            for (int64_t j = 0; j < n; ++j) sum += row[j] = expf(row[j] - most);
            for (int64_t j = 0; j < n; ++j) row[j] = row[j] / sum + eps;
        }
        divide_lines(c, n, n, 1, eps);
        for (int32_t i = 1; i < node->params[1]; ++i) {
            divide_lines(c, n, 1, n, eps);
            divide_lines(c, n, n, 1, eps);
        }
    }
    return AGK_OK;
}

/* src x [d, n, t], weights [n, t] -> [d, t], times scale. A unit is a token. */
static agk_status run_pre(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *x = &node->src[0], *w = &node->src[1];
    const char *streams = agk_data(task, x), *weights = agk_data(task, w);
    const int64_t d = x->ne[0];
    const float scale = agk_param_f32(node, 0);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t t = units.first; t < units.last; ++t) {
        float *y = (float *)agk_data(task, &node->dst) + t * d;
        const float *weight = agk_f32_row(w, weights, t, 0, 0);
        for (int64_t i = 0; i < d; ++i) y[i] = 0.0f;
        for (int64_t h = 0; h < x->ne[1]; ++h) {
            const float *stream = agk_f32_row(x, streams, h, t, 0);
            for (int64_t i = 0; i < d; ++i) y[i] += stream[i] * weight[h];
        }
        for (int64_t i = 0; i < d; ++i) y[i] *= scale;
    }
    return AGK_OK;
}

/* src x [d, n, t], gate [d, n, t] -> [d, t], the sum of x * sigmoid(gate), times scale. A unit is a token. */
static agk_status run_pre_gated(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *x = &node->src[0], *g = &node->src[1];
    const char *streams = agk_data(task, x), *gates = agk_data(task, g);
    const int64_t d = x->ne[0];
    const float scale = agk_param_f32(node, 0);
    agk_unary_f32_fn *sigmoid = (agk_unary_f32_fn *)node->aux.fn[0];
    const agk_range units = agk_units_of(node, chunk);
    float open[AGK_BLOCK];
    for (int64_t t = units.first; t < units.last; ++t) {
        for (int64_t first = 0; first < d; first += AGK_BLOCK) {
            const int64_t part = d - first < AGK_BLOCK ? d - first : AGK_BLOCK;
            float *y = (float *)agk_data(task, &node->dst) + t * d + first;
            for (int64_t i = 0; i < part; ++i) y[i] = 0.0f;
            for (int64_t h = 0; h < x->ne[1]; ++h) {
                const float *stream = agk_f32_row(x, streams, h, t, 0) + first;
                sigmoid(AGK_OP_sigmoid, part, open, agk_f32_row(g, gates, h, t, 0) + first);
                for (int64_t i = 0; i < part; ++i) y[i] += stream[i] * open[i];
            }
            for (int64_t i = 0; i < part; ++i) y[i] *= scale;
        }
    }
    return AGK_OK;
}

/* src x [d, t], residual [d, n, t], post [n, t], comb [n, n, t] or nothing -> [d, n, t]. A unit is a token. */
static agk_status run_post(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *x = &node->src[0], *residual = &node->src[1], *post = &node->src[2], *comb = &node->src[3];
    const char *in = agk_data(task, x), *streams = agk_data(task, residual), *shares = agk_data(task, post);
    const bool mixes = agk_has(node, 3);
    const char *matrix = mixes ? agk_data(task, comb) : NULL;
    const int64_t d = residual->ne[0], n = residual->ne[1];
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t t = units.first; t < units.last; ++t) {
        const float *new = agk_f32_row(x, in, t, 0, 0), *share = agk_f32_row(post, shares, t, 0, 0);
        for (int64_t h = 0; h < n; ++h) {
            float *y = (float *)agk_data(task, &node->dst) + (t * n + h) * d;
            for (int64_t i = 0; i < d; ++i) y[i] = share[h] * new[i];
            if (!mixes) {
                const float *stream = agk_f32_row(residual, streams, h, t, 0);
                for (int64_t i = 0; i < d; ++i) y[i] += stream[i];
                continue;
            }
            for (int64_t j = 0; j < n; ++j) {
                const float mix = agk_f32_row(comb, matrix, j, t, 0)[h];
                const float *stream = agk_f32_row(residual, streams, j, t, 0);
                for (int64_t i = 0; i < d; ++i) y[i] += mix * stream[i];
            }
        }
    }
    return AGK_OK;
}

static agk_status lower_indexer(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *w = &node->src[2], *mask = &node->src[3], *dst = &node->dst;
    const int64_t d = q->ne[0], heads = q->ne[1], tokens = q->ne[2], seqs = q->ne[3], keys = k->ne[2];
    agk_status status = agk_expect_rows(lowering, 0);
    if (status == AGK_OK) status = agk_expect_rows(lowering, 2);
    if (status == AGK_OK) status = agk_expect(lowering, "k", k, k->type, d, 1, -1, seqs);
    if (status == AGK_OK) status = agk_expect(lowering, "weights", w, AGK_F32, heads, tokens, 1, seqs);
    if (status == AGK_OK) status = agk_expect(lowering, "mask", mask, AGK_F16, keys, tokens, 1, -1);
    if (status == AGK_OK) status = agk_expect(lowering, "the result", dst, AGK_F32, keys, tokens, 1, seqs);
    if (status != AGK_OK) return status;
    if (agk_traits(k->type)->to_float == NULL || !agk_dense_row(k)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "the keys are %s with elements %lld bytes apart, which cannot be read as floats",
                          agk_type_name(k->type), (long long)k->nb[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (mask->ne[3] < 1 || seqs % mask->ne[3] != 0) {
        return agk_refuse(lowering, AGK_INVALID, "there are %lld masks, which is no divisor of %lld sequences",
                          (long long)mask->ne[3], (long long)seqs);
    }
    lowering->scratch_size = (size_t)d * sizeof(float);
    agk_add_units(lowering, run_indexer, keys * seqs, 20.0 + 0.5 * (double)(d * (heads * tokens + 2)));
    return AGK_OK;
}

static agk_status refuse_streams(agk_lowering *lowering, const agk_view *streams)
{
    return agk_refuse(lowering, AGK_INVALID, "the operands do not fit %lld streams of %lld elements for %lld tokens",
                      (long long)streams->ne[1], (long long)streams->ne[0], (long long)streams->ne[2]);
}

static agk_status lower_pre(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *x = &node->src[0], *w = &node->src[1], *dst = &node->dst;
    const int64_t d = x->ne[0], n = x->ne[1], tokens = x->ne[2];
    const bool gated = node->params[1] != 0;
    const bool fits = gated ? agk_same_shape(x, w) : w->ne[0] == n && w->ne[1] == tokens;
    if (!fits || dst->ne[0] != d || dst->ne[1] != tokens) return refuse_streams(lowering, x);
    if (gated) node->aux.fn[0] = agk_unary_kernel(AGK_OP_sigmoid, lowering->cpu);
    const double ns = 10.0 + (gated ? 1.0 : 0.5) * (double)(d * n);
    agk_add_units(lowering, gated ? run_pre_gated : run_pre, agk_nelements(dst) == 0 ? 0 : tokens, ns);
    return AGK_OK;
}

static agk_status lower_post(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *src = node->src, *dst = &node->dst, *streams = &src[1];
    const int64_t d = streams->ne[0], n = streams->ne[1], tokens = streams->ne[2];
    const bool mixes = agk_has(node, 3);
    bool fits = agk_same_shape(dst, streams) && src[0].ne[0] == d && src[0].ne[1] == tokens && src[2].ne[0] == n &&
                src[2].ne[1] == tokens;
    if (mixes) fits = fits && src[3].ne[0] == n && src[3].ne[1] == n && src[3].ne[2] == tokens;
    if (!fits) return refuse_streams(lowering, streams);
    const double ns = 10.0 + 0.5 * (double)(d * n) * (mixes ? (double)n : 1.0);
    agk_add_units(lowering, run_post, agk_nelements(dst) == 0 ? 0 : tokens, ns);
    return AGK_OK;
}

agk_status agk_lower_recurrent_dsv4(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *src = node->src, *dst = &node->dst;
    if (node->op == AGK_OP_lightning_indexer) return lower_indexer(lowering);
    for (int i = 0; i < node->n_src; ++i) {
        const agk_status status = agk_expect_rows(lowering, i);
        if (status != AGK_OK) return status;
    }
    if (node->op == AGK_OP_dsv4_hc_comb) {
        const int64_t n = dst->ne[0];
        if (n < 1 || n > MAX_STREAMS || dst->ne[1] != n || src[0].ne[0] != (2 + n) * n ||
            src[2].ne[0] != src[0].ne[0] || src[1].ne[0] != 3 || src[0].ne[1] != dst->ne[2] || node->params[1] < 1) {
            return agk_refuse(lowering, AGK_INVALID, "mixes has rows of %lld elements, which does not fit %lld streams",
                              (long long)src[0].ne[0], (long long)n);
        }
        agk_add_units(lowering, run_comb, dst->ne[2], (double)(node->params[1] * n * n * 4 + 20 * n * n));
        return AGK_OK;
    }
    return node->op == AGK_OP_dsv4_hc_pre ? lower_pre(lowering) : lower_post(lowering);
}
