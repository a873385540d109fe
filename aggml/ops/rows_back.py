"""The gradient of get_rows: get_rows_back.

Here: shapes, types, checks. Not here: kernels (native/*/rows_back.c), which check the indices.
"""

from __future__ import annotations

from aggml.ops._common import F32, HALF_OR_SINGLE, I32, all_tensors, mismatch, refuse_type
from aggml.tensor import Tensor, new_node

__all__ = ["get_rows_back"]


def get_rows_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The gradient of `get_rows`: add each row to the row it came from (``ggml_get_rows_back``).

    Args:
        a: f32 or f16 [n, r], the gradient of the rows, any strides.
        b: i32 [r], their indices. One out of range fails the computation.
        c: [n, rows], the operand of `get_rows`; only its extents are used.

    Returns:
        f32 of the extents of ``c``.

    Raises:
        LayoutMismatch: extents that do not fit.
        Unsupported: other types.
    """
    op = "get_rows_back"
    if a.__class__ is not Tensor or b.__class__ is not Tensor or c.__class__ is not Tensor:
        all_tensors(op, a=a, b=b, c=c)
    if a.dtype not in HALF_OR_SINGLE or b.dtype is not I32:
        raise refuse_type(op, "a of f32 or f16, b of i32", a=a, b=b)
    if not a.is_matrix or not c.is_matrix or a.ne[0] != c.ne[0] or b.ne != (a.ne[1], 1, 1, 1):
        raise mismatch(op, "a [n, r], b [r] and c [n, rows] do not fit", a=a, b=b, c=c)
    return new_node(op, F32, c.ne, (a, b), ndim=c.ndim)
