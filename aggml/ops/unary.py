"""Functions of one number, element by element: abs, neg, relu, gelu, silu, exp, sqr, sqrt, ...

Here: shapes, types, checks. Not here: functions with parameters (unary_params.py), gated units
(glu.py), kernels (native/kernels/*/unary.c).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from aggml.ops._common import by_name, no_member
from aggml.ops._unary import unary_node

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = [
    "UnaryOp",
    "abs",
    "abs_inplace",
    "ceil",
    "ceil_inplace",
    "cos",
    "cos_inplace",
    "elu",
    "elu_inplace",
    "exp",
    "exp_inplace",
    "expm1",
    "expm1_inplace",
    "floor",
    "floor_inplace",
    "gelu",
    "gelu_erf",
    "gelu_erf_inplace",
    "gelu_inplace",
    "gelu_quick",
    "gelu_quick_inplace",
    "hardsigmoid",
    "hardswish",
    "log",
    "log_inplace",
    "neg",
    "neg_inplace",
    "relu",
    "relu_inplace",
    "round",
    "round_inplace",
    "sgn",
    "sgn_inplace",
    "sigmoid",
    "sigmoid_inplace",
    "silu",
    "silu_inplace",
    "sin",
    "sin_inplace",
    "softplus",
    "softplus_inplace",
    "sqr",
    "sqr_inplace",
    "sqrt",
    "sqrt_inplace",
    "step",
    "step_inplace",
    "tanh",
    "tanh_inplace",
    "trunc",
    "trunc_inplace",
    "unary",
    "unary_inplace",
]


class UnaryOp(enum.IntEnum):
    """The functions that `unary` takes (enum ``ggml_unary_op``); 17, `xielu`, has parameters."""

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
    HARDSWISH = 11
    HARDSIGMOID = 12
    EXP = 13
    EXPM1 = 14
    SOFTPLUS = 15
    GELU_ERF = 16
    FLOOR = 18
    CEIL = 19
    ROUND = 20
    TRUNC = 21


_OPS = by_name(UnaryOp)
_NAMES = {member: member.name.lower() for member in UnaryOp}


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
    return unary_node(_NAMES[found], a, False)


def unary_inplace(a: Tensor, op: UnaryOp | str | int) -> Tensor:
    """`unary` in place: the result overwrites ``a`` (``ggml_unary_inplace``)."""
    found = _OPS.get(op)
    if found is None:
        no_member("unary_inplace", "op", op, _OPS)
    return unary_node(_NAMES[found], a, True)


def abs(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """The absolute value of each element (``ggml_abs``); else as `unary`."""
    return unary_node("abs", a, False)


def abs_inplace(a: Tensor) -> Tensor:
    """`abs` in place: the result overwrites ``a`` (``ggml_abs_inplace``)."""
    return unary_node("abs", a, True)


def sgn(a: Tensor) -> Tensor:
    """The sign of each element: -1, 0 or 1 (``ggml_sgn``); else as `unary`."""
    return unary_node("sgn", a, False)


def sgn_inplace(a: Tensor) -> Tensor:
    """`sgn` in place: the result overwrites ``a`` (``ggml_sgn_inplace``)."""
    return unary_node("sgn", a, True)


def neg(a: Tensor) -> Tensor:
    """Each element with the opposite sign (``ggml_neg``); else as `unary`."""
    return unary_node("neg", a, False)


def neg_inplace(a: Tensor) -> Tensor:
    """`neg` in place: the result overwrites ``a`` (``ggml_neg_inplace``)."""
    return unary_node("neg", a, True)


def step(a: Tensor) -> Tensor:
    """1 where an element is above 0, else 0 (``ggml_step``); else as `unary`."""
    return unary_node("step", a, False)


def step_inplace(a: Tensor) -> Tensor:
    """`step` in place: the result overwrites ``a`` (``ggml_step_inplace``)."""
    return unary_node("step", a, True)


def tanh(a: Tensor) -> Tensor:
    """The hyperbolic tangent of each element (``ggml_tanh``); else as `unary`."""
    return unary_node("tanh", a, False)


def tanh_inplace(a: Tensor) -> Tensor:
    """`tanh` in place: the result overwrites ``a`` (``ggml_tanh_inplace``)."""
    return unary_node("tanh", a, True)


def elu(a: Tensor) -> Tensor:
    """Each element x, or exp(x) - 1 where x is negative (``ggml_elu``); else as `unary`."""
    return unary_node("elu", a, False)


def elu_inplace(a: Tensor) -> Tensor:
    """`elu` in place: the result overwrites ``a`` (``ggml_elu_inplace``)."""
    return unary_node("elu", a, True)


def relu(a: Tensor) -> Tensor:
    """Each element, 0 where negative or NaN (``ggml_relu``); else as `unary`."""
    return unary_node("relu", a, False)


def relu_inplace(a: Tensor) -> Tensor:
    """`relu` in place: the result overwrites ``a`` (``ggml_relu_inplace``)."""
    return unary_node("relu", a, True)


def sigmoid(a: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) of each element x (``ggml_sigmoid``); else as `unary`."""
    return unary_node("sigmoid", a, False)


