// pad (zeros, or circular), pad_reflect_1d, roll: f32 elements move to other indices.
// computes: pad pad_reflect_1d roll by shape_pad of 1 operand, for each element
#include "common.cuh"

enum { CIRCULAR = 8 };

// The source index for index i of dimension d; -1: none, the result is 0.
DEV i64 shown(const Node<1> &n, int d, i64 i)
{
    const i64 m = n.src[0].ne[d];
    i64 place = i;
    if (n.op == OP_roll) {
        place = (i - n.p[d]) % m;
        return place < 0 ? place + m : place;
    }
    if (n.op == OP_pad_reflect_1d) {
        if (d > 0) return i;
        place = i - n.p[0];
        return place < 0 ? -place : place < m ? place : 2 * (m - 1) - place;
    }
    place = i - n.p[2 * d];
    if (n.p[CIRCULAR] == 0) return place >= 0 && place < m ? place : -1;
    place %= m;
    return place < 0 ? place + m : place;
}

KERNEL(shape_pad, 256, Node<1>)
{
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        const i64 i0 = shown(n, 0, i.i0), i1 = shown(n, 1, i.i1), i2 = shown(n, 2, i.i2), i3 = shown(n, 3, i.i3);
        const bool inside = i0 >= 0 && i1 >= 0 && i2 >= 0 && i3 >= 0;
        *(float *)(n.dst.data + at(n.dst, i)) = inside ? f32_at(n.src[0].data + at(n.src[0], i0, i1, i2, i3)) : 0.0f;
    }
}
