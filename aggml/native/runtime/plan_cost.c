/* The estimated time of a node, in ns on one thread, from the bytes that it reads and writes and its arithmetic
 * (ops.def).
 *
 * An event loop runs cheap work by itself (stream_inline.c), so nothing large may look cheap: a sum of 32 M floats
 * has a result of one element. The estimate is rough on purpose: it only has to tell some hundred ns from some us.
 * Not here: how a node is cut into chunks (the groups in lower/). */
#include "runtime.h"

enum {
    NODE_NS = 30,            /* of every node */
    CUSTOM_NS = 1000000,     /* of a user's function */
    BYTES_PER_NS = 64,       /* read from a cache; from memory it is a fifth of that */
    UNPACK_PS = 500,         /* an element of a quantized type, in ops that are not products */
    QUANTIZED_SUM_PS = 2000, /* an element of a block type that is read, added to and written */
    /* each further matrix of a product: conv_1d_dw multiplies a matrix of three numbers for each channel */
    MATRIX_PS = 45000,
    DOT_PS = 700,         /* an element of a product, however short */
    APART_PS = 2000,      /* an element that changes its type and is not contiguous with the next one */
    PLACE_PS = 12000,     /* a window that im2col writes: one row of the result */
    WINDOW_ROW_PS = 1000, /* a row of such a window in one channel */
};

static double bytes_of(const agk_view *v)
{
    const agk_type_traits *traits = agk_traits(v->type);
    if (traits->name == NULL) return 0;
    return (double)agk_nelements(v) * (double)traits->type_size / (double)traits->blck_size;
}

static double elements(const agk_node *node, int i)
{
    return agk_has(node, i) ? (double)agk_nelements(&node->src[i]) : 0;
}

static double largest(const agk_node *node)
{
    double most = (double)agk_nelements(&node->dst);
    for (int i = 0; i < node->n_src; ++i) {
        if (elements(node, i) > most) most = elements(node, i);
    }
    return most;
}

static bool in_place(const agk_node *node)
{
    return node->dst.addr == node->src[0].addr && node->dst.arena_mask == node->src[0].arena_mask;
}

static double kernel_weights(const agk_node *node)
{
    const agk_view *kernel = &node->src[0];
    const double all = (double)agk_nelements(kernel);
    const double channels = node->op == AGK_OP_conv_3d ? (double)node->params[11] : (double)kernel->ne[3];
    return channels > 0 ? all / channels : all;
}

static double spread_weights(const agk_node *node)
{
    const agk_view *kernel = &node->src[0];
    return (double)(kernel->ne[0] * kernel->ne[1]) * (node->op == AGK_OP_conv_transpose_1d ? 1 : (double)kernel->ne[2]);
}

static double pool_cost(const agk_node *node)
{
    const double n = node->op == AGK_OP_pool_2d_back ? elements(node, 0) : (double)agk_nelements(&node->dst);
    const double k1 = agk_ops[node->op].units == AGK_UNITS_POOL_2D ? (double)node->params[2] : 1;
    return n * (double)node->params[1] * k1;
}

static double arithmetic(const agk_node *node)
{
    const double made = (double)agk_nelements(&node->dst);
    const agk_view *src = node->src;
    switch ((agk_units)agk_ops[node->op].units) {
    case AGK_UNITS_NOTHING:
    case AGK_UNITS_UNKNOWN: return 0;
    case AGK_UNITS_EACH:
    case AGK_UNITS_PLACES: return largest(node);
    case AGK_UNITS_MOVE:
    case AGK_UNITS_GIVE: return elements(node, 0);
    case AGK_UNITS_TAKE: return made;
    case AGK_UNITS_CHOICES: return elements(node, 1);
    case AGK_UNITS_PATCH: return elements(node, 1) + (in_place(node) ? 0 : made);
    case AGK_UNITS_DOTS:
    case AGK_UNITS_EXPERTS: return made * (double)src[0].ne[0];
    case AGK_UNITS_OUTER: return made * (double)src[0].ne[1];
    case AGK_UNITS_KEYS: return elements(node, 0) * (double)src[1].ne[1];
    case AGK_UNITS_WINDOW: return made * kernel_weights(node);
    case AGK_UNITS_SPREAD: return elements(node, 1) * spread_weights(node);
    case AGK_UNITS_TAPS: return made * (double)src[1].ne[0];
    case AGK_UNITS_POOL_1D:
    case AGK_UNITS_POOL_2D: return pool_cost(node);
    case AGK_UNITS_STATE:
        return (elements(node, 1) > elements(node, 2) ? elements(node, 1) : elements(node, 2)) * (double)src[0].ne[0];
    case AGK_UNITS_HEADS: return made * (double)(src[0].ne[0] * src[0].ne[1]);
    case AGK_UNITS_ROUNDS: return made * (double)node->params[1];
    case AGK_UNITS_TRIANGLE: return made * (double)src[0].ne[0] / 2;
    }
    return made;
}

