/* Convolutions without an intermediate matrix: conv_2d, conv_2d_dw (one channel each), conv_3d, the transposed ones in
 * one and two dimensions, and col2im_1d, the second half of a transposed convolution through a product.
 *
 * A row of the result is summed in f32: one weight after the other is multiplied by a line of the input. The
 * compiler vectorises the loop over the line. Here: the lowering and the steps. Not here: im2col (conv.c);
 * convolutions that are computed in place as matrix products (conv_product.c). What remains for this file are single
 * channels and odd strides. */
#include "table/kernel_types.h"
#include "units.h"
#include "conv_geometry.h"
#include "formats/quant.h"

/* sum[i] += weight * x[i * stride + offset] where that is inside the line. */
static void add_line(float *sum, int64_t n, float weight, const char *x, int64_t apart, int64_t inside, int64_t stride,
                     int64_t offset)
{
    int64_t first = offset < 0 ? (-offset + stride - 1) / stride : 0;
    int64_t last = inside - offset <= 0 ? 0 : (inside - offset + stride - 1) / stride;
    if (last > n) last = n;
    if (stride == 1 && apart == 4) {
        const float *from = (const float *)(const void *)x + offset;
        for (int64_t i = first; i < last; ++i) sum[i] += weight * from[i];
        return;
    }
    for (int64_t i = first; i < last; ++i) sum[i] += weight * agk_load(AGK_F32, x + (i * stride + offset) * apart);
}

static void sum_row(const agk_conv *g, int kernel_type, const char *a, const char *b, const int64_t *at, float *sum)
{
    for (int64_t i = 0; i < g->out[0]; ++i) sum[i] = 0.0f;
    for (int64_t c = 0; c < g->channels; ++c) {
        for (int64_t k2 = 0; k2 < g->kernel[2]; ++k2) {
            const int64_t i2 = at[2] * g->stride[2] - g->pad[2] + k2 * g->dilation[2];
            if (i2 < 0 || i2 >= g->in[2]) continue;
            for (int64_t k1 = 0; k1 < g->kernel[1]; ++k1) {
                const int64_t i1 = at[1] * g->stride[1] - g->pad[1] + k1 * g->dilation[1];
                if (i1 < 0 || i1 >= g->in[1]) continue;
                const char *line = b + c * g->in_channel + i2 * g->in_step[2] + i1 * g->in_step[1];
                const char *weights = a + c * g->kernel_channel + k2 * g->kernel_step[2] + k1 * g->kernel_step[1];
                for (int64_t k0 = 0; k0 < g->kernel[0]; ++k0) {
                    add_line(sum, g->out[0], agk_load(kernel_type, weights + k0 * g->kernel_step[0]), line,
                             g->in_step[0], g->in[0], g->stride[0], k0 * g->dilation[0] - g->pad[0]);
                }
            }
        }
    }
}

/* A unit is a row of the result; a whole row is summed by one thread, in one order. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_conv g = agk_conv_of(node);
    const agk_view *dst = &node->dst;
    const char *a = agk_data(task, &node->src[0]), *b = agk_data(task, &node->src[1]);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t at[3] = {0, unit % g.out[1], unit / g.out[1] % g.out[2]};
        const int64_t group = unit / g.out[1] / g.out[2] % g.out_channels;
        const int64_t n = unit / g.out[1] / g.out[2] / g.out_channels;
        sum_row(&g, node->src[0].type, a + group * g.kernel_group, b + group * g.in_group + n * g.in_batch, at,
                task->scratch);
        agk_store_row(AGK_F32,
                      y + n * g.out_batch + group * g.out_group + at[2] * g.out_step[2] + at[1] * g.out_step[1],
                      dst->nb[0], g.out[0], task->scratch);
    }
    return AGK_OK;
}

/* sum[i * stride] += weight * x[i]. With a kernel of f16 the input is rounded to f16 as well, as in ggml. */
static void spread_line(float *sum, int64_t n, float weight, const char *x, int64_t apart, int64_t stride, bool half)
{
    for (int64_t i = 0; i < n; ++i) {
        float value = agk_load(AGK_F32, x + i * apart);
        if (half) value = agk_f16_to_float(agk_f16_from_float(value));
        sum[i * stride] += weight * value;
    }
}

