"""Gated units: an activation of one half of each row, times the other half; or of two tensors.

Here: shapes, types, checks. Not here: kernels (native/*/glu.c).
"""

from __future__ import annotations

import enum
import struct

from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    all_tensors,
    by_name,
    gaps,
    mismatch,
    no_member,
    pack,
    refuse_type,
    wider,
)
from aggml.tensor import Tensor, new_node

__all__ = [
    "GluOp",
    "geglu",
    "geglu_erf",
    "geglu_erf_split",
    "geglu_erf_swapped",
    "geglu_quick",
    "geglu_quick_split",
    "geglu_quick_swapped",
    "geglu_split",
    "geglu_swapped",
    "glu",
    "glu_split",
    "reglu",
    "reglu_split",
    "reglu_swapped",
    "swiglu",
    "swiglu_oai",
    "swiglu_split",
    "swiglu_swapped",
]


class GluOp(enum.IntEnum):
    """The gates of `glu` (enum ``ggml_glu_op``): relu, gelu, silu, gelu by erf, quick gelu.

    SWIGLU_OAI has parameters and a function of its own, `swiglu_oai`.
    """

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    SWIGLU_OAI = 3
    GEGLU_ERF = 4
    GEGLU_QUICK = 5


_OPS: dict[object, GluOp] = {
    key: member for key, member in by_name(GluOp).items() if member is not GluOp.SWIGLU_OAI
}
_PARAMS = struct.Struct("<2i56x")
# By gate and order of the halves: name and parameters of the node.
_NODES = {
    (member, swapped): (member.name.lower(), pack("glu", _PARAMS, member, swapped))
    for member in _OPS.values()
    for swapped in (False, True)
}
_REGLU, _GEGLU, _SWIGLU, _SWIGLU_OAI, _GEGLU_ERF, _GEGLU_QUICK = GluOp
_OAI = struct.Struct("<2i2f48x")


def _build(a: Tensor, b: Tensor | None, kind: GluOp, swapped: bool) -> Tensor:
    op, params = _NODES[kind, swapped]
    return _gate(op, params, a, b)


