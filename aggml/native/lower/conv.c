/* im2col, im2col_3d: lay out every window of an image as a row, so that a convolution becomes a matrix product;
 * im2col_back: the gradient.
 *
 * Here: the lowering, with the same walk for one, two and three dimensions. Not here: convolutions that do not go
 * through im2col (conv_direct.c), pooling (conv_pool.c). */
#include "table/kernel_types.h"
#include "units.h"

enum { WRITE }; /* slot of node->aux */

/* The image and its windows; index 0 is the width. Unused dimensions have one element and one place. */
typedef struct geometry {
    int64_t in[3], apart[3]; /* extents of the image; strides in bytes */
    int64_t kernel[3], out[3];
    int64_t stride[3], pad[3], dilation[3];
    int64_t channels, channel_step, batch, batch_step;
} geometry;

static geometry of_image(const agk_node *node, const agk_view *image, const agk_view *kernel, const agk_view *rows)
{
    const int32_t *p = node->params;
    geometry g = {.in = {image->ne[0], 1, 1},
                  .apart = {image->nb[0], 0, 0},
                  .kernel = {kernel->ne[0], 1, 1},
                  .out = {rows->ne[1], 1, 1},
                  .stride = {1, 1, 1},
                  .dilation = {1, 1, 1}};
    int n_dims = 1, channel = 1, batch = 2;
    if (node->op == AGK_OP_im2col_3d) {
        n_dims = 3;
        for (int d = 0; d < 3; ++d) {
            g.stride[d] = p[d];
            g.pad[d] = p[3 + d];
            g.dilation[d] = p[6 + d];
        }
        g.channels = p[9];
        g.channel_step = image->nb[3];
        g.batch = g.channels > 0 ? image->ne[3] / g.channels : 0;
        g.batch_step = g.channels * image->nb[3];
        g.out[2] = g.batch > 0 ? rows->ne[3] / g.batch : 0;
    } else {
        if (p[6] != 0) n_dims = 2, channel = 2, batch = 3;
        for (int d = 0; d < n_dims; ++d) {
            g.stride[d] = p[d];
            g.pad[d] = p[2 + d];
            g.dilation[d] = p[4 + d];
        }
        g.channels = image->ne[channel];
        g.channel_step = image->nb[channel];
        g.batch = image->ne[batch];
        g.batch_step = image->nb[batch];
    }
    for (int d = 1; d < n_dims; ++d) {
        g.in[d] = image->ne[d];
        g.apart[d] = image->nb[d];
        g.kernel[d] = kernel->ne[d];
    }
    if (n_dims > 1) g.out[1] = rows->ne[2];
    return g;
}

static geometry geometry_of(const agk_node *node)
{
    return node->op == AGK_OP_im2col_back ? of_image(node, &node->dst, &node->src[1], &node->src[0])
                                          : of_image(node, &node->src[1], &node->src[0], &node->dst);
}

/* A window of f32 that lies within the image, its elements side by side. */
static void copy_row(const geometry *g, const char *x, float *row)
{
    const int64_t n = g->kernel[0];
    for (int64_t c = 0; c < g->channels; ++c, x += g->channel_step) {
        for (int64_t k2 = 0; k2 < g->kernel[2]; ++k2) {
            const char *line = x + k2 * g->dilation[2] * g->apart[2];
            for (int64_t k1 = 0; k1 < g->kernel[1]; ++k1, row += n, line += g->dilation[1] * g->apart[1]) {
                const float *from = (const float *)(const void *)line;
                if (n == 3) {
                    row[0] = from[0];
                    row[1] = from[1];
                    row[2] = from[2];
                } else if (n < 8) {
                    for (int64_t k0 = 0; k0 < n; ++k0) row[k0] = from[k0];
                } else {
                    memcpy(row, from, (size_t)n * sizeof *row);
                }
            }
        }
    }
}

static void fill_row(const geometry *g, const agk_view *image, const char *x, const int64_t *at, float *row)
{
    int64_t from[3];
    bool within = image->type == AGK_F32 && g->apart[0] == 4 && (g->dilation[0] == 1 || g->kernel[0] == 1);
    for (int d = 0; d < 3; ++d) {
        from[d] = at[d] * g->stride[d] - g->pad[d];
        within = within && from[d] >= 0 && from[d] + (g->kernel[d] - 1) * g->dilation[d] < g->in[d];
    }
    if (within) {
        copy_row(g, x + from[0] * g->apart[0] + from[1] * g->apart[1] + from[2] * g->apart[2], row);
        return;
    }
    for (int64_t c = 0; c < g->channels; ++c) {
        for (int64_t k2 = 0; k2 < g->kernel[2]; ++k2) {
            const int64_t i2 = from[2] + k2 * g->dilation[2];
            for (int64_t k1 = 0; k1 < g->kernel[1]; ++k1) {
                const int64_t i1 = from[1] + k1 * g->dilation[1];
                const bool inside = i2 >= 0 && i2 < g->in[2] && i1 >= 0 && i1 < g->in[1];
                const char *line = x + c * g->channel_step + (inside ? i2 * g->apart[2] + i1 * g->apart[1] : 0);
                for (int64_t k0 = 0; k0 < g->kernel[0]; ++k0, ++row) {
                    const int64_t i0 = from[0] + k0 * g->dilation[0];
                    if (image->type == AGK_F32) {
                        *row = 0.0f;
                        if (inside && i0 >= 0 && i0 < g->in[0]) memcpy(row, line + i0 * g->apart[0], sizeof *row);
                        continue;
                    }
                    *row = inside && i0 >= 0 && i0 < g->in[0] ? agk_load(image->type, line + i0 * g->apart[0]) : 0.0f;
                }
            }
        }
    }
}

