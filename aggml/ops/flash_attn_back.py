"""The gradient of attention in q, k and v, as one node.

Here: shapes, types, checks. Not here: the kernel (native/lower/attention/flash_attn_back.c).
"""

from __future__ import annotations

import struct

from aggml.ops._common import F32, all_tensors, mismatch, pack, refuse_type
from aggml.tensor import Tensor, new_node

__all__ = ["flash_attn_back"]

_PARAMS = struct.Struct("<?63x")
_ALIGN = 4  # elements: each part begins at a multiple of 16 bytes


def flash_attn_back(q: Tensor, k: Tensor, v: Tensor, d: Tensor, masked: bool) -> Tensor:
    """The gradient of attention in all three operands (``ggml_flash_attn_back``).

    Of ``soft_max(q k / sqrt(n)) v`` with n = ``q.ne[0]``; heads of q share those of k and v as in
    `flash_attn_ext`. ggml declares this function, and aborts in it.

    Args:
        q: f32 [n, t, heads, batch], any strides, like all that follow.
        k: f32 [n, kv, kv heads, batch].
        v: f32 [kv, n, kv heads, batch]: transposed.
        d: the gradient of the result, f32 [n, t, heads, batch].
        masked: causal; the last query sees all keys, each earlier one a key less.

    Returns:
        f32 [..]: the gradients in q, k and v, of their extents and without gaps, one after the
        other; each begins at a multiple of 4 elements.

    Raises:
        LayoutMismatch: extents that do not fit; masked, and fewer keys than queries.
        Unsupported: other types.
    """
    op = "flash_attn_back"
    for operand in (q, k, v, d):
        if operand.__class__ is not Tensor:
            all_tensors(op, q=q, k=k, v=v, d=d)
        if operand.dtype is not F32:
            raise refuse_type(op, "f32", q=q, k=k, v=v, d=d)
    n, queries, heads, batch = q.ne
    keys, k_heads = k.ne[1:3]
    if (
        d.ne != q.ne
        or k.ne != (n, keys, k_heads, batch)
        or v.ne != (keys, n, k_heads, batch)
        or (heads % k_heads if k_heads else heads)
    ):
        raise mismatch(
            op,
            "expected q [d, n, h, s], k [d, kv, h, s], v [kv, d, h, s], d like the result",
            q=q,
            k=k,
            v=v,
            d=d,
        )
    if masked and keys < queries:
        raise mismatch(
            op, "with masked = True, there must not be fewer keys than queries", q=q, k=k
        )
    padded = sum(-(-t.nelements // _ALIGN) * _ALIGN for t in (q, k, v))
    return new_node(op, F32, (padded, 1, 1, 1), (q, k, v, d), pack(op, _PARAMS, bool(masked)))
