/* What older libraries compute wrong, or end in an assertion by: modes that they do not know, types that they take for
 * others. Each was seen with recorded calls on ggml 0.0.1 (August 2025). Which release mended it is not looked up: a
 * library that has ggml_cumsum (November 2025) or ggml_gated_delta_net (2026) is newer than all that was seen.
 *
 * Not here: functions that a library lacks (builders.c), what its devices say that they do not run (plan.c). */
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
    case AGK_OP_concat:
        return agk_traits(s->node->type)->blck_size > 1 ? "this library writes beyond the result" : NULL;
    case AGK_OP_ssm_scan: return s->operands[4]->ne[1] > 1 ? "this library takes other groups for a head" : NULL;
    case AGK_OP_cpy:
    case AGK_OP_cont:
    case AGK_OP_dup: return of_conversions(s);
    case AGK_OP_pad: return is_solid(s->operands[0]) ? NULL : "rows of floats one behind the other only";
    default: return of_windows(s);
    }
}

const char *ag_ggml_too_old(const ag_ggml_site *s)
{
    bool before_2026 = s->f->ggml_gated_delta_net == NULL;
    if (before_2026 && s->node->op == AGK_OP_upscale) {
        int mode = s->node->params[0] & 0xFF, flags = s->node->params[0] & ~0xFF;
        bool known = mode <= BILINEAR && (flags == 0 || (flags == ALIGN_CORNERS && mode == BILINEAR));
        if (s->f->ggml_interpolate == NULL) known = mode <= BILINEAR && flags == 0;
        return known ? NULL : "this library does not know that way to interpolate";
    }
    return before_2026 && s->f->ggml_cumsum == NULL ? unknown_in_2025(s) : NULL;
}
