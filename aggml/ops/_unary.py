"""unary_node: the node of every element-wise function of one operand; in_place: their builders.

Not here: the builders (unary.py, unary_params.py).
"""

from __future__ import annotations

from typing import Protocol

from aggml.ops._common import (
    FLOATS,
    HALF_OR_SINGLE,
    all_tensors,
    need_rows,
    refuse_type,
    rename_builder,
    suffix,
)
from aggml.ops.table import with_trait
from aggml.tensor import NO_PARAMS, Tensor, new_node, new_view

__all__ = ["Unary", "in_place", "unary_node"]

# Functions without a bf16 version; ggml has none either.
_NO_BF16 = with_trait("NO_BF16")


def unary_node(op: str, a: Tensor, inplace: bool, params: bytes = NO_PARAMS) -> Tensor:
    """A node of a function of one number: f32, f16 or, for most, bf16; rows without gaps."""
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype not in (HALF_OR_SINGLE if op in _NO_BF16 else FLOATS):
        raise refuse_type(op, "f32 or f16" if op in _NO_BF16 else "f32, f16 or bf16", a=a)
    if a.nb[0] != a.dtype.type_size:
        need_rows(op, "a", a)
    if inplace:
        return new_view(op, a, a.ne, a.nb, 0, (a,), params, suffix(a, "view"))
    return new_node(op, a.dtype, a.ne, (a,), params)


class Unary(Protocol):
    """A builder of one operand."""

    def __call__(self, a: Tensor) -> Tensor: ...


def in_place(op: str) -> Unary:
    """The builder ``ops.<op>_inplace``: as ``ops.<op>``, the result overwrites ``a``."""

    def build(a: Tensor) -> Tensor:
        return unary_node(op, a, True)

    told = f"`{op}` in place: the result overwrites ``a`` (``ggml_{op}_inplace``)."
    return rename_builder(build, "aggml.ops.unary", f"{op}_inplace", told)
