"""Gated units: an activation of one half of each row, times the other half; or of two tensors.

Here: shapes, types, checks. Not here: kernels (native/*/glu.c).
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Protocol

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    all_tensors,
    by_name,
    gaps,
    member,
    mismatch,
    pack,
    refuse_type,
    rename_builder,
    wider,
)
from aggml.tensor import Tensor, new_node

if TYPE_CHECKING:
    from aggml.ops._unary import Unary

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
    "swiglu_clamp",
    "swiglu_oai",
    "swiglu_split",
    "swiglu_swapped",
]


class GluOp(enum.IntEnum):
    """The gates of `glu` (enum ``ggml_glu_op``): relu, gelu, silu, gelu by erf, quick gelu.

    SWIGLU_OAI and SWIGLU_CLAMP have parameters, and functions of their own: `swiglu_oai` and
    `swiglu_clamp`.
    """

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    SWIGLU_OAI = 3
    GEGLU_ERF = 4
    GEGLU_QUICK = 5
    SWIGLU_CLAMP = 6


_WITH_PARAMS = (GluOp.SWIGLU_OAI, GluOp.SWIGLU_CLAMP)
_OPS: dict[object, GluOp] = {
    key: member for key, member in by_name(GluOp).items() if member not in _WITH_PARAMS
}
_PARAMS = struct.Struct("<2i56x")
# By gate and order of the halves: name and parameters of the node.
_NODES = {
    (member, swapped): (member.name.lower(), pack("glu", _PARAMS, member, swapped))
    for member in _OPS.values()
    for swapped in (False, True)
}
_REGLU, _GEGLU, _SWIGLU, _SWIGLU_OAI, _GEGLU_ERF, _GEGLU_QUICK, _SWIGLU_CLAMP = GluOp
_LIMITED = struct.Struct("<2i2f48x")


class _OfTwo(Protocol):
    def __call__(self, a: Tensor, b: Tensor) -> Tensor: ...


def _build(a: Tensor, b: Tensor | None, gate: GluOp, swapped: bool) -> Tensor:
    op, params = _NODES[gate, swapped]
    return _gate(op, params, a, b)


def _gate(op: str, params: bytes, a: Tensor, b: Tensor | None) -> Tensor:
    if a.__class__ is not Tensor or (b is not None and b.__class__ is not Tensor):
        all_tensors(op, **_find_operands(a, b))
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


def _find_operands(a: Tensor, b: Tensor | None) -> dict[str, Tensor]:
    return {"a": a} if b is None else {"a": a, "b": b}


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
    found = member("glu", "op", op, _OPS)
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
    found = member("glu_split", "op", op, _OPS)
    if b is None:
        all_tensors("glu_split", a=a, b=b)
    return _build(a, b, found, False)


def _swap_halves(gate: GluOp, what: str) -> Unary:
    name = gate.name.lower()

    def build(a: Tensor) -> Tensor:
        return _build(a, None, gate, True)

    told = f"`glu` with {what} of the second half (``ggml_{name}_swapped``)."
    return rename_builder(build, __name__, f"{name}_swapped", told)


def _split(gate: GluOp, what: str) -> _OfTwo:
    name = gate.name.lower()

    def build(a: Tensor, b: Tensor) -> Tensor:
        if b is None:
            all_tensors(f"{name}_split", a=a, b=b)
        return _build(a, b, gate, False)

    told = f"`glu_split` with {what} of ``a`` (``ggml_{name}_split``)."
    return rename_builder(build, __name__, f"{name}_split", told)


def reglu(a: Tensor) -> Tensor:
    """`glu` with relu of the first half (``ggml_reglu``)."""
    return _build(a, None, _REGLU, False)


def geglu(a: Tensor) -> Tensor:
    """`glu` with gelu (tanh formula) of the first half (``ggml_geglu``)."""
    return _build(a, None, _GEGLU, False)


def swiglu(a: Tensor) -> Tensor:
    """`glu` with silu of the first half (``ggml_swiglu``)."""
    return _build(a, None, _SWIGLU, False)


def geglu_erf(a: Tensor) -> Tensor:
    """`glu` with gelu (error function) of the first half (``ggml_geglu_erf``)."""
    return _build(a, None, _GEGLU_ERF, False)


def geglu_quick(a: Tensor) -> Tensor:
    """`glu` with quick gelu of the first half (``ggml_geglu_quick``)."""
    return _build(a, None, _GEGLU_QUICK, False)


def swiglu_oai(
    a: Tensor, b: Tensor | None = None, alpha: float = 1.702, limit: float = 7.0
) -> Tensor:
    """``x sigmoid(alpha x) (y + 1)`` of x of ``a`` and y of ``b`` (``ggml_swiglu_oai``).

    Before that, x is limited to at most ``limit``, and y to between ``-limit`` and ``limit``. NaN
    stays NaN.

    Args:
        a: [n, r, s, t] f32, rows without gaps, all at one distance.
        b: the same type and extents; None: ``a`` is [2 n, r, s, t], and y is the second half of
            each row.
        alpha: steepness of the sigmoid.
        limit: not negative.

    Returns:
        A new f32 tensor of [n, r, s, t].

    Raises:
        InvalidArgument: a number that f32 cannot hold; a limit that is negative or NaN.
        LayoutMismatch: types, extents or strides do not fit.
        Unsupported: the type of ``a``.
    """
    if a.__class__ is not Tensor or (b is not None and b.__class__ is not Tensor):
        all_tensors("swiglu_oai", **_find_operands(a, b))
    if a.dtype is not F32:
        raise refuse_type("swiglu_oai", "f32", **_find_operands(a, b))
    params = pack("swiglu_oai", _LIMITED, _SWIGLU_OAI, 0, alpha, limit)
    _need_limit("swiglu_oai", limit)
    return _gate("swiglu_oai", params, a, b)


def swiglu_clamp(a: Tensor, b: Tensor | None = None, limit: float = 7.0) -> Tensor:
    """``x sigmoid(x) y`` of x of ``a`` and y of ``b``, both limited (``ggml_swiglu_clamp``).

    Before that, x is limited to at most ``limit``, and y to between ``-limit`` and ``limit``. NaN
    stays NaN.

    Args:
        a: [n, r, s, t] f32 or f16, rows without gaps, all at one distance.
        b: the same type and extents; None: ``a`` is [2 n, r, s, t], and y is the second half of
            each row.
        limit: not negative.

    Returns:
        A new tensor of [n, r, s, t], of the type of ``a``.

    Raises:
        InvalidArgument: a number that f32 cannot hold; a limit that is negative or NaN.
        LayoutMismatch: types, extents or strides do not fit.
        Unsupported: the type of ``a``.
    """
    params = pack("swiglu_clamp", _LIMITED, _SWIGLU_CLAMP, 0, 0.0, limit)
    _need_limit("swiglu_clamp", limit)
    return _gate("swiglu_clamp", params, a, b)


def _need_limit(op: str, limit: float) -> None:
    """Between -limit and limit there is no number if limit is negative or NaN."""
    if not limit >= 0:
        raise InvalidArgument(f"[{op}] limit = {limit}: must be at least 0")


reglu_swapped: Unary = _swap_halves(_REGLU, "relu")
reglu_split: _OfTwo = _split(_REGLU, "relu")
geglu_swapped: Unary = _swap_halves(_GEGLU, "gelu (tanh formula)")
geglu_split: _OfTwo = _split(_GEGLU, "gelu (tanh formula)")
swiglu_swapped: Unary = _swap_halves(_SWIGLU, "silu")
swiglu_split: _OfTwo = _split(_SWIGLU, "silu")
geglu_erf_swapped: Unary = _swap_halves(_GEGLU_ERF, "gelu (error function)")
geglu_erf_split: _OfTwo = _split(_GEGLU_ERF, "gelu (error function)")
geglu_quick_swapped: Unary = _swap_halves(_GEGLU_QUICK, "quick gelu")
geglu_quick_split: _OfTwo = _split(_GEGLU_QUICK, "quick gelu")
