/* The geometry of a convolution, for conv_direct.c and conv_product.c: extents and strides of its three operands. */
#ifndef AGK_SCALAR_CONV_GEOMETRY_H
#define AGK_SCALAR_CONV_GEOMETRY_H

#include "node.h"

/* Index 0 is the width. Strides are bytes from one weight, element or place to the next. */
typedef struct agk_conv {
    int64_t in[3], kernel[3], out[3];
    int64_t in_step[3], kernel_step[3], out_step[3];
    int64_t stride[3], pad[3], dilation[3];
    int64_t channels, in_channel, kernel_channel; /* the number of channels that are summed over, and their strides */
    int64_t out_channels, in_group, kernel_group, out_group;
    int64_t batch, in_batch, out_batch;
} agk_conv;

static inline agk_conv agk_conv_of(const agk_node *node)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *y = &node->dst;
    const int32_t *p = node->params;
    const int n_dims = node->op == AGK_OP_conv_3d ? 3 : 2;
    agk_conv g = {.in = {1, 1, 1}, .kernel = {1, 1, 1}, .out = {1, 1, 1}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}};
    for (int d = 0; d < n_dims; ++d) {
        g.in[d] = b->ne[d];
        g.kernel[d] = a->ne[d];
        g.out[d] = y->ne[d];
        g.in_step[d] = b->nb[d];
        g.kernel_step[d] = a->nb[d];
        g.out_step[d] = y->nb[d];
        g.stride[d] = p[d];
        g.pad[d] = p[n_dims + d];
        g.dilation[d] = p[2 * n_dims + d];
    }
    if (n_dims == 3) {
        g.channels = p[9];
        g.batch = p[10];
        g.out_channels = p[11];
        g.in_channel = b->nb[3];
        g.kernel_channel = a->nb[3];
        g.kernel_group = g.channels * a->nb[3];
        g.out_group = y->nb[3];
        g.in_batch = g.channels * b->nb[3];
        g.out_batch = g.out_channels * y->nb[3];
        return g;
    }
    const bool each = node->op == AGK_OP_conv_2d_dw;
    g.channels = each ? 1 : b->ne[2];
    g.in_channel = b->nb[2];
    g.kernel_channel = a->nb[2];
    g.out_channels = y->ne[2];
    g.in_group = each ? b->nb[2] : 0;
    g.kernel_group = a->nb[3];
    g.out_group = y->nb[2];
    g.batch = y->ne[3];
    g.in_batch = b->nb[3];
    g.out_batch = y->nb[3];
    return g;
}

/* conv_product.c: lowers a convolution to products if its operands are laid out as that requires; false: they are
 * not. */
bool agk_lower_conv_product(agk_lowering *lowering);
bool agk_lower_conv_transpose(agk_lowering *lowering);

#endif
