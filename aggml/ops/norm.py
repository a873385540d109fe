"""Normalisation of rows: norm (mean and variance) and rms_norm.

Here: shapes, types, checks. Not here: kernels (native/*/norm.c); weights and biases (mul, add).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import F32, all_tensors, mismatch, pack, refuse_type, suffix
from aggml.tensor import Tensor, new_node, new_view

__all__ = ["norm", "norm_inplace", "rms_norm", "rms_norm_inplace"]

_EPS = struct.Struct("<f60x")


def _build(op: str, a: Tensor, eps: float, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, a=a)
    if a.nb[0] != 4:
        raise mismatch(op, f"the rows of a have gaps, nb[0] {a.nb[0]}", a=a)
    params = pack(op, _EPS, eps)
    if not eps >= 0:
        raise InvalidArgument(f"[{op}] eps = {eps} is negative or NaN")
    if inplace:
        return new_view(op, a, a.ne, a.nb, 0, (a,), params, suffix(a, "view"))
    return new_node(op, F32, a.ne, (a,), params)


def norm(a: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` of each row x (``ggml_norm``).

    Args:
        a: f32 [n, r, s, t], rows without gaps.
        eps: not negative.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: ``eps`` is negative or no number that f32 can hold.
        LayoutMismatch: the rows of ``a`` have gaps.
        Unsupported: ``a`` is not f32.
    """
    return _build("norm", a, eps, False)


def norm_inplace(a: Tensor, eps: float) -> Tensor:
    """`norm` over the storage of ``a`` (``ggml_norm_inplace``)."""
    return _build("norm", a, eps, True)


def rms_norm(a: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean of x * x + eps)`` of each row x; else as `norm` (``ggml_rms_norm``)."""
    return _build("rms_norm", a, eps, False)


def rms_norm_inplace(a: Tensor, eps: float) -> Tensor:
    """`rms_norm` over the storage of ``a`` (``ggml_rms_norm_inplace``)."""
    return _build("rms_norm", a, eps, True)