def sigmoid_inplace(a: Tensor) -> Tensor:
    """`sigmoid` in place: the result overwrites ``a`` (``ggml_sigmoid_inplace``)."""
    return unary_node("sigmoid", a, True)


def gelu(a: Tensor) -> Tensor:
    """The Gaussian error unit by its tanh formula (``ggml_gelu``); else as `unary`."""
    return unary_node("gelu", a, False)


def gelu_inplace(a: Tensor) -> Tensor:
    """`gelu` in place: the result overwrites ``a`` (``ggml_gelu_inplace``)."""
    return unary_node("gelu", a, True)


def gelu_quick(a: Tensor) -> Tensor:
    """Each element x times sigmoid(1.702 x) (``ggml_gelu_quick``); else as `unary`."""
    return unary_node("gelu_quick", a, False)


def gelu_quick_inplace(a: Tensor) -> Tensor:
    """`gelu_quick` in place: the result overwrites ``a`` (``ggml_gelu_quick_inplace``)."""
    return unary_node("gelu_quick", a, True)


def gelu_erf(a: Tensor) -> Tensor:
    """The Gaussian error unit by the error function (``ggml_gelu_erf``); else as `unary`."""
    return unary_node("gelu_erf", a, False)


def gelu_erf_inplace(a: Tensor) -> Tensor:
    """`gelu_erf` in place: the result overwrites ``a`` (``ggml_gelu_erf_inplace``)."""
    return unary_node("gelu_erf", a, True)


def silu(a: Tensor) -> Tensor:
    """Each element x times sigmoid(x) (``ggml_silu``); else as `unary`."""
    return unary_node("silu", a, False)


def silu_inplace(a: Tensor) -> Tensor:
    """`silu` in place: the result overwrites ``a`` (``ggml_silu_inplace``)."""
    return unary_node("silu", a, True)


def exp(a: Tensor) -> Tensor:
    """The exponential of each element (``ggml_exp``); else as `unary`."""
    return unary_node("exp", a, False)


def exp_inplace(a: Tensor) -> Tensor:
    """`exp` in place: the result overwrites ``a`` (``ggml_exp_inplace``)."""
    return unary_node("exp", a, True)


def sqr(a: Tensor) -> Tensor:
    """The square of each element (``ggml_sqr``); else as `unary`."""
    return unary_node("sqr", a, False)


def sqr_inplace(a: Tensor) -> Tensor:
    """`sqr` in place: the result overwrites ``a`` (``ggml_sqr_inplace``)."""
    return unary_node("sqr", a, True)


def sqrt(a: Tensor) -> Tensor:
    """The square root of each element (``ggml_sqrt``); else as `unary`."""
    return unary_node("sqrt", a, False)


