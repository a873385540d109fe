"""Repeats: repeat, repeat_4d, repeat_back.

Here: shapes, types, checks. Not here: kernels (native/*/shape_repeat.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument
from aggml.ops._common import F32, all_tensors, mismatch, need_rows, refuse_type, whole, wider
from aggml.tensor import Tensor, new_node

if TYPE_CHECKING:
    from aggml.tensor import Extents

__all__ = ["repeat", "repeat_4d", "repeat_back"]


def _fits(small: Extents, large: Extents) -> bool:
    return not any(m % n if n else m for n, m in zip(small, large, strict=True))


def _build(op: str, a: Tensor, ne: Extents, ndim: int) -> Tensor:
    if not _fits(a.ne, ne):
        raise mismatch(op, f"{list(ne)} must be multiples of the extents of a", a=a)
    if a.dtype.is_quantized:
        need_rows(op, "a", a)
    return new_node("repeat", a.dtype, ne, (a,), ndim=ndim)


def repeat(a: Tensor, b: Tensor) -> Tensor:
    """Repeat ``a`` until it has the extents of ``b`` (``ggml_repeat``).

    Args:
        a: any type, any strides; rows of blocks without gaps.
        b: extents that are multiples of those of ``a``; nothing else of ``b`` is used.

    Returns:
        A new tensor of the type of ``a``.

    Raises:
        LayoutMismatch: an extent is no multiple, or rows of blocks have gaps.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("repeat", a=a, b=b)
    return _build("repeat", a, b.ne, wider(a, b))


def repeat_4d(a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int) -> Tensor:
    """`repeat` to the extents [ne0, ne1, ne2, ne3] (``ggml_repeat_4d``).

    Raises:
        InvalidArgument: a negative extent.
        LayoutMismatch: as for `repeat`.
    """
    if a.__class__ is not Tensor:
        all_tensors("repeat_4d", a=a)
    n0, n1, n2, n3 = whole("repeat_4d", ne0, ne1, ne2, ne3)
    if min(n0, n1, n2, n3) < 0:
        raise InvalidArgument(f"[repeat_4d] ne = {[n0, n1, n2, n3]} has a negative extent")
    return _build("repeat_4d", a, (n0, n1, n2, n3), 4)


def repeat_back(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of `repeat`: add up the elements that were made of one (``ggml_repeat_back``).

    Args:
        a: f32, any strides.
        b: extents of which those of ``a`` are multiples; nothing else of ``b`` is used.

    Returns:
        f32 of the extents of ``b``.

    Raises:
        LayoutMismatch: an extent of ``a`` is no multiple.
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("repeat_back", a=a, b=b)
    if a.dtype is not F32:
        raise refuse_type("repeat_back", "a of f32", a=a)
    if not _fits(b.ne, a.ne):
        raise mismatch("repeat_back", "extents of a must be multiples of those of b", a=a, b=b)
    return new_node("repeat_back", F32, b.ne, (a,), ndim=b.ndim)
