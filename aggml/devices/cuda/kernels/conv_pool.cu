// pool_1d, pool_2d: the largest element, or the mean, of each window; pool_2d_back. A thread for each element.
//
// As in ggml, a mean over two dimensions counts elements outside of the image as zeros; over one dimension it leaves
// them out.
// computes: pool_1d pool_2d by conv_pool of 1 operand, for each element
// computes: pool_2d_back by pool_2d_back of 2 operands, for each element
#include "common.cuh"

static const float LEAST = -3.402823466e+38f;

struct Range {
    i64 first, last;
};

DEV Range inside(i64 place, i64 size, i64 stride, i64 pad, i64 n)
{
    Range r;
    r.first = place * stride - pad;
    r.last = r.first + size;
    if (r.first < 0) r.first = 0;
    if (r.last > n) r.last = n;
    return r;
}

KERNEL(conv_pool, 256, Node<1>)
{
    const Tensor &a = n.src[0], &y = n.dst;
    const int *p = n.p;
    const bool plane = n.op == OP_pool_2d;
    const i64 all = count(y), k0 = p[1], k1 = plane ? p[2] : 1;
    const i64 s0 = plane ? p[3] : p[2], s1 = plane ? p[4] : 1, p0 = plane ? p[5] : p[3], p1 = plane ? p[6] : 0;
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        const Range line = inside(i.i0, k0, s0, p0, a.ne[0]), lines = inside(i.i1, k1, s1, p1, a.ne[1]);
        float most = LEAST, sum = 0.0f;
        for (i64 i1 = lines.first; i1 < lines.last; ++i1) {
            for (i64 i0 = line.first; i0 < line.last; ++i0) {
                const float value = load(a.type, a.data + at(a, i0, i1, i.i2, i.i3));
                sum += value;
                if (value > most) most = value;
            }
        }
        const i64 counted = plane ? k0 * k1 : line.last - line.first;
        *(float *)(y.data + at(y, i)) = p[0] == 0 ? most : counted > 0 ? sum / (float)counted : 0.0f;
    }
}

// src: gradient, input of the pooling. Adds the gradients of all windows that contain an element, in their order.
KERNEL(pool_2d_back, 256, Node<2>)
{
    const Tensor &grad = n.src[0], &a = n.src[1], &y = n.dst;
    const int *p = n.p;
    const i64 all = count(y), k0 = p[1], k1 = p[2], s0 = p[3], s1 = p[4], p0 = p[5], p1 = p[6];
    const float share = 1.0f / (float)(k0 * k1);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        i64 first1 = i.i1 + p1 - k1 + 1, first0 = i.i0 + p0 - k0 + 1;
        first1 = first1 <= 0 ? 0 : (first1 + s1 - 1) / s1;
        first0 = first0 <= 0 ? 0 : (first0 + s0 - 1) / s0;
        float sum = 0.0f;
        for (i64 o1 = first1; o1 < grad.ne[1] && o1 * s1 - p1 <= i.i1; ++o1) {
            for (i64 o0 = first0; o0 < grad.ne[0] && o0 * s0 - p0 <= i.i0; ++o0) {
                const float value = f32_at(grad.data + at(grad, o0, o1, i.i2, i.i3));
                if (p[0] != 0) {
                    sum += value * share;
                    continue;
                }
                const Range line = inside(o0, k0, s0, p0, y.ne[0]), lines = inside(o1, k1, s1, p1, y.ne[1]);
                float most = LEAST;
                i64 at0 = -1, at1 = -1;
                for (i64 i1 = lines.first; i1 < lines.last; ++i1) {
                    for (i64 i0 = line.first; i0 < line.last; ++i0) {
                        const float other = load(a.type, a.data + at(a, i0, i1, i.i2, i.i3));
                        if (other <= most) continue;
                        most = other;
                        at0 = i0;
                        at1 = i1;
                    }
                }
                if (at0 == i.i0 && at1 == i.i1) sum += value;
            }
        }
        *(float *)(y.data + at(y, i)) = sum;
    }
}
