// Values that depend on an element's indices: fill, arange, tri, diag, timestep_embedding.
// computes: fill arange tri diag timestep_embedding by shape_fill of 1 operand, for each element
#include "common.cuh"

enum { UPPER_DIAG, UPPER, LOWER_DIAG, LOWER };

KERNEL(shape_fill, 256, Node<1>)
{
    const Tensor &a = n.src[0];
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        float value;
        if (n.op == OP_fill) {
            value = param(n.p, 0);
        } else if (n.op == OP_arange) {
            value = param(n.p, 0) + param(n.p, 2) * (float)i.i0;
        } else if (n.op == OP_tri) {
            const bool upper = n.p[0] == UPPER || n.p[0] == UPPER_DIAG;
            const bool diagonal = n.p[0] == UPPER_DIAG || n.p[0] == LOWER_DIAG;
            const i64 edge = i.i1 + (upper == diagonal ? 0 : 1); // where the kept elements of a row begin, or end
            value = (i.i0 >= edge) == upper ? f32_at(a.data + at(a, i)) : 0.0f;
        } else if (n.op == OP_diag) {
            value = i.i0 == i.i1 ? f32_at(a.data + at(a, i.i0, 0, i.i2, i.i3)) : 0.0f;
        } else { // timestep_embedding: cosines, then sines, then 0 if the width is odd
            const i64 half = n.p[0] / 2, j = i.i0 < half ? i.i0 : i.i0 - half;
            const float fall = -logf((float)n.p[1]);
            const float angle = f32_at(a.data + i.i1 * a.nb[0]) * expf(fall * (float)j / (float)half);
            value = i.i0 < half ? cosf(angle) : i.i0 < 2 * half ? sinf(angle) : 0.0f;
        }
        store(n.dst.type, n.dst.data + at(n.dst, i), value);
    }
}
