"""Gradients of silu, rms_norm, soft_max and cross_entropy_loss.

Here: shapes, types, checks. Not here: kernels (native/lower/backward.c); those of rope, get_rows,
convolution and others, which are with their operation.
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument, Unsupported
from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    all_tensors,
    gaps,
    mismatch,
    pack,
    refuse_type,
    suffix,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = [
    "cross_entropy_loss_back",
    "rms_norm_back",
    "silu_back",
    "soft_max_ext_back",
    "soft_max_ext_back_inplace",
]

_EPS = struct.Struct("<f60x")
_SOFT_MAX = struct.Struct("<2f56x")


def silu_back(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of `silu` (``ggml_silu_back``).

    Args:
        a: the gradient of the result, f32 or f16, rows without gaps, all at one distance.
        b: the operand of the `silu`, the same type and extents.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        LayoutMismatch: types, extents or strides do not fit.
        Unsupported: the type of ``a``.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("silu_back", a=a, b=b)
    if a.dtype not in HALF_OR_SINGLE:
        raise refuse_type("silu_back", "f32 or f16", a=a, b=b)
    if a.ne != b.ne or a.dtype is not b.dtype:
        raise mismatch("silu_back", "a and b must have the same type and extents", a=a, b=b)
    if not (a.is_contiguous_n(1) and b.is_contiguous_n(1)):
        raise gaps("silu_back", a=a, b=b)
    return new_node("silu_back", a.dtype, a.ne, (a, b))


def rms_norm_back(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The gradient of `rms_norm` (``ggml_rms_norm_back``).

    Args:
        a: the gradient of the result, f32 [n, r, s, t], rows without gaps.
        b: the operand of the `rms_norm`, the same type and extents, rows without gaps.
        eps: as given to the `rms_norm`.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: ``eps`` is negative or no number that f32 can hold.
        LayoutMismatch: extents differ, or rows have gaps.
        Unsupported: other types.
    """
    op = "rms_norm_back"
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if a.dtype is not F32 or b.dtype is not F32:
        raise refuse_type(op, "f32", a=a, b=b)
    if a.ne != b.ne:
        raise mismatch(op, "a and b must have the same extents", a=a, b=b)
    if a.nb[0] != 4 or b.nb[0] != 4:
        raise gaps(op, a=a, b=b)
    params = pack(op, _EPS, eps)
    if not eps >= 0:
        raise InvalidArgument(f"[{op}] eps = {eps} is negative or NaN")
    return new_node(op, F32, a.ne, (a, b), params)


def _soft_max(
    op: str, a: Tensor, b: Tensor, scale: float, max_bias: float, inplace: bool
) -> Tensor:
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if a.dtype is not F32 or b.dtype is not F32:
        raise refuse_type(op, "f32", a=a, b=b)
    if a.ne != b.ne:
        raise mismatch(op, "a and b must have the same extents", a=a, b=b)
    if not (a.is_contiguous and b.is_contiguous):
        raise gaps(op, a=a, b=b)
    params = pack(op, _SOFT_MAX, scale, max_bias)
    if max_bias != 0:
        raise Unsupported(f"[{op}] max_bias = {max_bias} has no gradient here, only 0")
    if inplace:
        return new_view("soft_max_back", a, a.ne, a.nb, 0, (a, b), params, suffix(a, "view"))
    return new_node("soft_max_back", F32, a.ne, (a, b), params)


def soft_max_ext_back(a: Tensor, b: Tensor, scale: float = 1.0, max_bias: float = 0.0) -> Tensor:
    """The gradient of `soft_max_ext` (``ggml_soft_max_ext_back``).

    Args:
        a: the gradient of the result, f32, contiguous.
        b: the result of the `soft_max_ext`, the same type and extents, contiguous.
        scale: as given to the `soft_max_ext`.
        max_bias: has to be 0.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: a number that f32 cannot hold.
        LayoutMismatch: extents differ, or gaps.
        Unsupported: other types, ALiBi.
    """
    return _soft_max("soft_max_ext_back", a, b, scale, max_bias, False)


def soft_max_ext_back_inplace(
    a: Tensor, b: Tensor, scale: float = 1.0, max_bias: float = 0.0
) -> Tensor:
    """`soft_max_ext_back` in place, over ``a`` (``ggml_soft_max_ext_back_inplace``)."""
    return _soft_max("soft_max_ext_back_inplace", a, b, scale, max_bias, True)


def cross_entropy_loss_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The gradient of `cross_entropy_loss` in the logits (``ggml_cross_entropy_loss_back``).

    Args:
        a: the gradient of the loss, f32 [1].
        b: the logits, f32, contiguous.
        c: the labels, the same type and extents, contiguous; those of a row add up to 1.

    Returns:
        A new f32 tensor of the extents of ``b``.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    op = "cross_entropy_loss_back"
    if a.__class__ is not Tensor or b.__class__ is not Tensor or c.__class__ is not Tensor:
        all_tensors(op, a=a, b=b, c=c)
    if a.dtype is not F32 or b.dtype is not F32 or c.dtype is not F32:
        raise refuse_type(op, "f32", a=a, b=b, c=c)
    if not a.is_scalar or b.ne != c.ne:
        raise mismatch(op, "a must be one element, b and c of the same extents", a=a, b=b, c=c)
    if not (b.is_contiguous and c.is_contiguous):
        raise gaps(op, b=b, c=c)
    return new_node(op, F32, b.ne, (a, b, c), ndim=b.ndim)
