"""Pooling: pool_1d, pool_2d, pool_2d_back.

Here: shapes, types, checks. Not here: kernels (native/*/conv_pool.c).
"""

from __future__ import annotations

import enum
import math
import struct

from aggml.errors import InvalidArgument, InvalidHandle
from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    all_tensors,
    by_name,
    member,
    mismatch,
    pack,
    refuse_type,
    whole,
)
from aggml.ops._spelling import accept_other_names
from aggml.tensor import Tensor, new_node

__all__ = ["PoolOp", "pool_1d", "pool_2d", "pool_2d_back"]


class PoolOp(enum.IntEnum):
    """What pooling makes of a window: its largest element, or its mean (enum ``ggml_op_pool``)."""

    MAX = 0
    AVG = 1


_POOLS = by_name(PoolOp)
_LINE = struct.Struct("<4i48x")
_PLANE = struct.Struct("<7i36x")


def _places(op: str, n: int, k: int, s: int, p: object) -> int:
    if not isinstance(p, (int, float)) or not math.isfinite(p):
        raise InvalidHandle(f"[{op}] padding {p!r} is no number")
    if k < 1 or s < 1 or p < 0:
        raise InvalidArgument(
            f"[{op}] window {k}, stride {s}, padding {p}: must be >= 1, >= 1, >= 0"
        )
    places = int((n + 2 * p - k) / s + 1)
    if places < 1:
        raise InvalidArgument(f"[{op}] a window of {k} does not fit in {n} elements padded by {p}")
    return places


@accept_other_names
def pool_1d(a: Tensor, op: PoolOp | str | int, k0: int, s0: int, p0: int = 0) -> Tensor:
    """Take the largest element or the mean of each window of a row (``ggml_pool_1d``).

    A mean leaves out the padding. A window without any element gives 0, or -FLT_MAX.

    Args:
        a: f32 or f16 [n, r, s, t], any strides.
        op: "max" or "avg".
        k0: elements of a window.
        s0: stride.
        p0: how far windows reach beyond both ends.

    Returns:
        f32 [(n + 2 p0 - k0) / s0 + 1, r, s, t].

    Raises:
        InvalidArgument: no such op, or a number out of range.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor:
        all_tensors("pool_1d", a=a)
    pool = member("pool_1d", "op", op, _POOLS)
    if a.dtype not in HALF_OR_SINGLE:
        raise refuse_type("pool_1d", "f32 or f16", a=a)
    k0, s0, p0 = whole("pool_1d", k0, s0, p0)
    ne = (_places("pool_1d", a.ne[0], k0, s0, p0), a.ne[1], a.ne[2], a.ne[3])
    return new_node("pool_1d", F32, ne, (a,), pack("pool_1d", _LINE, pool, k0, s0, p0))


@accept_other_names
def pool_2d(
    a: Tensor,
    op: PoolOp | str | int,
    k0: int,
    k1: int,
    s0: int,
    s1: int,
    p0: float = 0,
    p1: float = 0,
) -> Tensor:
    """Take the largest element or the mean of each window of a plane (``ggml_pool_2d``).

    A mean counts padding as zeros. A window without any element gives 0, or -FLT_MAX.

    Args:
        a: f32 or f16 [w, h, s, t], any strides.
        op: "max" or "avg".
        k0: width of a window.
        k1: its height.
        s0: stride along dimension 0.
        s1: and along dimension 1.
        p0: how far windows reach beyond both ends of dimension 0. A fraction reaches beyond the far
            end.
        p1: and of dimension 1.

    Returns:
        f32 [(w + 2 p0 - k0) / s0 + 1, (h + 2 p1 - k1) / s1 + 1, s, t].

    Raises:
        InvalidArgument: no such op, or a number out of range.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor:
        all_tensors("pool_2d", a=a)
    pool = member("pool_2d", "op", op, _POOLS)
    if a.dtype not in HALF_OR_SINGLE:
        raise refuse_type("pool_2d", "f32 or f16", a=a)
    k0, k1, s0, s1 = whole("pool_2d", k0, k1, s0, s1)
    width = _places("pool_2d", a.ne[0], k0, s0, p0)
    height = _places("pool_2d", a.ne[1], k1, s1, p1)
    params = pack("pool_2d", _PLANE, pool, k0, k1, s0, s1, int(p0), int(p1))
    return new_node("pool_2d", F32, (width, height, a.ne[2], a.ne[3]), (a,), params)


@accept_other_names
def pool_2d_back(
    a: Tensor,
    af: Tensor,
    op: PoolOp | str | int,
    k0: int,
    k1: int,
    s0: int,
    s1: int,
    p0: float = 0,
    p1: float = 0,
) -> Tensor:
    """The gradient of `pool_2d` with respect to its input (``ggml_pool_2d_back``).

    Args:
        a: f32, the gradient of the result of `pool_2d`, any strides.
        af: f32 or f16, its input, any strides. Of several largest elements the first counts.
        op: as for `pool_2d`, like all further arguments.
        k0: as for `pool_2d`.
        k1: as for `pool_2d`.
        s0: as for `pool_2d`.
        s1: as for `pool_2d`.
        p0: as for `pool_2d`.
        p1: as for `pool_2d`.

    Returns:
        f32 of the extents of ``af``.

    Raises:
        InvalidArgument: no such op, or a number out of range.
        LayoutMismatch: ``a`` is not what `pool_2d` gives for ``af``.
        Unsupported: other types.
    """
    name = "pool_2d_back"
    if a.__class__ is not Tensor or af.__class__ is not Tensor:
        all_tensors(name, a=a, af=af)
    pool = member(name, "op", op, _POOLS)
    if a.dtype is not F32 or af.dtype not in HALF_OR_SINGLE:
        raise refuse_type(name, "a of f32, af of f32 or f16", a=a, af=af)
    k0, k1, s0, s1 = whole(name, k0, k1, s0, s1)
    width, height = _places(name, af.ne[0], k0, s0, p0), _places(name, af.ne[1], k1, s1, p1)
    if a.ne != (width, height, af.ne[2], af.ne[3]):
        raise mismatch(
            name, f"a must be [{width}, {height}, ...], a number for each window of af", a=a, af=af
        )
    params = pack(name, _PLANE, pool, k0, k1, s0, s1, int(p0), int(p1))
    return new_node(name, F32, af.ne, (a, af), params, ndim=af.ndim)
