"""Rows by index: get_rows reads them, set_rows writes them.

Here: shapes, types, checks. Not here: kernels (native/*/rows.c), which check the indices.
"""

from __future__ import annotations

from aggml.ops._common import (
    F32,
    FLOATS,
    HALF_OR_SINGLE,
    I32,
    I64,
    READ_ONLY,
    all_tensors,
    mismatch,
    need_rows,
    refuse_type,
    suffix,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = ["get_rows", "set_rows"]


def get_rows(a: Tensor, b: Tensor) -> Tensor:
    """Copy rows of ``a`` out, in the order of the indices ``b`` (``ggml_get_rows``).

    Args:
        a: [n, rows, s, t] of any float or quantized type or i32, rows without gaps.
        b: i32 [r, s, t] of indices into dimension 1. One out of range fails the computation.

    Returns:
        [n, r, s, t] of f32, or i32 if that is the type of ``a``.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("get_rows", a=a, b=b)
    if b.dtype is not I32:
        raise refuse_type("get_rows", "b of i32", a=a, b=b)
    dtype = a.dtype
    if not (dtype in FLOATS or dtype is I32 or dtype.is_quantized):
        raise refuse_type("get_rows", "a of f32, f16, bf16, i32 or a quantized type", a=a, b=b)
    n0, _, n2, n3 = a.ne
    m0, m1, m2, m3 = b.ne
    if m1 != n2 or m2 != n3 or m3 != 1:
        raise mismatch("get_rows", "b [r, s, t] does not fit a [n, rows, s, t]", a=a, b=b)
    need_rows("get_rows", "a", a)
    return new_node("get_rows", I32 if dtype is I32 else F32, (n0, m0, m1, m2), (a, b))


def set_rows(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Write the rows of ``b`` into ``a``, at the indices ``c`` (``ggml_set_rows``).

    Args:
        a: [n, rows, s, t] of any float or quantized type that can be written, or i32 (what is
            written is truncated), rows without gaps.
        b: f32 or f16 [n, r, s, t], rows without gaps.
        c: i64 or i32 [r, divides s, divides t] of indices into dimension 1 of ``a``. One out of
            range fails the computation before anything is written. If one occurs twice, either row
            may win.

    Returns:
        A view of ``a``. Later nodes have to read this view to see the new rows.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor or c.__class__ is not Tensor:
        all_tensors("set_rows", a=a, b=b, c=c)
    if b.dtype not in HALF_OR_SINGLE or (c.dtype is not I64 and c.dtype is not I32):
        raise refuse_type("set_rows", "b of f32 or f16, c of i64 or i32", a=a, b=b, c=c)
    dtype = a.dtype
    if not (dtype in FLOATS or dtype is I32 or dtype.is_quantized) or dtype in READ_ONLY:
        raise refuse_type(
            "set_rows", "a of f32, f16, bf16, i32 or a type with a quantizer", a=a, b=b, c=c
        )
    n0, _, n2, n3 = a.ne
    m0, m1, m2, m3 = b.ne
    i0, i1, i2, i3 = c.ne
    if m0 != n0 or m2 != n2 or m3 != n3:
        raise mismatch("set_rows", "b [n, r, s, t] does not fit a [n, rows, s, t]", a=a, b=b)
    if i0 != m1 or i3 != 1 or (m2 % i1 if i1 else m2) or (m3 % i2 if i2 else m3):
        raise mismatch("set_rows", "c must have one index for each row of b", b=b, c=c)
    need_rows("set_rows", "a", a)
    need_rows("set_rows", "b", b)
    return new_view("set_rows", a, a.ne, a.nb, 0, (b, c, a), name=suffix(a, "view"))
