// Convolutions without im2col: conv_2d, conv_2d_dw, conv_3d, the transposed ones, col2im_1d.
//
// A thread for each element of the result, which adds in the order of the CPU's scalar kernels. src: kernel, b
// computes: conv_2d conv_2d_dw by conv_2d of 2 operands, for each element
// computes: conv_3d by conv_3d of 2 operands, for each element
// computes: conv_transpose_1d conv_transpose_2d by conv_transpose of 2 operands, for each element
// computes: col2im_1d by col2im_1d of 1 operand, for each element
#include "common.cuh"

KERNEL(conv_2d, 256, Node<2>)
{
    const Tensor &a = n.src[0], &b = n.src[1], &y = n.dst;
    const int *p = n.p;
    const bool each = n.op == OP_conv_2d_dw;
    const i64 all = count(y);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        float sum = 0.0f;
        const i64 channels = each ? 1 : b.ne[2];
        for (i64 c = 0; c < channels; ++c) {
            const char *x = b.data + (each ? i.i2 : c) * b.nb[2] + i.i3 * b.nb[3];
            const char *w = a.data + c * a.nb[2] + i.i2 * a.nb[3];
            for (i64 k1 = 0; k1 < a.ne[1]; ++k1) {
                const i64 i1 = i.i1 * p[1] - p[3] + k1 * p[5];
                if (i1 < 0 || i1 >= b.ne[1]) continue;
                for (i64 k0 = 0; k0 < a.ne[0]; ++k0) {
                    const i64 i0 = i.i0 * p[0] - p[2] + k0 * p[4];
                    if (i0 < 0 || i0 >= b.ne[0]) continue;
                    sum += load(a.type, w + k0 * a.nb[0] + k1 * a.nb[1]) * f32_at(x + i0 * b.nb[0] + i1 * b.nb[1]);
                }
            }
        }
        *(float *)(y.data + at(y, i)) = sum;
    }
}

// params: 0..2 strides, 3..5 padding, 6..8 dilation, 9 channels, 10 batch, 11 channels of the result
KERNEL(conv_3d, 256, Node<2>)
{
    const Tensor &a = n.src[0], &b = n.src[1], &y = n.dst;
    const int *p = n.p;
    const i64 all = count(y), channels = p[9], out_channels = p[11];
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        const i64 group = i.i3 % out_channels, batch = i.i3 / out_channels;
        float sum = 0.0f;
        for (i64 c = 0; c < channels; ++c) {
            const char *x = b.data + (batch * channels + c) * b.nb[3];
            const char *w = a.data + (group * channels + c) * a.nb[3];
            for (i64 k2 = 0; k2 < a.ne[2]; ++k2) {
                const i64 i2 = i.i2 * p[2] - p[5] + k2 * p[8];
                if (i2 < 0 || i2 >= b.ne[2]) continue;
                for (i64 k1 = 0; k1 < a.ne[1]; ++k1) {
                    const i64 i1 = i.i1 * p[1] - p[4] + k1 * p[7];
                    if (i1 < 0 || i1 >= b.ne[1]) continue;
                    for (i64 k0 = 0; k0 < a.ne[0]; ++k0) {
                        const i64 i0 = i.i0 * p[0] - p[3] + k0 * p[6];
                        if (i0 < 0 || i0 >= b.ne[0]) continue;
                        sum += load(a.type, w + at(a, k0, k1, k2, 0)) * f32_at(x + at(b, i0, i1, i2, 0));
                    }
                }
            }
        }
        *(float *)(y.data + at(y, i)) = sum;
    }
}

// a [K, OC, IC] and b [L, IC], or a [KW, KH, OC, IC] and b [W, H, IC, N]; with a kernel of f16 b counts in f16.
KERNEL(conv_transpose, 256, Node<2>)
{
    const Tensor &a = n.src[0], &b = n.src[1], &y = n.dst;
    const bool plane = n.op == OP_conv_transpose_2d;
    const i64 stride = n.p[0], all = count(y);
    const i64 channels = plane ? a.ne[3] : a.ne[2], lines = plane ? a.ne[1] : 1;
    const i64 a_ic = plane ? a.nb[3] : a.nb[2], a_oc = plane ? a.nb[2] : a.nb[1], b_ic = plane ? b.nb[2] : b.nb[1];
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        const i64 row = plane ? i.i1 : 0, oc = plane ? i.i2 : i.i1, batch = plane ? i.i3 : 0;
        float sum = 0.0f;
        for (i64 ic = 0; ic < channels; ++ic) {
            for (i64 k1 = 0; k1 < lines; ++k1) {
                const i64 place1 = row - k1, i1 = plane ? place1 / stride : 0;
                if (plane && (place1 < 0 || place1 % stride != 0 || i1 >= b.ne[1])) continue;
                const char *x = b.data + ic * b_ic + (plane ? i1 * b.nb[1] + batch * b.nb[3] : 0);
                const char *w = a.data + ic * a_ic + oc * a_oc + (plane ? k1 * a.nb[1] : 0);
                for (i64 k0 = 0; k0 < a.ne[0]; ++k0) {
                    const i64 place0 = i.i0 - k0, i0 = place0 / stride;
                    if (place0 < 0 || place0 % stride != 0 || i0 >= b.ne[0]) continue;
                    float value = f32_at(x + i0 * b.nb[0]);
                    if (a.type == F16) value = half_to_float(float_to_half(value));
                    sum += load(a.type, w + k0 * a.nb[0]) * value;
                }
            }
        }
        *(float *)(y.data + at(y, i)) = sum;
    }
}

// src: columns [oc * K, T]; params: 0 stride, 1 oc, 2 elements cut off at each end
KERNEL(col2im_1d, 256, Node<1>)
{
    const Tensor &a = n.src[0], &y = n.dst;
    const i64 stride = n.p[0], crop = n.p[2], kernel = a.ne[0] / n.p[1], all = count(y);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        const i64 place = i.i0 + crop;
        float sum = 0.0f;
        for (i64 k = place % stride; k < kernel && k <= place; k += stride) {
            const i64 column = (place - k) / stride;
            if (column >= a.ne[1]) continue;
            sum += load(a.type, a.data + (i.i1 * kernel + k) * a.nb[0] + column * a.nb[1]);
        }
        store(y.type, y.data + at(y, i), sum);
    }
}
