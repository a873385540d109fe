"""Values that depend on positions: arange, fill, tri, diag, timestep_embedding.

Here: shapes, types, checks. Not here: kernels (native/*/shape_fill.c).
"""

from __future__ import annotations

import enum
import math
import struct

import numpy as np

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    all_tensors,
    by_name,
    member,
    mismatch,
    need_dense,
    pack,
    refuse_type,
    suffix,
    whole,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = ["TriType", "arange", "diag", "fill", "fill_inplace", "timestep_embedding", "tri"]


class TriType(enum.IntEnum):
    """Which part of a matrix is kept (enum ``ggml_tri_type``)."""

    UPPER_DIAG = 0
    UPPER = 1
    LOWER_DIAG = 2
    LOWER = 3


_TRIS = by_name(TriType)
_ONE = struct.Struct("<f60x")
_RANGE = struct.Struct("<3f52x")
_KIND = struct.Struct("<i60x")
_STEPS = struct.Struct("<2i56x")


def arange(start: float, stop: float, step: float) -> Tensor:
    """The numbers from ``start`` on, ``step`` apart, and below ``stop`` (``ggml_arange``).

    Args:
        start: the first.
        stop: above ``start``.
        step: above 0.

    Returns:
        f32 [ceil((stop - start) / step)], computed in f32.

    Raises:
        InvalidArgument: ``stop`` is not above ``start``, ``step`` not above 0, or a number that
            f32 cannot hold.
    """
    params = pack("arange", _RANGE, start, stop, step)
    first, last, apart = (np.float32(x) for x in _RANGE.unpack(params))
    with np.errstate(all="ignore"):
        count = float((last - first) / apart) if last > first and apart > 0 else 0.0
    if not 0 < count < math.inf:
        raise InvalidArgument(
            f"[arange] from {start} to {stop} by {step}: needs one step or more, and an end"
        )
    return new_node("arange", F32, (math.ceil(count), 1, 1, 1), (), params)


def _fill(op: str, a: Tensor, c: float, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype not in HALF_OR_SINGLE:
        raise refuse_type(op, "f32 or f16", a=a)
    need_dense(op, a=a)
    params = pack(op, _ONE, c)
    if inplace:
        return new_view("fill", a, a.ne, a.nb, 0, (a,), params, suffix(a, "view"))
    return new_node("fill", a.dtype, a.ne, (a,), params)


def fill(a: Tensor, c: float) -> Tensor:
    """A tensor with the type and extents of ``a``, of which each element is ``c`` (``ggml_fill``).

    Args:
        a: f32 or f16, contiguous; its elements are not read.
        c: the value.

    Returns:
        A new tensor.

    Raises:
        InvalidArgument: ``c`` is no number that f32 can hold.
        LayoutMismatch: ``a`` has gaps, or another order.
        Unsupported: other types.
    """
    return _fill("fill", a, c, False)


def fill_inplace(a: Tensor, c: float) -> Tensor:
    """`fill` in place: the result overwrites ``a`` (``ggml_fill_inplace``)."""
    return _fill("fill_inplace", a, c, True)


def tri(a: Tensor, type: TriType | str | int) -> Tensor:  # noqa: A002 - ggml's name
    """Keep a triangle of each matrix, zeros elsewhere (``ggml_tri``).

    Args:
        a: f32 [n, n, s, t], contiguous.
        type: "upper", "upper_diag", "lower" or "lower_diag"; those in "_diag" keep the diagonal.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: no such type.
        LayoutMismatch: the matrices are not square, or have gaps.
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("tri", a=a)
    triangle = member("tri", "type", type, _TRIS)
    if a.dtype is not F32:
        raise refuse_type("tri", "f32", a=a)
    if a.ne[0] != a.ne[1]:
        raise mismatch("tri", f"ne[0] = {a.ne[0]} and ne[1] = {a.ne[1]} must be the same", a=a)
    need_dense("tri", a=a)
    return new_node("tri", F32, a.ne, (a,), pack("tri", _KIND, triangle))


def diag(a: Tensor) -> Tensor:
    """Matrices with the rows of ``a`` on their diagonals, zeros elsewhere (``ggml_diag``).

    Args:
        a: f32 [n, 1, s, t], any strides.

    Returns:
        f32 [n, n, s, t].

    Raises:
        LayoutMismatch: dimension 1 is not 1.
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("diag", a=a)
    if a.dtype is not F32:
        raise refuse_type("diag", "f32", a=a)
    if a.ne[1] != 1:
        raise mismatch("diag", "a must be [n, 1, s, t]", a=a)
    return new_node("diag", F32, (a.ne[0], a.ne[0], a.ne[2], a.ne[3]), (a,), ndim=max(a.ndim, 2))


def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Cosines and sines of times at falling frequencies (``ggml_timestep_embedding``).

    Args:
        timesteps: f32 [n].
        dim: length of an embedding: half cosines, half sines, and a zero if it is odd.
        max_period: one over the lowest frequency.

    Returns:
        f32 [dim, n].

    Raises:
        InvalidArgument: ``dim`` or ``max_period`` is not above 0.
        LayoutMismatch: ``timesteps`` has more than one dimension.
        Unsupported: it is not f32.
    """
    op = "timestep_embedding"
    if timesteps.__class__ is not Tensor:
        all_tensors(op, timesteps=timesteps)
    dim, max_period = whole(op, dim, max_period)
    if dim < 1 or max_period < 1:
        raise InvalidArgument(f"[{op}] dim = {dim}, max_period = {max_period}: not above 0")
    if timesteps.dtype is not F32:
        raise refuse_type(op, "f32", timesteps=timesteps)
    if not timesteps.is_vector:
        raise mismatch(op, "timesteps must be one row", timesteps=timesteps)
    params = pack(op, _STEPS, dim, max_period)
    return new_node(op, F32, (dim, timesteps.ne[0], 1, 1), (timesteps,), params, ndim=2)
