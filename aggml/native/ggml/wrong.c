/* Nodes that a library accepts and gets wrong: it computes a wrong result, writes beyond the result, or ends in an
 * assertion. The causes are modes that it does not know, or types that it mistakes for others.
 *
 * Each case was seen with recorded calls, on 0.0.1 (August 2025) or, where it says so, on all. The release that fixed
 * a case is not looked up. A library is recognised by a function that came later: ggml_cumsum (November 2025),
 * ggml_gated_delta_net or ggml_dsv4_hc_comb (2026). Not here: functions that a library lacks (builders.c), nodes that
 * its devices say they do not run (plan.c). */
#include "state.h"

#define BILINEAR 1
#define ALIGN_CORNERS (1 << 8)
#define INTERLEAVED (1 << 5)

static bool is(const ag_ggml_site *s, int operand, int type)
{
    return s->operands[operand] != NULL && s->operands[operand]->type == type;
}

static bool is_solid(const ag_ggml_node *node)
{
    int64_t step = (int64_t)agk_traits(node->type)->type_size, blocks = agk_traits(node->type)->blck_size;
    for (int k = 0; k < 4; ++k) {
        if (node->ne[k] != 1 && node->nb[k] != step) return false;
        step *= k == 0 ? node->ne[0] / blocks : node->ne[k];
    }
    return true;
}

/* ggml's CPU backend treats elements of packed types as blocks, and so writes 32 or 256 times as much as the result
 * has. In 0.25.3 it still happens to copies that are neither contiguous nor of the same whole rows (issue 27053 of
 * llama.cpp). The memory behind the result is overwritten without any error. */
static const char *of_packed_copies(const ag_ggml_site *s)
{
    const ag_ggml_node *from = s->operands[0], *to = s->node;
    int64_t step = (int64_t)agk_traits(to->type)->type_size;
    if (from->type != to->type || agk_traits(to->type)->blck_size == 1) return NULL;
    bool rows = memcmp(from->ne, to->ne, sizeof to->ne) == 0 && from->nb[0] == step && to->nb[0] == step;
    if (rows || (is_solid(from) && is_solid(to))) return NULL;
    return "this library writes beyond the result, unless packed elements are copied in whole rows";
}

static bool integers_and_floats(const ag_ggml_site *s)
{
    bool from = is(s, 0, AGK_I32), to = s->node->type == AGK_I32;
    return from != to;
}

static const char *of_conversions(const ag_ggml_site *s)
{
    if (integers_and_floats(s)) return "this library does not convert between integers and floats";
    if (is(s, 0, AGK_F16) && s->node->type == AGK_BF16) return "this library does not convert f16 to bf16";
    return NULL;
}

static const char *of_windows(const ag_ggml_site *s)
{
    const int32_t *p = s->node->params;
    switch (s->node->op) {
    case AGK_OP_im2col: return is(s, 0, AGK_F16) || s->node->type != AGK_F16 ? NULL : "kernels of f16 only";
    case AGK_OP_im2col_back: return is(s, 1, AGK_F16) ? "kernels of f32 only" : NULL;
    case AGK_OP_conv_transpose_2d: return is(s, 0, AGK_F16) ? NULL : "kernels of f16 only";
    case AGK_OP_conv_2d_dw: return is(s, 0, AGK_F16) ? "kernels of f16 are taken for f32" : NULL;
    case AGK_OP_pool_1d: return p[1] == p[2] && p[3] == 0 ? NULL : "windows that do not overlap only, no padding";
    default: return NULL;
    }
}

/* Before November 2025. */
static const char *unknown_in_2025(const ag_ggml_site *s)
{
    const int32_t *p = s->node->params;
    switch (s->node->op) {
    case AGK_OP_rope:
    case AGK_OP_rope_back: return (p[2] & INTERLEAVED) != 0 ? "this library knows no interleaved sections" : NULL;
    case AGK_OP_scale: return p[1] != 0 ? "this library exchanges factor and bias" : NULL;
    case AGK_OP_ssm_scan: return s->operands[4]->ne[1] > 1 ? "this library takes other groups for a head" : NULL;
    case AGK_OP_cpy:
    case AGK_OP_cont:
    case AGK_OP_dup: return of_conversions(s);
    case AGK_OP_pad: return is_solid(s->operands[0]) ? NULL : "rows of floats one behind the other only";
    default: return of_windows(s);
    }
}

static const char *of_copies(const ag_ggml_site *s)
{
    switch (s->node->op) {
    case AGK_OP_cpy:
    case AGK_OP_cont:
    case AGK_OP_dup: return of_packed_copies(s);
    case AGK_OP_concat: /* fixed in July 2026, with the first ops of DeepSeek V4 */
        if (agk_traits(s->node->type)->blck_size == 1 || s->f->ggml_dsv4_hc_comb != NULL) return NULL;
        return "this library writes packed elements beyond the result";
    default: return NULL;
    }
}

/* How an image is made larger. */
static const char *of_interpolation(const ag_ggml_site *s)
{
    int mode = s->node->params[0] & 0xFF, flags = s->node->params[0] & ~0xFF;
    bool known = mode <= BILINEAR && (flags == 0 || (flags == ALIGN_CORNERS && mode == BILINEAR));
    if (s->f->ggml_interpolate == NULL) known = mode <= BILINEAR && flags == 0;
    return known ? NULL : "this library does not know that way to interpolate";
}

const char *ag_ggml_known_fault(const ag_ggml_site *s)
{
    const ag_ggml_functions *f = s->f;
    bool before_2026 = f->ggml_gated_delta_net == NULL;
    const char *why = of_copies(s);
    if (why == NULL && before_2026 && s->node->op == AGK_OP_upscale) why = of_interpolation(s);
    if (why == NULL && before_2026 && f->ggml_cumsum == NULL) why = unknown_in_2025(s);
    return why;
}