def sqrt_inplace(a: Tensor) -> Tensor:
    """`sqrt` in place: the result overwrites ``a`` (``ggml_sqrt_inplace``)."""
    return unary_node("sqrt", a, True)


def expm1(a: Tensor) -> Tensor:
    """exp(x) - 1 of each element x, exact also near 0 (``ggml_expm1``); else as `unary`."""
    return unary_node("expm1", a, False)


def expm1_inplace(a: Tensor) -> Tensor:
    """`expm1` in place: the result overwrites ``a`` (``ggml_expm1_inplace``)."""
    return unary_node("expm1", a, True)


def softplus(a: Tensor) -> Tensor:
    """log(1 + exp(x)) of each element x, x itself above 20 (``ggml_softplus``); else as `unary`."""
    return unary_node("softplus", a, False)


def softplus_inplace(a: Tensor) -> Tensor:
    """`softplus` in place: the result overwrites ``a`` (``ggml_softplus_inplace``)."""
    return unary_node("softplus", a, True)


def hardswish(a: Tensor) -> Tensor:
    """Each element x times `hardsigmoid` of x (``ggml_hardswish``); else as `unary`."""
    return unary_node("hardswish", a, False)


def hardsigmoid(a: Tensor) -> Tensor:
    """(x + 3) / 6 of each element x, cut off at 0 and 1 (``ggml_hardsigmoid``); else as `unary`."""
    return unary_node("hardsigmoid", a, False)


def floor(a: Tensor) -> Tensor:
    """The largest integer not above each element (``ggml_floor``); else as `unary`."""
    return unary_node("floor", a, False)


def floor_inplace(a: Tensor) -> Tensor:
    """`floor` in place: the result overwrites ``a`` (``ggml_floor_inplace``)."""
    return unary_node("floor", a, True)


def ceil(a: Tensor) -> Tensor:
    """The smallest integer not below each element (``ggml_ceil``); else as `unary`."""
    return unary_node("ceil", a, False)


def ceil_inplace(a: Tensor) -> Tensor:
    """`ceil` in place: the result overwrites ``a`` (``ggml_ceil_inplace``)."""
    return unary_node("ceil", a, True)


def round(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """Each element rounded, halves away from zero (``ggml_round``); else as `unary`."""
    return unary_node("round", a, False)


def round_inplace(a: Tensor) -> Tensor:
    """`round` in place: the result overwrites ``a`` (``ggml_round_inplace``)."""
    return unary_node("round", a, True)


def trunc(a: Tensor) -> Tensor:
    """Each element without its fraction (``ggml_trunc``); else as `unary`."""
    return unary_node("trunc", a, False)


def trunc_inplace(a: Tensor) -> Tensor:
    """`trunc` in place: the result overwrites ``a`` (``ggml_trunc_inplace``)."""
    return unary_node("trunc", a, True)


def log(a: Tensor) -> Tensor:
    """The natural logarithm of each element (``ggml_log``); else as `unary`."""
    return unary_node("log", a, False)


def log_inplace(a: Tensor) -> Tensor:
    """`log` in place: the result overwrites ``a`` (``ggml_log_inplace``)."""
    return unary_node("log", a, True)


def sin(a: Tensor) -> Tensor:
    """The sine of each element (``ggml_sin``); else as `unary`."""
    return unary_node("sin", a, False)


def sin_inplace(a: Tensor) -> Tensor:
    """`sin` in place: the result overwrites ``a`` (``ggml_sin_inplace``)."""
    return unary_node("sin", a, True)


def cos(a: Tensor) -> Tensor:
    """The cosine of each element (``ggml_cos``); else as `unary`."""
    return unary_node("cos", a, False)


def cos_inplace(a: Tensor) -> Tensor:
    """`cos` in place: the result overwrites ``a`` (``ggml_cos_inplace``)."""
    return unary_node("cos", a, True)
