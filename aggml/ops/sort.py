"""The order of the elements of rows: argsort, and the largest ones alone.

Here: shapes, types, checks. Not here: kernels (native/lower/sort.c), which put equal elements in
the order of their indices and NaN last.
"""

from __future__ import annotations

import enum
import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F32,
    I32,
    all_tensors,
    by_name,
    member,
    mismatch,
    pack,
    refuse_type,
    view_of,
    whole,
)
from aggml.tensor import NO_PARAMS, Tensor, new_node

__all__ = ["SortOrder", "argsort", "argsort_top_k", "top_k"]


class SortOrder(enum.IntEnum):
    """Which elements come first (enum ``ggml_sort_order``)."""

    ASC = 0
    DESC = 1


_ORDERS = by_name(SortOrder)
_ORDER = struct.Struct("<i60x")


def _check(op: str, a: Tensor) -> None:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    if a.ne[0] > 0x7FFFFFFF:
        raise mismatch(op, "a row must have less than 2^31 elements", a=a)


def _k(op: str, a: Tensor, k: int) -> int:
    (k,) = whole(op, k)
    if k < 0:
        raise InvalidArgument(f"[{op}] k = {k} is negative")
    if k > a.ne[0]:
        raise mismatch(op, f"rows have fewer than k = {k} elements", a=a)
    return k


def argsort(a: Tensor, order: SortOrder | str | int = SortOrder.ASC) -> Tensor:
    """The indices of the elements of each row in order (``ggml_argsort``).

    Args:
        a: f32 [n, r, s, t] of any strides.
        order: "asc" or "desc"; member, value or lower-case name.

    Returns:
        i32 [n, r, s, t].

    Raises:
        InvalidArgument: no such order.
        Unsupported: ``a`` is not f32.
    """
    _check("argsort", a)
    found = member("argsort", "order", order, _ORDERS)
    return new_node("argsort", I32, a.ne, (a,), pack("argsort", _ORDER, found))


def argsort_top_k(a: Tensor, k: int) -> Tensor:
    """The indices of the ``k`` largest elements of each row, the largest first.

    A view of the first ``k`` of a descending `argsort` (``ggml_argsort_top_k``).

    Args:
        a: f32 [n, r, s, t] of any strides.
        k: 0 to n.

    Returns:
        i32 [k, r, s, t], a view.

    Raises:
        InvalidArgument: ``k`` is negative.
        LayoutMismatch: ``k`` is more than a row has.
        Unsupported: ``a`` is not f32.
    """
    _check("argsort_top_k", a)
    k = _k("argsort_top_k", a, k)
    order = argsort(a, SortOrder.DESC)
    return view_of("argsort_top_k", order, (k, *a.ne[1:]), order.nb, 0, a.ndim)


def top_k(a: Tensor, k: int) -> Tensor:
    """The indices of the ``k`` largest elements of each row (``ggml_top_k``).

    ggml leaves their order open; here the largest comes first.

    Args:
        a: f32 [n, r, s, t] of any strides.
        k: 0 to n.

    Returns:
        i32 [k, r, s, t].

    Raises:
        InvalidArgument: ``k`` is negative.
        LayoutMismatch: ``k`` is more than a row has.
        Unsupported: ``a`` is not f32.
    """
    _check("top_k", a)
    k = _k("top_k", a, k)
    return new_node("top_k", I32, (k, *a.ne[1:]), (a,), NO_PARAMS)
