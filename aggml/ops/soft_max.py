"""soft_max of rows, with scale, mask, ALiBi and sinks.

Here: shapes, types, checks. Not here: kernels (native/*/soft_max.c); attention as one node
(flash_attn_ext.py).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F16,
    F32,
    all_tensors,
    gaps,
    mismatch,
    need_node,
    pack,
    refuse_type,
    set_sinks,
    suffix,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = [
    "soft_max",
    "soft_max_add_sinks",
    "soft_max_ext",
    "soft_max_ext_inplace",
    "soft_max_inplace",
]

_PARAMS = struct.Struct("<2f56x")


def _build(
    op: str, a: Tensor, mask: Tensor | None, scale: float, max_bias: float, inplace: bool
) -> Tensor:
    if a.__class__ is not Tensor or (mask is not None and mask.__class__ is not Tensor):
        all_tensors(op, **({"a": a} if mask is None else {"a": a, "mask": mask}))
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    if not a.is_contiguous:
        raise gaps(op, a=a)
    params = pack(op, _PARAMS, scale, max_bias)
    if mask is None:
        if max_bias > 0:
            raise InvalidArgument(f"[{op}] max_bias = {max_bias} needs a mask")
        src: tuple[Tensor, ...] = (a,)
    else:
        if mask.dtype is not F16 and mask.dtype is not F32:
            raise refuse_type(op, "a mask of f32 or f16", a=a, mask=mask)
        _fit(op, a, mask)
        src = (a, mask)
    if inplace:
        return new_view("soft_max", a, a.ne, a.nb, 0, src, params, suffix(a, "view"))
    return new_node("soft_max", F32, a.ne, src, params)


def _fit(op: str, a: Tensor, mask: Tensor) -> None:
    if not mask.is_contiguous:
        raise gaps(op, mask=mask)
    n0, n1, n2, n3 = a.ne
    m0, m1, m2, m3 = mask.ne
    if m0 != n0 or m1 < n1 or (n2 % m2 if m2 else n2) or (n3 % m3 if m3 else n3):
        raise mismatch(
            op,
            f"mask must be [{n0}, {n1} or more, a divisor of {n2}, a divisor of {n3}]",
            a=a,
            mask=mask,
        )


def soft_max(a: Tensor) -> Tensor:
    """The softmax of each row (``ggml_soft_max``); as `soft_max_ext` without its options."""
    return _build("soft_max", a, None, 1.0, 0.0, False)


def soft_max_inplace(a: Tensor) -> Tensor:
    """`soft_max` in place: the result overwrites ``a`` (``ggml_soft_max_inplace``)."""
    return _build("soft_max_inplace", a, None, 1.0, 0.0, True)


def soft_max_ext(
    a: Tensor, mask: Tensor | None = None, scale: float = 1.0, max_bias: float = 0.0
) -> Tensor:
    """The softmax of ``a * scale + mask * slope`` over each row (``ggml_soft_max_ext``).

    Args:
        a: f32 [kv, n, heads, batch], contiguous.
        mask: f16 or f32 [kv, at least n, divides heads, divides batch], contiguous; or None.
        scale: factor of ``a``.
        max_bias: above 0, the slope falls from head to head (ALiBi); else it is 1.

    Returns:
        A new f32 tensor of the extents of ``a``. A row that is -inf throughout becomes NaN.

    Raises:
        InvalidArgument: ALiBi without mask, a number that f32 cannot hold.
        LayoutMismatch: gaps, or a mask of other extents.
        Unsupported: other types.
    """
    return _build("soft_max_ext", a, mask, scale, max_bias, False)


def soft_max_ext_inplace(
    a: Tensor, mask: Tensor | None = None, scale: float = 1.0, max_bias: float = 0.0
) -> Tensor:
    """`soft_max_ext` in place: the result overwrites ``a`` (``ggml_soft_max_ext_inplace``)."""
    return _build("soft_max_ext_inplace", a, mask, scale, max_bias, True)


def soft_max_add_sinks(a: Tensor, sinks: Tensor | None) -> Tensor:
    """Give each head one more logit, a sink: it takes a share of the sum, but is not in the result.

    Args:
        a: the node that one of the functions above returned (``ggml_soft_max_add_sinks``).
        sinks: f32 [heads], contiguous; None takes them away again.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no soft_max.
        InvalidState: ``a`` is in a Graph or has sinks already.
        LayoutMismatch: other extents, or gaps.
        Unsupported: ``sinks`` is not f32.
    """
    op = "soft_max_add_sinks"
    need_node(op, a, "soft_max")
    return set_sinks(op, a, sinks, a.ne[2], 2)