/* A unit is a row of the result. a [K, OC, IC] and b [L, IC], or a [KW, KH, OC, IC] and b [W, H, IC, N]. */
static agk_status run_transposed(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const bool plane = node->op == AGK_OP_conv_transpose_2d;
    const int64_t stride = node->params[0], rows = plane ? dst->ne[1] : 1, channels = plane ? dst->ne[2] : dst->ne[1];
    const int oc_dim = plane ? 2 : 1, ic_dim = plane ? 3 : 2, b_dim = plane ? 2 : 1;
    const char *weights = agk_data(task, a), *x = agk_data(task, b);
    char *y = agk_data(task, dst);
    float *sum = task->scratch;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t row = unit % rows, oc = unit / rows % channels, n = unit / rows / channels;
        for (int64_t i = 0; i < dst->ne[0]; ++i) sum[i] = 0.0f;
        for (int64_t ic = 0; ic < a->ne[ic_dim]; ++ic) {
            for (int64_t k1 = 0; k1 < (plane ? a->ne[1] : 1); ++k1) {
                const int64_t i1 = (row - k1) / stride;
                if (plane && (row < k1 || (row - k1) % stride != 0 || i1 >= b->ne[1])) continue;
                const char *line = x + ic * b->nb[b_dim] + (plane ? i1 * b->nb[1] + n * b->nb[3] : 0);
                const char *weight = weights + ic * a->nb[ic_dim] + oc * a->nb[oc_dim] + (plane ? k1 * a->nb[1] : 0);
                for (int64_t k0 = 0; k0 < a->ne[0]; ++k0) {
                    spread_line(sum + k0, b->ne[0], agk_load(a->type, weight + k0 * a->nb[0]), line, b->nb[0], stride,
                                a->type == AGK_F16);
                }
            }
        }
        memcpy(y + (plane ? row * dst->nb[1] + n * dst->nb[3] : 0) + oc * dst->nb[oc_dim], sum,
               (size_t)dst->ne[0] * sizeof *sum);
    }
    return AGK_OK;
}

/* A unit is a channel of the result: columns a [oc * K, T] are added up where they overlap, and p0 is cut off at
 * both ends. */
static agk_status run_col2im(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t stride = node->params[0], crop = node->params[2], kernel = a->ne[0] / node->params[1];
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t oc = units.first; oc < units.last; ++oc) {
        for (int64_t t = 0; t < dst->ne[0]; ++t) {
            float sum = 0.0f;
            const int64_t place = t + crop;
            for (int64_t k = place % stride; k < kernel && k <= place; k += stride) {
                const int64_t column = (place - k) / stride;
                if (column >= a->ne[1]) continue;
                sum += agk_load(a->type, x + (oc * kernel + k) * a->nb[0] + column * a->nb[1]);
            }
            agk_store(dst->type, y + t * dst->nb[0] + oc * dst->nb[1], sum);
        }
    }
    return AGK_OK;
}

