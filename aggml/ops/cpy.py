"""Copies: cpy into a tensor, cast to a type, cont and dup into fresh memory.

Here: shapes, types, checks. Not here: kernels (native/*/cpy.c).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aggml.dtype import DType, DTypeLike
from aggml.ops._common import (
    F32,
    FLOATS,
    I32,
    READ_ONLY,
    all_tensors,
    mismatch,
    need_rows,
    refuse_type,
    suffix,
    whole,
)
from aggml.tensor import ONES, Tensor, new_node, new_view

if TYPE_CHECKING:
    from aggml.tensor import Extents

__all__ = ["cast", "cont", "cont_1d", "cont_2d", "cont_3d", "cont_4d", "cpy", "dup", "dup_inplace"]


def _converts(a: DType, b: DType) -> bool:
    """Whether elements of type ``a`` can be written as elements of type ``b``."""
    if a is b:
        return True
    if a in FLOATS:
        return b in FLOATS or (b.is_quantized and b not in READ_ONLY) or (a is F32 and b is I32)
    return b is F32 and (a is I32 or a.is_quantized)


def cpy(a: Tensor, b: Tensor) -> Tensor:
    """Write the elements of ``a``, in logical order, over those of ``b`` (``ggml_cpy``).

    Args:
        a: any layout. Rows of quantized types have no gaps.
        b: as many elements. f32, f16 and bf16 convert to each other and to quantized types,
            quantized types to f32, f32 to i32 and back; equal types are copied.

    Returns:
        A view of ``b``. Later nodes have to read this view to see the copied elements.

    Raises:
        LayoutMismatch: the numbers of elements differ, or rows of blocks have gaps.
        Unsupported: a pair of types for which there is no conversion.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("cpy", a=a, b=b)
    if a.ne != b.ne and math.prod(a.ne) != math.prod(b.ne):
        raise mismatch(
            "cpy",
            f"a has {a.nelements} elements, b {b.nelements}: they must have equally many",
            a=a,
            b=b,
        )
    _check_types("cpy", a, b.dtype)
    if b.dtype.is_quantized:
        need_rows("cpy", "b", b)
    name = ""
    if a.name:
        name = f"{a.name} (copy of {b.name})" if b.name else f"{a.name} (copy)"
    return new_view("cpy", b, b.ne, b.nb, 0, (a, b), name=name)


def _check_types(op: str, a: Tensor, dtype: DType) -> None:
    if a.dtype is not dtype and not _converts(a.dtype, dtype):
        raise refuse_type(
            f"{op} to {dtype}",
            "floats to floats and to types with a quantizer, i32 and quantized types to f32, f32 "
            "to i32",
            a=a,
        )
    if a.dtype.is_quantized:
        need_rows(op, "a", a)


def cast(a: Tensor, type: DTypeLike) -> Tensor:  # noqa: A002 - ggml's name
    """Copy ``a`` into a new tensor of type ``type`` (``ggml_cast``); conversions as for `cpy`.

    Returns:
        A new contiguous tensor of the extents of ``a``.

    Raises:
        InvalidArgument: no such type, or rows are no whole number of its blocks.
        LayoutMismatch: rows of blocks have gaps.
        Unsupported: no such conversion.
    """
    if a.__class__ is not Tensor:
        all_tensors("cast", a=a)
    dtype = DType.parse(type)
    _check_types("cast", a, dtype)
    # ggml also lists the node among its own sources; nothing needs that here.
    return new_node("cpy", dtype, a.ne, (a,), name=suffix(a, "copy"))


def cont(a: Tensor) -> Tensor:
    """Copy ``a`` into a new contiguous tensor (``ggml_cont``).

    Args:
        a: any type and layout. Rows of quantized types have no gaps.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        LayoutMismatch: rows of blocks have gaps.
    """
    if a.__class__ is not Tensor:
        all_tensors("cont", a=a)
    return _cont("cont", a, a.ne, a.ndim)


def _cont(op: str, a: Tensor, ne: Extents, ndim: int) -> Tensor:
    if a.dtype.is_quantized:
        need_rows(op, "a", a)
    return new_node("cont", a.dtype, ne, (a,), name=suffix(a, "cont"), ndim=ndim)


def _cont_n(op: str, a: Tensor, *ne: int) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    n0, n1, n2, n3 = whole(op, *ne, *ONES[len(ne)])
    if min(n0, n1, n2, n3) < 0 or n0 * n1 * n2 * n3 != math.prod(a.ne):
        raise mismatch(
            op, f"[{n0}, {n1}, {n2}, {n3}] does not have the {a.nelements} elements of a", a=a
        )
    return _cont(op, a, (n0, n1, n2, n3), len(ne))


def cont_1d(a: Tensor, ne0: int) -> Tensor:
    """`cont` with extents [ne0], elements in the same order (``ggml_cont_1d``)."""
    return _cont_n("cont_1d", a, ne0)


def cont_2d(a: Tensor, ne0: int, ne1: int) -> Tensor:
    """`cont` with extents [ne0, ne1], elements in the same order (``ggml_cont_2d``)."""
    return _cont_n("cont_2d", a, ne0, ne1)


def cont_3d(a: Tensor, ne0: int, ne1: int, ne2: int) -> Tensor:
    """`cont` with extents [ne0, ne1, ne2], elements in the same order (``ggml_cont_3d``)."""
    return _cont_n("cont_3d", a, ne0, ne1, ne2)


def cont_4d(a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int) -> Tensor:
    """`cont` with extents [ne0, ne1, ne2, ne3], elements in the same order (``ggml_cont_4d``).

    Raises:
        LayoutMismatch: not the number of elements of ``a``, or rows of blocks have gaps.
    """
    return _cont_n("cont_4d", a, ne0, ne1, ne2, ne3)


def dup(a: Tensor) -> Tensor:
    """Copy ``a`` into a new contiguous tensor (``ggml_dup``); otherwise like `cont`."""
    if a.__class__ is not Tensor:
        all_tensors("dup", a=a)
    if a.dtype.is_quantized:
        need_rows("dup", "a", a)
    return new_node("dup", a.dtype, a.ne, (a,))


def dup_inplace(a: Tensor) -> Tensor:
    """`dup` in place: a view of ``a`` that is a node of its own (``ggml_dup_inplace``)."""
    if a.__class__ is not Tensor:
        all_tensors("dup_inplace", a=a)
    if a.dtype.is_quantized:
        need_rows("dup_inplace", "a", a)
    return new_view("dup", a, a.ne, a.nb, 0, (a,), name=suffix(a, "view"))
