"""Products of matrices: mul_mat, its precision, and hints about its operands.

Here: shapes, types, checks. Not here: kernels (native/*/mul_mat.c); a matrix chosen
for each column (mul_mat_id.py).
"""

from __future__ import annotations

import enum

from aggml.ops._common import (
    DOT_TYPES,
    F32,
    Prec,
    all_tensors,
    by_name,
    gaps,
    member,
    mismatch,
    need_node,
    product_of,
    refuse_type,
    set_param,
    wider,
)
from aggml.ops._precision import set_acc
from aggml.tensor import Tensor, new_node

__all__ = ["OpHint", "mul_mat", "mul_mat_set_hint", "mul_mat_set_prec"]


class OpHint(enum.IntEnum):
    """Facts about its operands that a `mul_mat` may use (enum ``ggml_op_hint``)."""

    NONE = 0
    SRC0_IS_HADAMARD = 1


_HINTS = by_name(OpHint)
_HINT = 1  # its slot among the parameters


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """Multiply each row of ``b`` with the transpose of ``a`` (``ggml_mul_mat``).

    Args:
        a: [k, m, x, y] of any float or quantized type, rows without gaps, not transposed.
        b: [k, n, x * r, y * s], rows without gaps, of f32 or of the type that rows are converted to
            for ``a`` (f16 and bf16: the same; q8_0, q8_1 or q8_K for quantized types).

    Returns:
        f32 [m, n, x * r, y * s]; plane (i, j) is computed with plane (i // r, j // s) of ``a``.

    Raises:
        LayoutMismatch: extents do not fit, ``a`` is transposed, or rows have gaps.
        Unsupported: a pair of types for which there is no product.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("mul_mat", a=a, b=b)
    k, m, x, y = a.ne
    kb, n, bx, by = b.ne
    if k != kb:
        raise mismatch("mul_mat", f"ne[0] of a and b differ, {k} and {kb}", a=a, b=b)
    # An empty operand fits when both are empty, as ggml's remainder would if it were defined for 0.
    if (bx % x if x else bx) or (by % y if y else by):
        raise mismatch("mul_mat", "ne[2], ne[3] of b must be multiples of those of a", a=a, b=b)
    if a.nb[0] > a.nb[1]:
        raise mismatch("mul_mat", "a is transposed: pass the original, or ops.cont(a)", a=a, b=b)
    if b.dtype is not F32 or a.dtype is not F32:
        dot = DOT_TYPES.get(a.dtype)
        if dot is None or (b.dtype is not F32 and b.dtype is not dot):
            raise refuse_type("mul_mat", product_of(dot), a=a, b=b)
    if a.nb[0] != a.dtype.type_size or b.nb[0] != b.dtype.type_size:
        raise gaps("mul_mat", a=a, b=b)
    return new_node("mul_mat", F32, (m, n, bx, by), (a, b), ndim=wider(a, b, 2))


def mul_mat_set_prec(a: Tensor, prec: Prec | str | int) -> Tensor:
    """`prec_set_acc` for a `mul_mat` alone (``ggml_mul_mat_set_prec``); ggml advises against it.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no mul_mat; no such precision.
        InvalidState: ``a`` is in a Graph.
    """
    need_node("mul_mat_set_prec", a, "mul_mat")
    return set_acc("mul_mat_set_prec", a, prec)


def mul_mat_set_hint(a: Tensor, hint: OpHint | str | int) -> Tensor:
    """State a fact that a `mul_mat` may use, "src0_is_hadamard" (``ggml_mul_mat_set_hint``).

    The result is the same with and without; the CPU makes no use of it.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no mul_mat; no such hint.
        InvalidState: ``a`` is in a Graph.
    """
    need_node("mul_mat_set_hint", a, "mul_mat")
    found = member("mul_mat_set_hint", "hint", hint, _HINTS)
    return set_param("mul_mat_set_hint", a, _HINT, found)