static agk_status lower_direct(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const agk_conv g = agk_conv_of(node);
    const bool each = node->op == AGK_OP_conv_2d_dw;
    if (b->type != AGK_F32 || dst->type != AGK_F32 || (a->type != AGK_F32 && a->type != AGK_F16)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "a, the kernel, is %s and b is %s: a must be f32 or f16, b and the result f32",
                          agk_type_name(a->type), agk_type_name(b->type));
    }
    bool fits = g.channels >= 0 && g.out_channels >= 0 && g.batch >= 0;
    for (int d = 0; d < 3; ++d) {
        fits = fits && g.stride[d] > 0 && g.dilation[d] > 0 && g.pad[d] >= 0;
    }
    if (node->op == AGK_OP_conv_3d) {
        fits = fits && a->ne[3] == g.channels * g.out_channels && b->ne[3] == g.channels * g.batch &&
               dst->ne[3] == g.out_channels * g.batch;
    } else {
        fits = fits && a->ne[2] == g.channels && a->ne[3] == g.out_channels && b->ne[3] == g.batch &&
               (!each || b->ne[2] == g.out_channels);
    }
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID,
                          "a has extents 2 and 3 of %lld x %lld, b has %lld channels: they do not fit together",
                          (long long)a->ne[2], (long long)a->ne[3], (long long)b->ne[2]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (!each && agk_lower_conv_product(lowering)) return AGK_OK;
    lowering->scratch_size = (size_t)g.out[0] * sizeof(float);
    const double weights = (double)(g.channels * g.kernel[0] * g.kernel[1] * g.kernel[2]);
    agk_add_units(lowering, run, agk_nelements(dst) / g.out[0], 10.0 + weights * (4.0 + 0.3 * (double)g.out[0]));
    return AGK_OK;
}

static agk_status lower_transposed(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const bool plane = node->op == AGK_OP_conv_transpose_2d;
    const int64_t stride = node->params[0];
    if (b->type != AGK_F32 || dst->type != AGK_F32 || (a->type != AGK_F32 && a->type != AGK_F16)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "a, the kernel, is %s and b is %s: a must be f32 or f16, b and the result f32",
                          agk_type_name(a->type), agk_type_name(b->type));
    }
    const int64_t n0 = (b->ne[0] - 1) * stride + a->ne[0], n1 = (b->ne[1] - 1) * stride + a->ne[1];
    const bool fits =
        stride > 0 && dst->ne[0] == n0 &&
        (plane ? dst->ne[1] == n1 && dst->ne[2] == a->ne[2] && b->ne[2] == a->ne[3] && dst->ne[3] == b->ne[3]
               : dst->ne[1] == a->ne[1] && b->ne[1] == a->ne[2] && agk_nrows(b) == b->ne[1] &&
                     agk_nrows(dst) == dst->ne[1]);
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID,
                          "the result is %lld x %lld, which does not fit stride %lld and the %lld columns of b",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)stride, (long long)b->ne[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (agk_lower_conv_transpose(lowering)) return AGK_OK;
    lowering->scratch_size = (size_t)n0 * sizeof(float);
    const double products = (double)(a->ne[0] * a->ne[plane ? 3 : 2] * b->ne[0]) * (plane ? (double)a->ne[1] : 1.0);
    agk_add_units(lowering, run_transposed, agk_nrows(dst), 10.0 + products);
    return AGK_OK;
}

static agk_status lower_col2im(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t stride = node->params[0], channels = node->params[1], crop = node->params[2];
    if (!agk_is_float(a->type) || dst->type != a->type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, the result %s: both must be the same, f32, f16 or bf16",
                          agk_type_name(a->type), agk_type_name(dst->type));
    }
    if (stride < 1 || channels < 1 || crop < 0 || a->ne[0] % channels != 0 || dst->ne[1] != channels ||
        agk_nrows(dst) != channels || agk_nrows(a) != a->ne[1] ||
        dst->ne[0] != (a->ne[1] - 1) * stride + a->ne[0] / channels - 2 * crop) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "a has columns of %lld elements, which do not fit %lld channels, stride %lld and padding %lld",
            (long long)a->ne[0], (long long)channels, (long long)stride, (long long)crop);
    }
    const double ns = 3.0 * (double)(a->ne[0] / channels / stride + 1);
    agk_add_units(lowering, run_col2im, agk_nelements(dst) == 0 ? 0 : channels, ns * (double)dst->ne[0]);
    return AGK_OK;
}

agk_status agk_lower_conv_direct(agk_lowering *lowering)
{
    switch (lowering->node->op) {
    case AGK_OP_conv_transpose_1d:
    case AGK_OP_conv_transpose_2d: return lower_transposed(lowering);
    case AGK_OP_col2im_1d: return lower_col2im(lowering);
    default: return lower_direct(lowering);
    }
}
