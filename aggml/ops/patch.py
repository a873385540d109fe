"""Writes a tensor into a part of another one, or adds it there: set, acc.

Here: shapes, types, checks. Not here: kernels (native/lower/patch.c).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument, Misaligned, OutOfBounds
from aggml.ops._common import (
    F32,
    I32,
    all_tensors,
    gaps,
    mismatch,
    pack,
    refuse_type,
    suffix,
    whole,
)
from aggml.tensor import Tensor, describe, new_node, new_view, span

__all__ = [
    "acc",
    "acc_inplace",
    "set",
    "set_1d",
    "set_1d_inplace",
    "set_2d",
    "set_2d_inplace",
    "set_inplace",
]

_PART = struct.Struct("<4q32x")


def _build(  # one place for all checks
    op: str, node: str, a: Tensor, b: Tensor, layout: tuple[object, ...], inplace: bool
) -> Tensor:
    nb1, nb2, nb3, offset = whole(op, *layout)
    if a.dtype is not F32 and (a.dtype is not I32 or node == "acc"):
        raise refuse_type(op, "f32, and i32 for set", a=a, b=b)
    if b.dtype is not a.dtype:
        raise refuse_type(op, "b of the type of a", a=a, b=b)
    if not a.is_contiguous:
        raise gaps(op, a=a, b=b)
    if b.nelements > a.nelements:
        raise mismatch(op, "b has more elements than a", a=a, b=b)
    if min(nb1, nb2, nb3, offset) < 0:
        raise InvalidArgument(f"[{op}] nb {nb1}, {nb2}, {nb3}, offset {offset}: below 0")
    if (nb1 | nb2 | nb3 | offset) % 4:
        raise Misaligned(f"[{op}] nb {nb1}, {nb2}, {nb3}, offset {offset}: not multiples of 4")
    size = span(b.dtype, b.ne, (4, nb1, nb2, nb3))
    if offset + size > a.nbytes:
        raise OutOfBounds(
            f"[{op}] b takes {size} bytes from byte {offset} on, {describe(a)} has {a.nbytes}"
        )
    params = pack(op, _PART, nb1, nb2, nb3, offset)
    if inplace:
        return new_view(node, a, a.ne, a.nb, 0, (a, b), params, suffix(a, "view"))
    return new_node(node, a.dtype, a.ne, (a, b), params)


def acc(a: Tensor, b: Tensor, nb1: int, nb2: int, nb3: int, offset: int) -> Tensor:
    """``a``, with ``b`` added to a part of it (``ggml_acc``).

    Args:
        a: f32 of any extents, contiguous.
        b: f32 with no more elements than ``a``, of any strides.
        nb1: bytes from row to row of the part, which has the extents of ``b``.
        nb2: likewise for dimension 2.
        nb3: likewise for dimension 3.
        offset: bytes from the first element of ``a`` to that of the part.

    Returns:
        A new tensor of the extents of ``a``.

    Raises:
        InvalidArgument: a stride or ``offset`` is negative.
        LayoutMismatch: ``a`` has gaps, or fewer elements than ``b``.
        Misaligned: a stride or ``offset`` is no multiple of 4.
        OutOfBounds: the part ends beyond ``a``.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("acc", a=a, b=b)
    return _build("acc", "acc", a, b, (nb1, nb2, nb3, offset), False)


def acc_inplace(a: Tensor, b: Tensor, nb1: int, nb2: int, nb3: int, offset: int) -> Tensor:
    """`acc` in place: the result overwrites ``a`` (``ggml_acc_inplace``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("acc_inplace", a=a, b=b)
    return _build("acc_inplace", "acc", a, b, (nb1, nb2, nb3, offset), True)


def set(  # noqa: A001 - ggml's name
    a: Tensor, b: Tensor, nb1: int, nb2: int, nb3: int, offset: int
) -> Tensor:
    """``a``, with ``b`` put into a part of it; f32 or i32, else as `acc` (``ggml_set``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("set", a=a, b=b)
    return _build("set", "set", a, b, (nb1, nb2, nb3, offset), False)


def set_inplace(a: Tensor, b: Tensor, nb1: int, nb2: int, nb3: int, offset: int) -> Tensor:
    """`set` in place: the result overwrites ``a`` (``ggml_set_inplace``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("set_inplace", a=a, b=b)
    return _build("set_inplace", "set", a, b, (nb1, nb2, nb3, offset), True)


def set_1d(a: Tensor, b: Tensor, offset: int) -> Tensor:
    """`set` with the strides of ``a`` (``ggml_set_1d``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("set_1d", a=a, b=b)
    return _build("set_1d", "set", a, b, (*a.nb[1:], offset), False)


def set_1d_inplace(a: Tensor, b: Tensor, offset: int) -> Tensor:
    """`set_1d` in place: the result overwrites ``a`` (``ggml_set_1d_inplace``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("set_1d_inplace", a=a, b=b)
    return _build("set_1d_inplace", "set", a, b, (*a.nb[1:], offset), True)


def set_2d(a: Tensor, b: Tensor, nb1: int, offset: int) -> Tensor:
    """`set` with the strides of ``a`` from dimension 2 on (``ggml_set_2d``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("set_2d", a=a, b=b)
    return _build("set_2d", "set", a, b, (nb1, *a.nb[2:], offset), False)


def set_2d_inplace(a: Tensor, b: Tensor, nb1: int, offset: int) -> Tensor:
    """`set_2d` in place: the result overwrites ``a`` (``ggml_set_2d_inplace``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("set_2d_inplace", a=a, b=b)
    return _build("set_2d_inplace", "set", a, b, (nb1, *a.nb[2:], offset), True)
