/* The gradient of attention: flash_attn_back.
 *
 * A unit is a head of k and v in one batch, together with all heads of q that share it, so no two units add to the
 * same element. Sums are in double. The code is plain C only, because training is rare. */
#include <math.h>

#include "lower/units.h"

enum { Q, K, V, D };

static const float *at(const agk_view *v, const char *base, int64_t i1, int64_t i2, int64_t i3)
{
    return (const float *)(const void *)(base + i1 * v->nb[1] + i2 * v->nb[2] + i3 * v->nb[3]);
}

static float item(const agk_view *v, const float *row, int64_t i)
{
    return agk_load(AGK_F32, (const char *)row + i * v->nb[0]);
}

static double dot(const agk_view *a, const float *x, const agk_view *b, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += (double)item(a, x, i) * (double)item(b, y, i);
    return sum;
}

/* Turns logits into probabilities. */
static void soft_max(double *p, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i) most = p[i] > most ? p[i] : most;
    for (int64_t i = 0; i < n; ++i) sum += p[i] = exp(p[i] - most);
    for (int64_t i = 0; i < n; ++i) p[i] /= sum;
}

typedef struct head { /* operands of one unit, and its gradients without gaps */
    const agk_view *q, *k, *v, *d;
    const char *qd, *kd, *vd, *dd;
    double *gk, *gv; /* [n, keys] and [keys, n] */
    double *p, *gp;  /* of one query: the probabilities and their gradients */
    int64_t i2, i3;  /* indices in k and v */
} head;

static void one_query(const head *h, const float *q, const float *d, float *gq, int64_t seen)
{
    const int64_t n = h->q->ne[0], keys = h->k->ne[1];
    const double scale = 1.0 / sqrt((double)n);
    for (int64_t j = 0; j < seen; ++j) h->p[j] = scale * dot(h->q, q, h->k, at(h->k, h->kd, j, h->i2, h->i3), n);
    soft_max(h->p, seen);
    for (int64_t j = 0; j < seen; ++j) h->gp[j] = 0;
    for (int64_t c = 0; c < n; ++c) {
        const float *v = at(h->v, h->vd, c, h->i2, h->i3);
        const double dc = (double)item(h->d, d, c);
        for (int64_t j = 0; j < seen; ++j) {
            h->gp[j] += dc * (double)item(h->v, v, j);
            h->gv[c * keys + j] += dc * h->p[j];
        }
    }
    double mean = 0;
    for (int64_t j = 0; j < seen; ++j) mean += h->p[j] * h->gp[j];
    for (int64_t c = 0; c < n; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < seen; ++j) {
            const double g = scale * h->p[j] * (h->gp[j] - mean);
            sum += g * (double)item(h->k, at(h->k, h->kd, j, h->i2, h->i3), c);
            h->gk[j * n + c] += g * (double)item(h->q, q, c);
        }
        gq[c] = (float)sum;
    }
}

static int64_t padded_extent(const agk_view *v)
{
    return (agk_nelements(v) + 3) / 4 * 4;
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[Q], *k = &node->src[K], *v = &node->src[V], *d = &node->src[D];
    const int64_t n = q->ne[0], queries = q->ne[1], heads = q->ne[2], keys = k->ne[1], k_heads = k->ne[2];
    const int64_t group = heads / k_heads, part = n * keys;
    float *gq = agk_data(task, &node->dst), *gk = gq + padded_extent(q), *gv = gk + padded_extent(k);
    double *scratch = task->scratch;
    head h = {.q = q, .k = k, .v = v, .d = d, .gk = scratch, .gv = scratch + part, .p = scratch + 2 * part};
    h.gp = h.p + keys;
    h.qd = agk_data(task, q);
    h.kd = agk_data(task, k);
    h.vd = agk_data(task, v);
    h.dd = agk_data(task, d);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t u = units.first; u < units.last; ++u) {
        h.i2 = u % k_heads;
        h.i3 = u / k_heads;
        for (int64_t i = 0; i < 2 * part; ++i) scratch[i] = 0;
        for (int64_t i2 = h.i2 * group; i2 < (h.i2 + 1) * group; ++i2) {
            for (int64_t i1 = 0; i1 < queries; ++i1) {
                const int64_t seen = node->params[0] ? keys - queries + i1 + 1 : keys;
                float *to = gq + n * (i1 + queries * (i2 + heads * h.i3));
                one_query(&h, at(q, h.qd, i1, i2, h.i3), at(d, h.dd, i1, i2, h.i3), to, seen);
            }
        }
        for (int64_t i = 0; i < part; ++i) {
            gk[u * part + i] = (float)h.gk[i];
            gv[u * part + i] = (float)h.gv[i];
        }
    }
    if (units.first == 0) { /* the gaps between the parts are cleared, so that the result holds no old bytes */
        for (int64_t i = agk_nelements(q); i < padded_extent(q); ++i) gq[i] = 0;
        for (int64_t i = agk_nelements(k); i < padded_extent(k); ++i) gk[i] = 0;
        for (int64_t i = agk_nelements(v); i < padded_extent(v); ++i) gv[i] = 0;
    }
    return AGK_OK;
}

agk_status agk_lower_flash_attn_back(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *q = &node->src[Q], *k = &node->src[K], *v = &node->src[V], *d = &node->src[D];
    const int64_t n = q->ne[0], keys = k->ne[1], k_heads = k->ne[2], batch = q->ne[3];
    agk_status status = agk_expect(lowering, "q", q, AGK_F32, -1, -1, -1, -1);
    if (status == AGK_OK) status = agk_expect(lowering, "k", k, AGK_F32, n, -1, -1, batch);
    if (status == AGK_OK) status = agk_expect(lowering, "v", v, AGK_F32, keys, n, k_heads, batch);
    if (status == AGK_OK) status = agk_expect(lowering, "d", d, AGK_F32, n, q->ne[1], q->ne[2], batch);
    if (status == AGK_OK) {
        const int64_t size = padded_extent(q) + padded_extent(k) + padded_extent(v);
        status = agk_expect(lowering, "the result", &node->dst, AGK_F32, size, 1, 1, 1);
    }
    if (status != AGK_OK) return status;
    if ((k_heads == 0 ? q->ne[2] : q->ne[2] % k_heads) != 0 || (node->params[0] && keys < q->ne[1])) {
        return agk_refuse(lowering, AGK_INVALID,
                          "q has %lld heads, k %lld; there are %lld queries and %lld keys: they do not fit together",
                          (long long)q->ne[2], (long long)k_heads, (long long)q->ne[1], (long long)keys);
    }
    const int64_t part = n * keys;
    lowering->scratch_size = (size_t)(2 * part + 2 * keys) * sizeof(double);
    const double ns = 20.0 + 10.0 * (double)part * (double)q->ne[1] * (double)(k_heads ? q->ne[2] / k_heads : 0);
    agk_add_units(lowering, run, k_heads * batch, ns);
    return AGK_OK;
}
