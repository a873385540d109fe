// repeat_back: the sum over all elements that repeat copied from one. Not here: repeat, which is a copy (shape.py).
// computes: repeat_back by repeat_back of 1 operand, for each element
#include "common.cuh"

// A thread for each element of the result; it adds in the order of the source.
KERNEL(repeat_back, 256, Node<1>)
{
    const Tensor &a = n.src[0], &y = n.dst;
    const i64 all = count(y);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        float sum = 0.0f;
        for (i64 i3 = i.i3; i3 < a.ne[3]; i3 += y.ne[3]) {
            for (i64 i2 = i.i2; i2 < a.ne[2]; i2 += y.ne[2]) {
                for (i64 i1 = i.i1; i1 < a.ne[1]; i1 += y.ne[1]) {
                    for (i64 i0 = i.i0; i0 < a.ne[0]; i0 += y.ne[0]) sum += f32_at(a.data + at(a, i0, i1, i2, i3));
                }
            }
        }
        *(float *)(y.data + at(y, i)) = sum;
    }
}