/* A unit is a window: a row of the result. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const geometry g = geometry_of(node);
    const agk_view *dst = &node->dst, *image = &node->src[1];
    const char *x = agk_data(task, image);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t n = unit / (g.out[0] * g.out[1] * g.out[2]);
        const int64_t at[3] = {unit % g.out[0], unit / g.out[0] % g.out[1], unit / g.out[0] / g.out[1] % g.out[2]};
        char *to = y + agk_row_offset(dst, unit);
        float *row = dst->type == AGK_F32 ? (float *)(void *)to : task->scratch;
        fill_row(&g, image, x + n * g.batch_step, at, row);
        if (dst->type != AGK_F32) ((agk_from_float_fn *)node->aux.fn[WRITE])(row, to, dst->ne[0]);
    }
    return AGK_OK;
}

/* Adds up all windows that saw an element, in the order of the kernel: so the sum does not depend on the threads. */
static float gather(const geometry *g, const agk_view *grad, const char *x, int64_t c, int64_t i1, int64_t i0)
{
    float sum = 0.0f;
    for (int64_t k1 = 0; k1 < g->kernel[1]; ++k1) {
        const int64_t place1 = i1 + g->pad[1] - k1 * g->dilation[1], o1 = place1 / g->stride[1];
        if (place1 < 0 || place1 % g->stride[1] != 0 || o1 >= g->out[1]) continue;
        for (int64_t k0 = 0; k0 < g->kernel[0]; ++k0) {
            const int64_t place0 = i0 + g->pad[0] - k0 * g->dilation[0], o0 = place0 / g->stride[0];
            if (place0 < 0 || place0 % g->stride[0] != 0 || o0 >= g->out[0]) continue;
            const int64_t k = (c * g->kernel[1] + k1) * g->kernel[0] + k0;
            sum += agk_load(AGK_F32, x + k * grad->nb[0] + o0 * grad->nb[1] + o1 * grad->nb[2]);
        }
    }
    return sum;
}

/* A unit is a line of the image. In one dimension, the batch is dimension 2 of both tensors, and a line is a
 * channel. */
static agk_status run_back(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const geometry g = geometry_of(node);
    const agk_view *dst = &node->dst, *grad = &node->src[0];
    const bool plane = node->params[6] != 0;
    const char *x = agk_data(task, grad);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i1 = unit % g.in[1], c = unit / g.in[1] % g.channels, n = unit / g.in[1] / g.channels;
        float *to = (float *)(void *)(y + n * g.batch_step + c * g.channel_step + i1 * g.apart[1]);
        const char *from = x + n * grad->nb[plane ? 3 : 2];
        for (int64_t i0 = 0; i0 < g.in[0]; ++i0) to[i0] = gather(&g, grad, from, c, i1, i0);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering, const geometry *g, const agk_view *rows)
{
    int64_t window = g->channels;
    for (int d = 0; d < 3; ++d) {
        if (g->stride[d] < 1 || g->dilation[d] < 1 || g->pad[d] < 0) {
            return agk_refuse(lowering, AGK_INVALID,
                              "stride %lld, padding %lld, dilation %lld in dimension %d: expected >= 1, >= 0, >= 1",
                              (long long)g->stride[d], (long long)g->pad[d], (long long)g->dilation[d], d);
        }
        window *= g->kernel[d];
    }
    const int64_t n_rows = g->out[0] * g->out[1] * g->out[2] * g->batch;
    if (rows->ne[0] != window || agk_nrows(rows) != n_rows) {
        return agk_refuse(lowering, AGK_INVALID,
                          "there are %lld rows of %lld elements for %lld windows of %lld elements",
                          (long long)agk_nrows(rows), (long long)rows->ne[0], (long long)n_rows, (long long)window);
    }
    return AGK_OK;
}

agk_status agk_lower_conv(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst;
    const bool back = node->op == AGK_OP_im2col_back;
    const geometry g = geometry_of(node);
    const agk_status status = check(lowering, &g, back ? &node->src[0] : dst);
    if (status != AGK_OK) return status;
    if (back) {
        if (dst->type != AGK_F32 || node->src[0].type != AGK_F32) {
            return agk_refuse(lowering, AGK_UNSUPPORTED, "the gradient is %s, not f32",
                              agk_type_name(node->src[0].type));
        }
        const double ns = 2.0 * (double)(g.in[0] * g.kernel[0] * g.kernel[1]);
        agk_add_units(lowering, run_back, agk_nelements(dst) == 0 ? 0 : g.in[1] * g.channels * g.batch, ns);
        return AGK_OK;
    }
    const int type = node->src[1].type;
    if (!agk_is_float(dst->type) || (type != AGK_F32 && type != AGK_F16)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "%s cannot be written as %s", agk_type_name(type),
                          agk_type_name(dst->type));
    }
    if (dst->type != AGK_F32) lowering->scratch_size = (size_t)dst->ne[0] * sizeof(float);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    agk_add_units(lowering, run, agk_nelements(dst) == 0 ? 0 : agk_nrows(dst), 10.0 + 0.8 * (double)dst->ne[0]);
    return AGK_OK;
}
