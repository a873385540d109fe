// diag_mask_inf, diag_mask_zero: elements of a row after number n_past + row become -inf, or 0.
// computes: diag_mask_inf diag_mask_zero by diag_mask of 1 operand, for each element
#include "common.cuh"

KERNEL(diag_mask, 256, Node<1>)
{
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        const bool kept = i.i0 <= n.p[0] + i.i1;
        *(float *)(n.dst.data + at(n.dst, i)) = kept                       ? f32_at(n.src[0].data + at(n.src[0], i))
                                                : n.op == OP_diag_mask_inf ? -INF
                                                                           : 0.0f;
    }
}
