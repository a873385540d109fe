"""Functions of one number, element by element: abs, neg, relu, gelu, silu, exp, sqr, sqrt, ...

Here: shapes, types, checks. Not here: kernels (native/*/unary.c); gated units (glu.py).
"""

from __future__ import annotations

import enum

from aggml.ops._common import (
    FLOATS,
    HALF_OR_SINGLE,
    all_tensors,
    by_name,
    need_rows,
    no_member,
    refuse_type,
    suffix,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = [
    "UnaryOp",
    "abs",
    "abs_inplace",
    "elu",
    "elu_inplace",
    "exp",
    "exp_inplace",
    "gelu",
    "gelu_erf",
    "gelu_erf_inplace",
    "gelu_inplace",
    "gelu_quick",
    "gelu_quick_inplace",
    "neg",
    "neg_inplace",
    "relu",
    "relu_inplace",
    "sgn",
    "sgn_inplace",
    "sigmoid",
    "sigmoid_inplace",
    "silu",
    "silu_inplace",
    "sqr",
    "sqr_inplace",
    "sqrt",
    "sqrt_inplace",
    "step",
    "step_inplace",
    "tanh",
    "tanh_inplace",
    "unary",
    "unary_inplace",
]


class UnaryOp(enum.IntEnum):
    """The functions that `unary` takes (enum ``ggml_unary_op``)."""

    ABS = 0
    SGN = 1
    NEG = 2
    STEP = 3
    TANH = 4
    ELU = 5
    RELU = 6
    SIGMOID = 7
    GELU = 8
    GELU_QUICK = 9
    SILU = 10
    EXP = 13
    GELU_ERF = 15


_OPS = by_name(UnaryOp)
_NAMES = {member: member.name.lower() for member in UnaryOp}
# No bf16: ggml has none either. sqr and sqrt, which are no unary of ggml's, likewise.
_NO_BF16 = frozenset(("gelu", "gelu_quick", "gelu_erf", "silu", "sqr", "sqrt"))


def _build(op: str, a: Tensor, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype not in (HALF_OR_SINGLE if op in _NO_BF16 else FLOATS):
        raise refuse_type(op, a=a)
    if a.nb[0] != a.dtype.type_size:
        need_rows(op, "a", a)
    if inplace:
        return new_view(op, a, a.ne, a.nb, 0, (a,), name=suffix(a, "view"))
    return new_node(op, a.dtype, a.ne, (a,))


def unary(a: Tensor, op: UnaryOp | str | int) -> Tensor:
    """Apply ``op`` to each element (``ggml_unary``).

    Args:
        a: any shape, f32, f16 or bf16 (no bf16 for the gelus and silu), rows without gaps.
        op: member, value or lower-case name.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: no such function.
        LayoutMismatch: the rows of ``a`` have gaps.
        Unsupported: the type of ``a``.
    """
    found = _OPS.get(op)
    if found is None:
        no_member("unary", "op", op, _OPS)
    return _build(_NAMES[found], a, False)


def unary_inplace(a: Tensor, op: UnaryOp | str | int) -> Tensor:
    """Apply ``op`` as `unary` does, over the storage of ``a`` (``ggml_unary_inplace``)."""
    found = _OPS.get(op)
    if found is None:
        no_member("unary_inplace", "op", op, _OPS)
    return _build(_NAMES[found], a, True)


def abs(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """The absolute value of each element (``ggml_abs``); else as `unary`."""
    return _build("abs", a, False)


def abs_inplace(a: Tensor) -> Tensor:
    """`abs` over the storage of ``a`` (``ggml_abs_inplace``)."""
    return _build("abs", a, True)


def sgn(a: Tensor) -> Tensor:
    """The sign of each element: -1, 0 or 1 (``ggml_sgn``); else as `unary`."""
    return _build("sgn", a, False)


def sgn_inplace(a: Tensor) -> Tensor:
    """`sgn` over the storage of ``a`` (``ggml_sgn_inplace``)."""
    return _build("sgn", a, True)


def neg(a: Tensor) -> Tensor:
    """Each element with the opposite sign (``ggml_neg``); else as `unary`."""
    return _build("neg", a, False)


def neg_inplace(a: Tensor) -> Tensor:
    """`neg` over the storage of ``a`` (``ggml_neg_inplace``)."""
    return _build("neg", a, True)


def step(a: Tensor) -> Tensor:
    """1 where an element is above 0, else 0 (``ggml_step``); else as `unary`."""
    return _build("step", a, False)


def step_inplace(a: Tensor) -> Tensor:
    """`step` over the storage of ``a`` (``ggml_step_inplace``)."""
    return _build("step", a, True)


def tanh(a: Tensor) -> Tensor:
    """The hyperbolic tangent of each element (``ggml_tanh``); else as `unary`."""
    return _build("tanh", a, False)


def tanh_inplace(a: Tensor) -> Tensor:
    """`tanh` over the storage of ``a`` (``ggml_tanh_inplace``)."""
    return _build("tanh", a, True)


def elu(a: Tensor) -> Tensor:
    """Each element x, or exp(x) - 1 where x is negative (``ggml_elu``); else as `unary`."""
    return _build("elu", a, False)


def elu_inplace(a: Tensor) -> Tensor:
    """`elu` over the storage of ``a`` (``ggml_elu_inplace``)."""
    return _build("elu", a, True)


def relu(a: Tensor) -> Tensor:
    """Each element, 0 where negative or NaN (``ggml_relu``); else as `unary`."""
    return _build("relu", a, False)


def relu_inplace(a: Tensor) -> Tensor:
    """`relu` over the storage of ``a`` (``ggml_relu_inplace``)."""
    return _build("relu", a, True)


def sigmoid(a: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) of each element x (``ggml_sigmoid``); else as `unary`."""
    return _build("sigmoid", a, False)


def sigmoid_inplace(a: Tensor) -> Tensor:
    """`sigmoid` over the storage of ``a`` (``ggml_sigmoid_inplace``)."""
    return _build("sigmoid", a, True)


def gelu(a: Tensor) -> Tensor:
    """The Gaussian error unit by its tanh formula (``ggml_gelu``); else as `unary`."""
    return _build("gelu", a, False)


def gelu_inplace(a: Tensor) -> Tensor:
    """`gelu` over the storage of ``a`` (``ggml_gelu_inplace``)."""
    return _build("gelu", a, True)


def gelu_quick(a: Tensor) -> Tensor:
    """Each element x times sigmoid(1.702 x) (``ggml_gelu_quick``); else as `unary`."""
    return _build("gelu_quick", a, False)


def gelu_quick_inplace(a: Tensor) -> Tensor:
    """`gelu_quick` over the storage of ``a`` (``ggml_gelu_quick_inplace``)."""
    return _build("gelu_quick", a, True)


def gelu_erf(a: Tensor) -> Tensor:
    """The Gaussian error unit by the error function (``ggml_gelu_erf``); else as `unary`."""
    return _build("gelu_erf", a, False)


def gelu_erf_inplace(a: Tensor) -> Tensor:
    """`gelu_erf` over the storage of ``a`` (``ggml_gelu_erf_inplace``)."""
    return _build("gelu_erf", a, True)


def silu(a: Tensor) -> Tensor:
    """Each element x times sigmoid(x) (``ggml_silu``); else as `unary`."""
    return _build("silu", a, False)


def silu_inplace(a: Tensor) -> Tensor:
    """`silu` over the storage of ``a`` (``ggml_silu_inplace``)."""
    return _build("silu", a, True)


def exp(a: Tensor) -> Tensor:
    """The exponential of each element (``ggml_exp``); else as `unary`."""
    return _build("exp", a, False)


def exp_inplace(a: Tensor) -> Tensor:
    """`exp` over the storage of ``a`` (``ggml_exp_inplace``)."""
    return _build("exp", a, True)


def sqr(a: Tensor) -> Tensor:
    """The square of each element (``ggml_sqr``); else as `unary`."""
    return _build("sqr", a, False)


def sqr_inplace(a: Tensor) -> Tensor:
    """`sqr` over the storage of ``a`` (``ggml_sqr_inplace``)."""
    return _build("sqr", a, True)


def sqrt(a: Tensor) -> Tensor:
    """The square root of each element (``ggml_sqrt``); else as `unary`."""
    return _build("sqrt", a, False)


def sqrt_inplace(a: Tensor) -> Tensor:
    """`sqrt` over the storage of ``a`` (``ggml_sqrt_inplace``)."""
    return _build("sqrt", a, True)
