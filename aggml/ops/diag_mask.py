"""Causal masks as operations: diag_mask_inf and diag_mask_zero set elements beyond the diagonal.

Here: shapes, types, checks. Not here: kernels (native/lower/diag_mask.c); masks as operands
(soft_max.py, flash_attn_ext.py).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import F32, all_tensors, pack, refuse_type, suffix, whole
from aggml.tensor import Tensor, new_node, new_view

__all__ = [
    "diag_mask_inf",
    "diag_mask_inf_inplace",
    "diag_mask_zero",
    "diag_mask_zero_inplace",
]

_PAST = struct.Struct("<i60x")


def _build(op: str, node: str, a: Tensor, n_past: int, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    (n_past,) = whole(op, n_past)
    if n_past < 0:
        raise InvalidArgument(f"[{op}] n_past = {n_past} is negative")
    params = pack(op, _PAST, n_past)
    if inplace:
        return new_view(node, a, a.ne, a.nb, 0, (a,), params, suffix(a, "view"))
    return new_node(node, F32, a.ne, (a,), params)


def diag_mask_inf(a: Tensor, n_past: int = 0) -> Tensor:
    """``a`` with -inf beyond element ``n_past + i`` of each row i (``ggml_diag_mask_inf``).

    Args:
        a: f32 [n, r, s, t] of any strides.
        n_past: row i keeps its first ``n_past + i + 1`` elements.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: ``n_past`` is negative.
        Unsupported: ``a`` is not f32.
    """
    return _build("diag_mask_inf", "diag_mask_inf", a, n_past, False)


def diag_mask_inf_inplace(a: Tensor, n_past: int = 0) -> Tensor:
    """`diag_mask_inf` in place: the result overwrites ``a`` (``ggml_diag_mask_inf_inplace``)."""
    return _build("diag_mask_inf_inplace", "diag_mask_inf", a, n_past, True)


def diag_mask_zero(a: Tensor, n_past: int = 0) -> Tensor:
    """`diag_mask_inf` with 0 instead of -inf (``ggml_diag_mask_zero``)."""
    return _build("diag_mask_zero", "diag_mask_zero", a, n_past, False)


def diag_mask_zero_inplace(a: Tensor, n_past: int = 0) -> Tensor:
    """`diag_mask_zero` in place: the result overwrites ``a`` (``ggml_diag_mask_zero_inplace``)."""
    return _build("diag_mask_zero_inplace", "diag_mask_zero", a, n_past, True)
