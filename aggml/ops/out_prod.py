"""Sums of outer products: out_prod.

Here: shapes, types, checks. Not here: kernels (native/lower/out_prod.c); inner products
(mul_mat.py).
"""

from __future__ import annotations

from aggml.dtype import DType
from aggml.ops._common import F16, F32, all_tensors, gaps, mismatch, refuse_type, wider
from aggml.tensor import Tensor, new_node

__all__ = ["out_prod"]

_NEVER = (DType.Q8_1, DType.Q8_K)


def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """The sum over k of column k of ``a`` times column k of ``b`` (``ggml_out_prod``).

    Args:
        a: [m, k, x, y] of f32, f16 or a quantized type, rows without gaps, not transposed.
        b: f32 [n, k, x * r, y * s] of any strides; r and s are 1 unless ``a`` is f32.

    Returns:
        f32 [m, n, x * r, y * s]; plane (i, j) is computed with plane (i // r, j // s) of ``a``.

    Raises:
        LayoutMismatch: extents do not fit, ``a`` is transposed, or its rows have gaps.
        Unsupported: other types, or an ``a`` of another type than f32 that is repeated.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("out_prod", a=a, b=b)
    m, k, x, y = a.ne
    n, kb, bx, by = b.ne
    if k != kb:
        raise mismatch("out_prod", f"ne[1] of a and b differ, {k} and {kb}", a=a, b=b)
    if (bx % x if x else bx) or (by % y if y else by):
        raise mismatch("out_prod", "ne[2], ne[3] of b must be multiples of those of a", a=a, b=b)
    if a.nb[0] > a.nb[1]:
        raise mismatch("out_prod", "a is transposed: pass the original, or ops.cont(a)", a=a, b=b)
    known = a.dtype in (F32, F16) or (a.dtype.is_quantized and a.dtype not in _NEVER)
    if not known or b.dtype is not F32 or (a.dtype is not F32 and (x, y) != (bx, by)):
        raise refuse_type(
            "out_prod",
            "b of f32, and a of f32, f16 or a quantized type; an a that repeats must be f32",
            a=a,
            b=b,
        )
    if a.nb[0] != a.dtype.type_size:
        raise gaps("out_prod", a=a, b=b)
    return new_node("out_prod", F32, (m, n, bx, by), (a, b), ndim=wider(a, b, 2))
