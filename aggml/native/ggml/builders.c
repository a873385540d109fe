/* Nodes of ggml: one builder function for each op, found by the op's number.
 *
 * The package's own builders have checked operands and parameters by the same rules before a node gets here. Not
 * here: which tensors there are and where they lie (build.c). */
#include <math.h>
#include <string.h>

#include "state.h"

/* The abbreviations that builders.def uses. */
#define F(function) s->f->function
#define HAS(function) (s->f->function != NULL)
#define MAY(function) \
    (HAS(function) ? s->f->function : (ag_ggml_fail("this library has no %s", #function), s->f->function))
#define c s->c
#define a s->src[0]
#define b s->src[1]
#define d s->src[2]
#define e s->src[3]
#define g s->src[4]
#define h s->src[5]
#define i(k) s->node->params[k]
#define x(k) as_float(s->node->params[k])
#define w(k) as_size(&s->node->params[k])
#define ne(k) s->node->ne[k]
#define nb(k) (size_t)s->node->nb[k]
#define TYPE s->type
#define OFFSET (size_t)s->node->offset
#define IN_PLACE (s->node->view >= 0)

static float as_float(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static size_t as_size(const int32_t *words)
{
    size_t value;
    memcpy(&value, words, sizeof value);
    return value;
}

enum { OF_SUMS = 0, OF_B = 3, F32 = 10 }; /* slots of precisions of products; GGML_PREC_F32 */

/* A library without ggml_prec_set_acc knows only GGML_PREC_F32; a product in f32 is what lesser precisions allow. What
 * b is converted to is a permission, too: a library without ggml_prec_set_src converts b as it always did. */
static ag_ggml_tensor *exactly(const ag_ggml_site *s, ag_ggml_tensor *node, bool by_id)
{
    const int sums = i(OF_SUMS), of_b = i(OF_B);
    if (of_b != 0 && HAS(ggml_prec_set_src)) (void)F(ggml_prec_set_src)(node, of_b, 1);
    if (sums == 0) return node;
    if (HAS(ggml_prec_set_acc)) {
        (void)F(ggml_prec_set_acc)(node, sums);
        return node;
    }
    if (by_id) return node; /* these libraries sum experts' products in one way only */
    MAY(ggml_mul_mat_set_prec)(node, F32);
    return node;
}

static ag_ggml_tensor *hinted(const ag_ggml_site *s, ag_ggml_tensor *node, int hint)
{
    if (hint != 0) MAY(ggml_mul_mat_set_hint)(node, hint);
    return node;
}

static ag_ggml_tensor *with_sinks(const ag_ggml_site *s, ag_ggml_tensor *node, ag_ggml_tensor *sinks)
{
    if (sinks != NULL) MAY(ggml_soft_max_add_sinks)(node, sinks);
    return node;
}

static ag_ggml_tensor *attention(const ag_ggml_site *s)
{
    ag_ggml_tensor *node = F(ggml_flash_attn_ext)(c, a, b, d, e, x(0), x(1), x(2));
    if (g != NULL) MAY(ggml_flash_attn_ext_add_sinks)(node, g);
    if (i(4) != 0 && HAS(ggml_flash_attn_ext_set_n_kv_max)) F(ggml_flash_attn_ext_set_n_kv_max)(node, i(4));
    if (i(3) != F32) return node; /* the CPU of 0.25.3 aborts for sums of f16 and bf16, which f32 may replace */
    MAY(ggml_flash_attn_ext_set_prec)(node, i(3));
    return node;
}

/* ggml_clamp wrote over its operand until there was ggml_clamp_inplace. */
static ag_ggml_tensor *clamp(const ag_ggml_site *s)
{
    if (!HAS(ggml_clamp_inplace) && !IN_PLACE) ag_ggml_fail("this library clamps in place only");
    return F(ggml_clamp)(c, a, x(0), x(1));
}

static ag_ggml_tensor *rope(const ag_ggml_site *s, bool back)
{
    ag_ggml_tensor *node;
    int mode = i(2), sections[4] = {i(11), i(12), i(13), i(14)};
    if ((mode & 8) != 0) {
        node = (back ? MAY(ggml_rope_multi_back) : MAY(ggml_rope_multi))(c, a, b, d, i(1), sections, mode, i(4), x(5),
                                                                         x(6), x(7), x(8), x(9), x(10));
    } else {
        node = (back ? MAY(ggml_rope_ext_back) : F(ggml_rope_ext))(c, a, b, d, i(1), mode, i(4), x(5), x(6), x(7), x(8),
                                                                   x(9), x(10));
    }
    return i(15) == 0 ? node : MAY(ggml_rope_set_offset)(node, i(15));
}

static ag_ggml_tensor *image(const ag_ggml_site *s)
{
    int64_t extents[4] = {ne(0), ne(1), ne(2), ne(3)};
    return F(ggml_im2col_back)(c, a, b, extents, i(0), i(1), i(2), i(3), i(4), i(5), i(6) != 0);
}

static ag_ggml_tensor *pad(const ag_ggml_site *s)
{
    if (i(8) != 0) return MAY(ggml_pad_ext_circular)(c, a, i(0), i(1), i(2), i(3), i(4), i(5), i(6), i(7));
    if ((i(0) | i(2) | i(4) | i(6)) == 0) return F(ggml_pad)(c, a, i(1), i(3), i(5), i(7));
    return MAY(ggml_pad_ext)(c, a, i(0), i(1), i(2), i(3), i(4), i(5), i(6), i(7));
}

/* A tensor that only carries extents. */
static ag_ggml_tensor *shape(const ag_ggml_site *s)
{
    return F(ggml_new_tensor_4d)(c, TYPE, ne(0), ne(1), ne(2), ne(3));
}

/* The inverse of log(1 + exp(t)), which params of xielu have gone through. */
static float before_softplus(float y)
{
    return y > 20.0f ? y : (float)log(expm1((double)y));
}

#define AG_GGML_BUILD(op, function, expression) \
    static ag_ggml_tensor *build_##op(const ag_ggml_site *s) \
    { \
        if (!HAS(function)) ag_ggml_fail("this library has no %s", #function); \
        return expression; \
    }
#include "builders.def"

typedef ag_ggml_tensor *builder(const ag_ggml_site *s);

static builder *const builders[AGK_OP_COUNT] = {
#define AG_GGML_BUILD(op, function, expression) [AGK_OP_##op] = build_##op,
#include "builders.def"
};

ag_ggml_tensor *ag_ggml_build(const ag_ggml_site *s)
{
    builder *build = s->node->op < AGK_OP_COUNT ? builders[s->node->op] : NULL;
    if (build == NULL) ag_ggml_fail("there is no builder of ggml for '%s'", agk_op_name(s->node->op));
    const char *why = ag_ggml_known_fault(s);
    if (why != NULL) ag_ggml_fail("%s", why);
    return build(s);
}
