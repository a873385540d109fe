// Windowed attention of images: win_part, win_unpart, get_rel_pos, add_rel_pos. A thread for each element.
// computes: win_part win_unpart get_rel_pos add_rel_pos by shape_window of 3 operands, for each element
#include "common.cuh"

// src: a, pw, ph (pw and ph for add_rel_pos alone)
KERNEL(shape_window, 256, Node<3>)
{
    const Tensor &a = n.src[0], &y = n.dst;
    const i64 all = count(y);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        char *to = y.data + at(y, i);
        if (n.op == OP_win_part) {
            const i64 across = n.p[0], size = n.p[2];
            const i64 i1 = i.i3 % across * size + i.i1, i2 = i.i3 / across * size + i.i2;
            *(float *)to = i1 < a.ne[1] && i2 < a.ne[2] ? f32_at(a.data + at(a, i.i0, i1, i2, 0)) : 0.0f;
        } else if (n.op == OP_win_unpart) {
            const i64 size = n.p[0], across = (y.ne[1] + size - 1) / size;
            const i64 window = i.i2 / size * across + i.i1 / size;
            *(float *)to = f32_at(a.data + at(a, i.i0, i.i1 % size, i.i2 % size, window));
        } else if (n.op == OP_get_rel_pos) { // copies bits, so bf16 works, too
            const i64 distance = y.ne[1] - 1 - i.i1 + i.i2;
            *(u16 *)to = *(const u16 *)(a.data + i.i0 * a.nb[0] + distance * a.nb[1]);
        } else {
            const Tensor &pw = n.src[1], &ph = n.src[2];
            const i64 width = pw.ne[0], row = (i.i3 * y.ne[2] + i.i2) * y.ne[1] + i.i1;
            const float line = f32_at(ph.data + at(ph, row_index(ph, row)) + i.i0 / width * ph.nb[0]);
            const float column = f32_at(pw.data + at(pw, row_index(pw, row)) + i.i0 % width * pw.nb[0]);
            *(float *)to = f32_at(a.data + at(a, i)) + line + column;
        }
    }
}
