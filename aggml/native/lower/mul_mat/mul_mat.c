/* mul_mat: checks a node; then the scheme that the table of preferences names adds its steps.
 *
 * Not here: the table (choice.c), the schemes (README.md). The rules are those of ggml_mul_mat. */
#include "lower/chain.h"
#include "lower/refuse.h"

#include "scheme.h"
#include "ends.h"

static agk_status check_types(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const agk_type_traits *ta = agk_traits(a->type);
    if (ta->to_float == NULL || ta->vec_dot_type == AGK_NONE) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, which has no kernel of a product",
                          agk_type_name(a->type));
    }
    if (a->type == AGK_F32 && b->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is f32, so b must be f32, not %s", agk_type_name(b->type));
    }
    if (b->type != AGK_F32 && b->type != (int32_t)ta->vec_dot_type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, so b must be f32 or %s, not %s", ta->name,
                          agk_type_name((int)ta->vec_dot_type), agk_type_name(b->type));
    }
    if (agk_traits(b->type)->to_float == NULL) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "b is %s, which has no kernel of a product",
                          agk_type_name(b->type));
    }
    if (dst->type != AGK_F32 && !agk_mm_narrows(node)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the result must be f32, not %s", agk_type_name(dst->type));
    }
    return AGK_OK;
}

static agk_status check_shapes(agk_lowering *lowering)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1], *dst = &lowering->node->dst;
    const agk_type_traits *ta = agk_traits(a->type);
    if (a->ne[0] != b->ne[0] || a->ne[0] % ta->blck_size != 0) {
        return agk_refuse(lowering, AGK_INVALID, "rows of a (%s) have %lld elements, those of b %lld", ta->name,
                          (long long)a->ne[0], (long long)b->ne[0]);
    }
    for (int i = 2; i < 4; ++i) {
        if (a->ne[i] == 0 ? b->ne[i] != 0 : b->ne[i] % a->ne[i] != 0) {
            return agk_refuse(lowering, AGK_INVALID, "a has %lld matrices in dimension %d, b %lld, no multiple of it",
                              (long long)a->ne[i], i, (long long)b->ne[i]);
        }
    }
    if (dst->ne[0] != a->ne[1] || dst->ne[1] != b->ne[1] || dst->ne[2] != b->ne[2] || dst->ne[3] != b->ne[3]) {
        return agk_refuse(lowering, AGK_INVALID, "the result is [%lld, %lld, %lld, %lld], not [%lld, %lld, %lld, %lld]",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)dst->ne[2], (long long)dst->ne[3],
                          (long long)a->ne[1], (long long)b->ne[1], (long long)b->ne[2], (long long)b->ne[3]);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    if (node->n_src < 2) return agk_refuse(lowering, AGK_INVALID, "needs two operands, not %d", node->n_src);
    agk_status status = check_types(lowering);
    if (status == AGK_OK) status = check_shapes(lowering);
    if (status != AGK_OK) return status;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const agk_type_traits *ta = agk_traits(a->type), *tb = agk_traits(b->type);
    const int64_t item = agk_mm_narrows(node) ? 2 : 4;
    if (a->nb[0] != (int64_t)ta->type_size || b->nb[0] != (int64_t)tb->type_size || dst->nb[0] != item) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "rows must be contiguous, elements are %lld, %lld and %lld bytes apart", (long long)a->nb[0],
                          (long long)b->nb[0], (long long)dst->nb[0]);
    }
    return AGK_OK;
}

/* A result of bf16 is stored by an epilogue of panels, if one can. */
static bool lower_narrow(agk_lowering *lowering)
{
    const agk_mm_problem problem = agk_mm_problem_of(lowering);
    const agk_mm_preference *row = agk_mm_prefer(&problem, NULL);
    const agk_mm_scheme *scheme = row->scheme;
    if (scheme != &agk_mm_tiles && scheme != &agk_mm_bytes && scheme != &agk_mm_pairs && scheme != &agk_mm_floats) {
        return false;
    }
    scheme->lower(lowering);
    const agk_mm_panels_plan p = agk_mm_panels_plan_of(lowering->node);
    lowering->fused = p.ends && (scheme == &agk_mm_tiles ? p.terms == 1 : p.end != NULL);
    return lowering->fused;
}

agk_status agk_lower_mul_mat(agk_lowering *lowering)
{
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(&lowering->node->dst) == 0) return status;
    if (agk_mm_narrows(lowering->node)) {
        return lower_narrow(lowering)
                   ? AGK_OK
                   : agk_refuse(
                         lowering, AGK_UNSUPPORTED,
                         "a result of bf16 needs a kernel that stores it, which this product does not have here");
    }
    const agk_mm_problem problem = agk_mm_problem_of(lowering);
    const agk_mm_preference *row = agk_mm_prefer(&problem, NULL);
    /* there was no memory for a packed copy */
    while (!row->scheme->lower(lowering)) row = agk_mm_prefer(&problem, row);
    return agk_chain_prepare(lowering, false);
}