/* Bytes of source i that are read. */
static double read_of(const agk_node *node, int i)
{
    const double all = bytes_of(&node->src[i]);
    const agk_units u = agk_ops[node->op].units;
    if (u == AGK_UNITS_MOVE) return i == 0 ? all : 0;
    if (u == AGK_UNITS_GIVE) return i < 2 ? all : 0; /* rows and their places */
    if (i != 0) return all;
    if (u == AGK_UNITS_PATCH) return in_place(node) ? elements(node, 1) * 4 : all;
    const double n = (double)agk_nelements(&node->src[0]);
    if (u == AGK_UNITS_TAKE) return n > 0 ? all / n * (double)agk_nelements(&node->dst) : 0;
    if (u == AGK_UNITS_CHOICES) return n > 0 ? all / n * elements(node, 1) : 0;
    if (u == AGK_UNITS_EXPERTS) {
        const double matrices = (double)node->src[0].ne[2], named = elements(node, 2);
        return named < matrices ? all / matrices * named : all;
    }
    return all;
}

static double written_bytes(const agk_node *node)
{
    const agk_units u = agk_ops[node->op].units;
    const double all = bytes_of(&node->dst), n = (double)agk_nelements(&node->dst);
    if (n <= 0) return 0;
    if (u == AGK_UNITS_GIVE) return all / n * elements(node, 0);
    if (u == AGK_UNITS_PATCH && in_place(node)) return all / n * elements(node, 1);
    return all;
}

static bool is_product(const agk_node *node)
{
    const agk_units u = agk_ops[node->op].units;
    return u == AGK_UNITS_DOTS || u == AGK_UNITS_EXPERTS || u == AGK_UNITS_OUTER || u == AGK_UNITS_KEYS;
}

/* Packing and unpacking blocks takes longer than moving them. */
static double blocks(const agk_node *node)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    const bool to = agk_traits(dst->type)->blck_size > 1,
               from = agk_has(node, 0) && agk_traits(src->type)->blck_size > 1;
    const double n = agk_ops[node->op].units == AGK_UNITS_GIVE ? elements(node, 0) : (double)agk_nelements(dst);
    double ps = 0;
    if (to && node->op != AGK_OP_quantize && (!from || src->type != dst->type))
        ps += agk_traits(dst->type)->write_ns * 1e3 * n;
    if (to && from && node->op == AGK_OP_add) ps += (agk_traits(dst->type)->write_ns * 1e3 + QUANTIZED_SUM_PS) * n;
    if (from && !to && !is_product(node)) ps += UNPACK_PS * n;
    return ps;
}

/* Elements of a row lie one behind the other. */
static bool dense(const agk_view *v)
{
    const agk_type_traits *traits = agk_traits(v->type);
    return traits->blck_size > 1 || v->nb[0] == (int64_t)traits->type_size;
}

/* The fixed costs of many small pieces, in addition to their elements. */
static double pieces(const agk_node *node)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    const double made = (double)agk_nelements(dst);
    switch (agk_ops[node->op].units) {
    case AGK_UNITS_DOTS: return (double)(dst->ne[2] * dst->ne[3]) * MATRIX_PS + made * DOT_PS;
    case AGK_UNITS_MOVE:
        return src->type != dst->type && !(dense(src) && dense(dst)) ? elements(node, 0) * APART_PS : 0;
    case AGK_UNITS_PLACES:
        if (made <= 0 || src->ne[0] <= 0) return 0;
        return made / (double)dst->ne[0] * PLACE_PS + made / (double)src->ne[0] * WINDOW_ROW_PS;
    default: return 0;
    }
}

uint64_t ag_node_cost(const agk_node *node)
{
    const agk_units u = agk_ops[node->op].units;
    if (u == AGK_UNITS_NOTHING) return 0;
    if (u == AGK_UNITS_UNKNOWN) return CUSTOM_NS;
    double bytes = written_bytes(node), ps = arithmetic(node) * agk_ops[node->op].ps + blocks(node) + pieces(node);
    for (int i = 0; i < node->n_src; ++i) bytes += read_of(node, i);
    for (int i = 0; i < node->n_stages; ++i) ps += (double)agk_nelements(&node->dst) * agk_ops[node->stage[i].op].ps;
    const double ns = NODE_NS + bytes / BYTES_PER_NS + ps / 1e3;
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}