def _gate(op: str, params: bytes, a: Tensor, b: Tensor | None) -> Tensor:
    if a.__class__ is not Tensor or (b is not None and b.__class__ is not Tensor):
        all_tensors(op, a=a, b=b)
    if a.dtype not in HALF_OR_SINGLE:
        raise refuse_type(op, "f32 or f16", a=a)
    if not a.is_contiguous_n(1):
        raise gaps(op, a=a)
    if b is None:
        n0, n1, n2, n3 = a.ne
        if n0 % 2:  # ggml lets its last element be in neither half
            raise mismatch(
                op, f"ne[0] = {n0} is odd, so a row has no halves: give an even number", a=a
            )
        return new_node(op, a.dtype, (n0 // 2, n1, n2, n3), (a,), params)
    if a.ne != b.ne or a.dtype is not b.dtype:
        raise mismatch(op, "a and b must have the same type and extents", a=a, b=b)
    if not b.is_contiguous_n(1):
        raise gaps(op, b=b)
    return new_node(op, a.dtype, a.ne, (a, b), params, ndim=wider(a, b))


def glu(a: Tensor, op: GluOp | str | int, swapped: bool = False) -> Tensor:
    """Activate one half of each row and multiply it by the other half (``ggml_glu``).

    Args:
        a: [2 n, r, s, t] f32 or f16, rows without gaps, all at one distance. The first half is
            activated.
        op: which gate; member, value or lower-case name.
        swapped: activate the second half instead.

    Returns:
        [n, r, s, t] of the type of ``a``.

    Raises:
        InvalidArgument: no such gate.
        LayoutMismatch: ``ne[0]`` is odd, or the strides do not fit.
        Unsupported: the type of ``a``.
    """
    found = _OPS.get(op)
    if found is None:
        no_member("glu", "op", op, _OPS)
    return _build(a, None, found, bool(swapped))


def glu_split(a: Tensor, b: Tensor, op: GluOp | str | int) -> Tensor:
    """Activate each element of ``a`` and multiply it by that of ``b`` (``ggml_glu_split``).

    Args:
        a: [n, r, s, t] f32 or f16, rows without gaps, all at one distance.
        b: the same type and extents.
        op: which gate; member, value or lower-case name.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: no such gate.
        LayoutMismatch: types, extents or strides do not fit.
        Unsupported: the type of ``a``.
    """
    found = _OPS.get(op)
    if found is None:
        no_member("glu_split", "op", op, _OPS)
    if b is None:
        all_tensors("glu_split", a=a, b=b)
    return _build(a, b, found, False)


def reglu(a: Tensor) -> Tensor:
    """`glu` with relu of the first half (``ggml_reglu``)."""
    return _build(a, None, _REGLU, False)


def reglu_swapped(a: Tensor) -> Tensor:
    """`glu` with relu of the second half (``ggml_reglu_swapped``)."""
    return _build(a, None, _REGLU, True)


def reglu_split(a: Tensor, b: Tensor) -> Tensor:
    """`glu_split` with relu of ``a`` (``ggml_reglu_split``)."""
    if b is None:
        all_tensors("reglu_split", a=a, b=b)
    return _build(a, b, _REGLU, False)


def geglu(a: Tensor) -> Tensor:
    """`glu` with gelu (tanh formula) of the first half (``ggml_geglu``)."""
    return _build(a, None, _GEGLU, False)


def geglu_swapped(a: Tensor) -> Tensor:
    """`glu` with gelu (tanh formula) of the second half (``ggml_geglu_swapped``)."""
    return _build(a, None, _GEGLU, True)


def geglu_split(a: Tensor, b: Tensor) -> Tensor:
    """`glu_split` with gelu (tanh formula) of ``a`` (``ggml_geglu_split``)."""
    if b is None:
        all_tensors("geglu_split", a=a, b=b)
    return _build(a, b, _GEGLU, False)


def swiglu(a: Tensor) -> Tensor:
    """`glu` with silu of the first half (``ggml_swiglu``)."""
    return _build(a, None, _SWIGLU, False)


def swiglu_swapped(a: Tensor) -> Tensor:
    """`glu` with silu of the second half (``ggml_swiglu_swapped``)."""
    return _build(a, None, _SWIGLU, True)


def swiglu_split(a: Tensor, b: Tensor) -> Tensor:
    """`glu_split` with silu of ``a`` (``ggml_swiglu_split``)."""
    if b is None:
        all_tensors("swiglu_split", a=a, b=b)
    return _build(a, b, _SWIGLU, False)


def geglu_erf(a: Tensor) -> Tensor:
    """`glu` with gelu (error function) of the first half (``ggml_geglu_erf``)."""
    return _build(a, None, _GEGLU_ERF, False)


def geglu_erf_swapped(a: Tensor) -> Tensor:
    """`glu` with gelu (error function) of the second half (``ggml_geglu_erf_swapped``)."""
    return _build(a, None, _GEGLU_ERF, True)


def geglu_erf_split(a: Tensor, b: Tensor) -> Tensor:
    """`glu_split` with gelu (error function) of ``a`` (``ggml_geglu_erf_split``)."""
    if b is None:
        all_tensors("geglu_erf_split", a=a, b=b)
    return _build(a, b, _GEGLU_ERF, False)


def geglu_quick(a: Tensor) -> Tensor:
    """`glu` with quick gelu of the first half (``ggml_geglu_quick``)."""
    return _build(a, None, _GEGLU_QUICK, False)


def geglu_quick_swapped(a: Tensor) -> Tensor:
    """`glu` with quick gelu of the second half (``ggml_geglu_quick_swapped``)."""
    return _build(a, None, _GEGLU_QUICK, True)


def geglu_quick_split(a: Tensor, b: Tensor) -> Tensor:
    """`glu_split` with quick gelu of ``a`` (``ggml_geglu_quick_split``)."""
    if b is None:
        all_tensors("geglu_quick_split", a=a, b=b)
    return _build(a, b, _GEGLU_QUICK, False)


def swiglu_oai(a: Tensor, b: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """``x sigmoid(alpha x) (y + 1)`` of x of ``a`` and y of ``b`` (``ggml_swiglu_oai``).

    Before that, x is limited to at most ``limit``, and y to between ``-limit`` and ``limit``.

    Args:
        a: [n, r, s, t] f32, rows without gaps, all at one distance.
        b: the same type and extents.
        alpha: steepness of the sigmoid.
        limit: not negative.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: a number that f32 cannot hold.
        LayoutMismatch: types, extents or strides do not fit.
        Unsupported: the type of ``a``.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("swiglu_oai", a=a, b=b)
    if a.dtype is not F32:
        raise refuse_type("swiglu_oai", "f32", a=a, b=b)
    params = pack("swiglu_oai", _OAI, _SWIGLU_OAI, 0, alpha, limit)
    return _gate("swiglu_oai", params, a, b)
