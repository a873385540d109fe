"""Padding and rotation of elements: pad in its variants, pad_reflect_1d, roll.

Here: shapes, types, checks. Not here: kernels (native/*/shape_pad.c).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import F32, all_tensors, gaps, mismatch, need_dense, pack, refuse_type, whole
from aggml.tensor import Tensor, new_node

__all__ = ["pad", "pad_circular", "pad_ext", "pad_ext_circular", "pad_reflect_1d", "roll"]

_PAD = struct.Struct("<9i28x")
_ENDS = struct.Struct("<2i56x")
_SHIFTS = struct.Struct("<4i48x")


def _check(op: str, a: Tensor) -> None:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)


def _pad(op: str, a: Tensor, ends: tuple[int, ...], circular: bool) -> Tensor:
    _check(op, a)
    amounts = whole(op, *ends)
    n0, n1, n2, n3 = (n + amounts[2 * i] + amounts[2 * i + 1] for i, n in enumerate(a.ne))
    if min(n0, n1, n2, n3) < 0:
        raise InvalidArgument(f"[{op}] the result would have the extents {[n0, n1, n2, n3]}")
    if circular and a.is_empty and 0 not in (n0, n1, n2, n3):
        raise mismatch(op, "a is empty, so circular padding has nothing to repeat", a=a)
    params = pack(op, _PAD, *amounts, circular)
    return new_node("pad", F32, (n0, n1, n2, n3), (a,), params)


def pad(a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """`pad_ext` with ``p0`` to ``p3`` zeros at the ends of the dimensions only (``ggml_pad``)."""
    return _pad("pad", a, (0, p0, 0, p1, 0, p2, 0, p3), False)


def pad_circular(a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """`pad_ext_circular` by ``p0`` to ``p3``, at the ends only (``ggml_pad_circular``)."""
    return _pad("pad_circular", a, (0, p0, 0, p1, 0, p2, 0, p3), True)


def pad_ext(
    a: Tensor, lp0: int, rp0: int, lp1: int, rp1: int, lp2: int, rp2: int, lp3: int, rp3: int
) -> Tensor:
    """Add zeros before and after each dimension (``ggml_pad_ext``).

    Args:
        a: f32, any strides.
        lp0: zeros before dimension 0; a negative number cuts off.
        rp0: zeros after it.
        lp1: likewise for dimension 1.
        rp1: and after it.
        lp2: likewise for dimension 2.
        rp2: and after it.
        lp3: likewise for dimension 3.
        rp3: and after it.

    Returns:
        A new f32 tensor, each extent larger by both amounts.

    Raises:
        InvalidArgument: an extent would become negative.
        Unsupported: ``a`` is not f32.
    """
    return _pad("pad_ext", a, (lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3), False)


def pad_ext_circular(
    a: Tensor, lp0: int, rp0: int, lp1: int, rp1: int, lp2: int, rp2: int, lp3: int, rp3: int
) -> Tensor:
    """`pad_ext` with elements of the other end instead of zeros (``ggml_pad_ext_circular``)."""
    return _pad("pad_ext_circular", a, (lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3), True)


def pad_reflect_1d(a: Tensor, p0: int, p1: int) -> Tensor:
    """Continue rows with their mirror image, the end itself not repeated (``ggml_pad_reflect_1d``).

    Args:
        a: f32 [n, r, s, t], contiguous.
        p0: elements before a row, less than n.
        p1: elements after it, less than n.

    Returns:
        f32 [p0 + n + p1, r, s, t].

    Raises:
        InvalidArgument: an amount is negative, or not less than n.
        LayoutMismatch: ``a`` has gaps, or another order.
        Unsupported: ``a`` is not f32.
    """
    op = "pad_reflect_1d"
    _check(op, a)
    need_dense(op, a=a)
    p0, p1 = whole(op, p0, p1)
    if not (0 <= p0 < a.ne[0] and 0 <= p1 < a.ne[0]):
        raise InvalidArgument(f"[{op}] p0 = {p0}, p1 = {p1}: must be within 0..{a.ne[0] - 1}")
    ne = (a.ne[0] + p0 + p1, a.ne[1], a.ne[2], a.ne[3])
    return new_node(op, F32, ne, (a,), pack(op, _ENDS, p0, p1))


def roll(a: Tensor, shift0: int, shift1: int, shift2: int, shift3: int) -> Tensor:
    """Move all elements; those that leave at one end enter at the other (``ggml_roll``).

    Args:
        a: f32, rows without gaps.
        shift0: places towards higher indices of dimension 0, less than its extent either way.
        shift1: likewise for dimension 1.
        shift2: likewise for dimension 2.
        shift3: likewise for dimension 3.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: a shift is not less than the extent.
        LayoutMismatch: the elements of a row do not follow each other.
        Unsupported: ``a`` is not f32.
    """
    op = "roll"
    _check(op, a)
    if a.nb[0] != 4:
        raise gaps(op, a=a)
    shifts = whole(op, shift0, shift1, shift2, shift3)
    if any(abs(shift) >= n for shift, n in zip(shifts, a.ne, strict=True)):
        raise InvalidArgument(
            f"[{op}] shifts {list(shifts)} must be smaller than the extents {list(a.ne)}"
        )
    return new_node(op, F32, a.ne, (a,), pack(op, _SHIFTS, *shifts))
