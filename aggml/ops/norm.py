"""Normalisation of rows: norm (mean and variance), rms_norm, l2_norm; of groups: group_norm.

Here: shapes, types, checks. Not here: kernels (native/*/norm.c, native/lower/group_norm.c);
weights and biases (mul, add).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import F32, all_tensors, gaps, pack, refuse_type, suffix, whole
from aggml.tensor import Tensor, new_node, new_view

__all__ = [
    "group_norm",
    "group_norm_inplace",
    "l2_norm",
    "l2_norm_inplace",
    "norm",
    "norm_inplace",
    "rms_norm",
    "rms_norm_inplace",
]

_EPS = struct.Struct("<f60x")
_GROUPS = struct.Struct("<if56x")


def _build(op: str, a: Tensor, eps: float, inplace: bool, n_groups: int | None = None) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    if a.nb[0] != 4:
        raise gaps(op, a=a)
    if n_groups is None:
        params = pack(op, _EPS, eps)
    else:
        (n_groups,) = whole(op, n_groups)
        if n_groups < 1:
            raise InvalidArgument(f"[{op}] n_groups = {n_groups} is not positive")
        params = pack(op, _GROUPS, n_groups, eps)
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
    """`norm` in place: the result overwrites ``a`` (``ggml_norm_inplace``)."""
    return _build("norm", a, eps, True)


def rms_norm(a: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean of x * x + eps)`` of each row x; else as `norm` (``ggml_rms_norm``)."""
    return _build("rms_norm", a, eps, False)


def rms_norm_inplace(a: Tensor, eps: float) -> Tensor:
    """`rms_norm` in place: the result overwrites ``a`` (``ggml_rms_norm_inplace``)."""
    return _build("rms_norm", a, eps, True)


def l2_norm(a: Tensor, eps: float) -> Tensor:
    """``x / max(length of x, eps)`` of each row x; else as `norm` (``ggml_l2_norm``)."""
    return _build("l2_norm", a, eps, False)


def l2_norm_inplace(a: Tensor, eps: float) -> Tensor:
    """`l2_norm` in place: the result overwrites ``a`` (``ggml_l2_norm_inplace``)."""
    return _build("l2_norm", a, eps, True)


def group_norm(a: Tensor, n_groups: int, eps: float) -> Tensor:
    """`norm` of each group of channels as if it were one row (``ggml_group_norm``).

    Args:
        a: f32 [n, r, channels, t], rows without gaps.
        n_groups: at least 1; a group has ``ceil(channels / n_groups)`` channels, the last may have
            fewer.
        eps: not negative.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: ``n_groups`` is below 1, or ``eps`` is negative.
        LayoutMismatch: the rows of ``a`` have gaps.
        Unsupported: ``a`` is not f32.
    """
    return _build("group_norm", a, eps, False, n_groups)


def group_norm_inplace(a: Tensor, n_groups: int, eps: float) -> Tensor:
    """`group_norm` in place: the result overwrites ``a`` (``ggml_group_norm_inplace``)."""
    return _build("group_norm", a, eps, True, n_groups)
