/* What a node costs, in ns on one thread: the bytes that it reads and writes, and its arithmetic (ops.def).
 *
 * An event loop carries out by itself what is cheap (stream_inline.c), so what matters is that nothing large looks cheap: a
 * sum of 32 M floats has one element of result. Rough on purpose: it only has to tell some hundred ns from some us. Not here:
 * how a node is cut into chunks (the families in lower/). */
#include "runtime.h"

/* What an operation's arithmetic is counted in. All sources are read in full unless it says otherwise. */
typedef enum units {
    AG_NONE,     /* nothing happens at run time */
    AG_UNKNOWN,  /* a user's function: nobody knows */
    AG_EACH,     /* elements of the largest operand, the result being one */
    AG_MOVE,     /* elements of source 0; of the others nothing is read (cpy: the target) */
    AG_TAKE,     /* elements of the result; as many of source 0 are read */
    AG_GIVE,     /* elements of source 0; as many of the result are written */
    AG_PATCH,    /* elements of what is put in; with those around it unless they are in place */
    AG_DOTS,     /* products of a matrix product: k for each element of the result */
    AG_EXPERTS,  /* the same; matrices that no id names are not read */
    AG_OUTER,    /* the same, k being ne[1] */
    AG_KEYS,     /* elements of the result times keys */
    AG_WINDOW,   /* elements of the result times weights of one kernel */
    AG_SPREAD,   /* elements of source 1 times weights for one channel of it */
    AG_TAPS,     /* elements of the result times the length of source 1 */
    AG_POOL_1D,  /* elements of result or gradient times those of a window, which params tell */
    AG_POOL_2D,  /* likewise */
    AG_STATE,    /* elements of a value times the rows of its state */
    AG_HEADS,    /* elements of the result times heads times their width */
    AG_ROUNDS,   /* elements of the result times rounds */
    AG_TRIANGLE, /* elements of the result times half the matrix's side */
} units;

static const struct {
    units units;
    uint32_t ps;
} costs[AGK_OP_COUNT] = {
#define AGK_OP(name, family, units, ps) {AG_##units, ps},
#include "table/ops.def"
#undef AGK_OP
};

enum {
    NODE_NS = 30,            /* of anything */
    CUSTOM_NS = 1000000,     /* of a user's function */
    BYTES_PER_NS = 64,       /* from a cache; from memory it is a fifth of that */
    UNPACK_PS = 500,         /* an element of a quantized type, where it is no product */
    QUANTIZED_SUM_PS = 2000, /* a block type is read, added to and written */
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

static double pooled(const agk_node *node)
{
    const double n = node->op == AGK_OP_pool_2d_back ? elements(node, 0) : (double)agk_nelements(&node->dst);
    const double k1 = costs[node->op].units == AG_POOL_2D ? (double)node->params[2] : 1;
    return n * (double)node->params[1] * k1;
}

static double arithmetic(const agk_node *node)
{
    const double made = (double)agk_nelements(&node->dst);
    const agk_view *src = node->src;
    switch (costs[node->op].units) {
    case AG_NONE:
    case AG_UNKNOWN: return 0;
    case AG_EACH: return largest(node);
    case AG_MOVE:
    case AG_GIVE: return elements(node, 0);
    case AG_TAKE: return made;
    case AG_PATCH: return elements(node, 1) + (in_place(node) ? 0 : made);
    case AG_DOTS:
    case AG_EXPERTS: return made * (double)src[0].ne[0];
    case AG_OUTER: return made * (double)src[0].ne[1];
    case AG_KEYS: return made * (double)src[node->op == AGK_OP_flash_attn_back ? 2 : 1].ne[1];
    case AG_WINDOW: return made * kernel_weights(node);
    case AG_SPREAD: return elements(node, 1) * spread_weights(node);
    case AG_TAPS: return made * (double)src[1].ne[0];
    case AG_POOL_1D:
    case AG_POOL_2D: return pooled(node);
    case AG_STATE:
        return (elements(node, 1) > elements(node, 2) ? elements(node, 1) : elements(node, 2)) * (double)src[0].ne[0];
    case AG_HEADS: return made * (double)(src[0].ne[0] * src[0].ne[1]);
    case AG_ROUNDS: return made * (double)node->params[1];
    case AG_TRIANGLE: return made * (double)src[0].ne[0] / 2;
    }
    return made;
}

/* Bytes of source i that are read. */
static double read_of(const agk_node *node, int i)
{
    const double all = bytes_of(&node->src[i]);
    const units u = costs[node->op].units;
    if (u == AG_MOVE) return i == 0 ? all : 0;
    if (u == AG_GIVE) return i < 2 ? all : 0; /* rows and their places */
    if (i != 0) return all;
    if (u == AG_PATCH) return in_place(node) ? elements(node, 1) * 4 : all;
    const double n = (double)agk_nelements(&node->src[0]);
    if (u == AG_TAKE) return n > 0 ? all / n * (double)agk_nelements(&node->dst) : 0;
    if (u == AG_EXPERTS) {
        const double matrices = (double)node->src[0].ne[2], named = elements(node, 2);
        return named < matrices ? all / matrices * named : all;
    }
    return all;
}

static double written(const agk_node *node)
{
    const units u = costs[node->op].units;
    const double all = bytes_of(&node->dst), n = (double)agk_nelements(&node->dst);
    if (n <= 0) return 0;
    if (u == AG_GIVE) return all / n * elements(node, 0);
    if (u == AG_PATCH && in_place(node)) return all / n * elements(node, 1);
    return all;
}

static bool is_product(const agk_node *node)
{
    const units u = costs[node->op].units;
    return u == AG_DOTS || u == AG_EXPERTS || u == AG_OUTER || u == AG_KEYS;
}

/* Packing and unpacking blocks takes longer than moving them. */
static double blocks(const agk_node *node)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    const bool to = agk_traits(dst->type)->blck_size > 1,
               from = agk_has(node, 0) && agk_traits(src->type)->blck_size > 1;
    const double n = costs[node->op].units == AG_GIVE ? elements(node, 0) : (double)agk_nelements(dst);
    double ps = 0;
    if (to && node->op != AGK_OP_quantize && (!from || src->type != dst->type)) ps += agk_write_ns(dst->type) * 1e3 * n;
    if (to && from && node->op == AGK_OP_add) ps += (agk_write_ns(dst->type) * 1e3 + QUANTIZED_SUM_PS) * n;
    if (from && !to && !is_product(node)) ps += UNPACK_PS * n;
    return ps;
}

uint64_t ag_node_cost(const agk_node *node)
{
    const units u = costs[node->op].units;
    if (u == AG_NONE) return 0;
    if (u == AG_UNKNOWN) return CUSTOM_NS;
    double bytes = written(node), ps = arithmetic(node) * costs[node->op].ps + blocks(node);
    for (int i = 0; i < node->n_src; ++i) bytes += read_of(node, i);
    for (int i = 0; i < node->n_stages; ++i) ps += (double)agk_nelements(&node->dst) * costs[node->stage[i].op].ps;
    const double ns = NODE_NS + bytes / BYTES_PER_NS + ps / 1e3;
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}
