// im2col, im2col_3d: every window of an image as a row; im2col_back: its gradient. A thread for each element.
// computes: im2col im2col_3d by im2col of 2 operands, for each element
// computes: im2col_back by im2col_back of 2 operands, for each element
#include "common.cuh"

// The arrays are indexed by dimension; 0 is the width. Unused dimensions have one element and one window.
struct Geometry {
    i64 in[3], step[3], kernel[3], out[3], stride[3], pad[3], dilation[3];
    i64 channels, channel_step, batch, batch_step;
};

DEV Geometry geometry_of(const Node<2> &n, const Tensor &image, const Tensor &kernel, const Tensor &rows)
{
    const int *p = n.p;
    Geometry g;
    const bool cube = n.op == OP_im2col_3d, plane = cube || p[6] != 0;
    const int dims = cube ? 3 : plane ? 2 : 1;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
        const bool used = d < dims;
        g.in[d] = used ? image.ne[d] : 1;
        g.step[d] = used ? image.nb[d] : 0;
        g.kernel[d] = used ? kernel.ne[d] : 1;
        g.stride[d] = !used ? 1 : cube ? p[d] : d < 2 ? p[d] : 1;
        g.pad[d] = !used ? 0 : cube ? p[3 + d] : d < 2 ? p[2 + d] : 0;
        g.dilation[d] = !used ? 1 : cube ? p[6 + d] : d < 2 ? p[4 + d] : 1;
    }
    g.out[0] = rows.ne[1];
    g.out[1] = plane ? rows.ne[2] : 1;
    g.out[2] = 1;
    if (cube) {
        g.channels = p[9];
        g.channel_step = image.nb[3];
        g.batch = g.channels > 0 ? image.ne[3] / g.channels : 0;
        g.batch_step = g.channels * image.nb[3];
        g.out[2] = g.batch > 0 ? rows.ne[3] / g.batch : 0;
    } else {
        const int channel = plane ? 2 : 1;
        g.channels = plane ? image.ne[2] : image.ne[1];
        g.channel_step = channel == 2 ? image.nb[2] : image.nb[1];
        g.batch = plane ? image.ne[3] : image.ne[2];
        g.batch_step = plane ? image.nb[3] : image.nb[2];
    }
    return g;
}

// src: kernel (extents only), image
KERNEL(im2col, 256, Node<2>)
{
    const Tensor &image = n.src[1], &y = n.dst;
    const Geometry g = geometry_of(n, image, n.src[0], y);
    const i64 all = count(y);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        i64 unit, k, c, k2, k1, k0, batch, o2, o1, o0, rest;
        divide(e, y.ne[0], &unit, &k);
        divide(k, g.kernel[0], &rest, &k0);
        divide(rest, g.kernel[1], &rest, &k1);
        divide(rest, g.kernel[2], &c, &k2);
        divide(unit, g.out[0], &rest, &o0);
        divide(rest, g.out[1], &rest, &o1);
        divide(rest, g.out[2], &batch, &o2);
        const i64 i0 = o0 * g.stride[0] - g.pad[0] + k0 * g.dilation[0];
        const i64 i1 = o1 * g.stride[1] - g.pad[1] + k1 * g.dilation[1];
        const i64 i2 = o2 * g.stride[2] - g.pad[2] + k2 * g.dilation[2];
        const bool inside = i0 >= 0 && i0 < g.in[0] && i1 >= 0 && i1 < g.in[1] && i2 >= 0 && i2 < g.in[2];
        const char *x = image.data + batch * g.batch_step + c * g.channel_step;
        const float value =
            inside ? load(image.type, x + i0 * g.step[0] + i1 * g.step[1] + i2 * g.step[2]) : 0.0f;
        store(y.type, y.data + at(y, row_index(y, unit)) + k * y.nb[0], value);
    }
}

// src: gradient, kernel (extents only). Adds the gradients of all windows that contain an element, in kernel order.
KERNEL(im2col_back, 256, Node<2>)
{
    const Tensor &grad = n.src[0], &y = n.dst;
    const Geometry g = geometry_of(n, y, n.src[1], grad);
    const i64 all = g.in[0] * g.in[1] * g.channels * g.batch;
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const i64 i0 = e % g.in[0], i1 = e / g.in[0] % g.in[1], c = e / g.in[0] / g.in[1] % g.channels;
        const i64 batch = e / g.in[0] / g.in[1] / g.channels;
        const char *x = grad.data + batch * (n.p[6] != 0 ? grad.nb[3] : grad.nb[2]);
        float sum = 0.0f;
        for (i64 k1 = 0; k1 < g.kernel[1]; ++k1) {
            const i64 place1 = i1 + g.pad[1] - k1 * g.dilation[1], o1 = place1 / g.stride[1];
            if (place1 < 0 || place1 % g.stride[1] != 0 || o1 >= g.out[1]) continue;
            for (i64 k0 = 0; k0 < g.kernel[0]; ++k0) {
                const i64 place0 = i0 + g.pad[0] - k0 * g.dilation[0], o0 = place0 / g.stride[0];
                if (place0 < 0 || place0 % g.stride[0] != 0 || o0 >= g.out[0]) continue;
                const i64 k = (c * g.kernel[1] + k1) * g.kernel[0] + k0;
                sum += f32_at(x + k * grad.nb[0] + o0 * grad.nb[1] + o1 * grad.nb[2]);
            }
        }
        char *to = y.data + batch * g.batch_step + c * g.channel_step + i1 * g.step[1] + i0 * g.step[0];
        *(float *)to = sum;
    }
}
