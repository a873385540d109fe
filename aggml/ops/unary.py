"""Functions of one number, element by element: abs, neg, relu, gelu, silu, exp, sqr, sqrt, ...

Here: shapes, types, checks. Not here: functions with parameters (unary_params.py), gated units
(glu.py), kernels (native/kernels/*/unary.c).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from aggml.ops._common import by_name, member
from aggml.ops._unary import Unary, in_place, unary_node

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
    found = member("unary", "op", op, _OPS)
    return unary_node(_NAMES[found], a, False)


def unary_inplace(a: Tensor, op: UnaryOp | str | int) -> Tensor:
    """`unary` in place: the result overwrites ``a`` (``ggml_unary_inplace``)."""
    found = member("unary_inplace", "op", op, _OPS)
    return unary_node(_NAMES[found], a, True)


def abs(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """The absolute value of each element (``ggml_abs``); else as `unary`."""
    return unary_node("abs", a, False)


def sgn(a: Tensor) -> Tensor:
    """The sign of each element: -1, 0 or 1 (``ggml_sgn``); else as `unary`."""
    return unary_node("sgn", a, False)


def neg(a: Tensor) -> Tensor:
    """Each element with the opposite sign (``ggml_neg``); else as `unary`."""
    return unary_node("neg", a, False)


def step(a: Tensor) -> Tensor:
    """1 where an element is above 0, else 0 (``ggml_step``); else as `unary`."""
    return unary_node("step", a, False)


def tanh(a: Tensor) -> Tensor:
    """The hyperbolic tangent of each element (``ggml_tanh``); else as `unary`."""
    return unary_node("tanh", a, False)


def elu(a: Tensor) -> Tensor:
    """Each element x, or exp(x) - 1 where x is negative (``ggml_elu``); else as `unary`."""
    return unary_node("elu", a, False)


def relu(a: Tensor) -> Tensor:
    """Each element, 0 where negative or NaN (``ggml_relu``); else as `unary`."""
    return unary_node("relu", a, False)


def sigmoid(a: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) of each element x (``ggml_sigmoid``); else as `unary`."""
    return unary_node("sigmoid", a, False)


def gelu(a: Tensor) -> Tensor:
    """The Gaussian error unit by its tanh formula (``ggml_gelu``); else as `unary`."""
    return unary_node("gelu", a, False)


def gelu_quick(a: Tensor) -> Tensor:
    """Each element x times sigmoid(1.702 x) (``ggml_gelu_quick``); else as `unary`."""
    return unary_node("gelu_quick", a, False)


def gelu_erf(a: Tensor) -> Tensor:
    """The Gaussian error unit by the error function (``ggml_gelu_erf``); else as `unary`."""
    return unary_node("gelu_erf", a, False)


def silu(a: Tensor) -> Tensor:
    """Each element x times sigmoid(x) (``ggml_silu``); else as `unary`."""
    return unary_node("silu", a, False)


def exp(a: Tensor) -> Tensor:
    """The exponential of each element (``ggml_exp``); else as `unary`."""
    return unary_node("exp", a, False)


def sqr(a: Tensor) -> Tensor:
    """The square of each element (``ggml_sqr``); else as `unary`."""
    return unary_node("sqr", a, False)


def sqrt(a: Tensor) -> Tensor:
    """The square root of each element (``ggml_sqrt``); else as `unary`."""
    return unary_node("sqrt", a, False)


def expm1(a: Tensor) -> Tensor:
    """exp(x) - 1 of each element x, exact also near 0 (``ggml_expm1``); else as `unary`."""
    return unary_node("expm1", a, False)


def softplus(a: Tensor) -> Tensor:
    """log(1 + exp(x)) of each element x, x itself above 20 (``ggml_softplus``); else as `unary`."""
    return unary_node("softplus", a, False)


def hardswish(a: Tensor) -> Tensor:
    """Each element x times `hardsigmoid` of x (``ggml_hardswish``); else as `unary`."""
    return unary_node("hardswish", a, False)


def hardsigmoid(a: Tensor) -> Tensor:
    """(x + 3) / 6 of each element x, cut off at 0 and 1 (``ggml_hardsigmoid``); else as `unary`."""
    return unary_node("hardsigmoid", a, False)


def floor(a: Tensor) -> Tensor:
    """The largest integer not above each element (``ggml_floor``); else as `unary`."""
    return unary_node("floor", a, False)


def ceil(a: Tensor) -> Tensor:
    """The smallest integer not below each element (``ggml_ceil``); else as `unary`."""
    return unary_node("ceil", a, False)


def round(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """Each element rounded, halves away from zero (``ggml_round``); else as `unary`."""
    return unary_node("round", a, False)


def trunc(a: Tensor) -> Tensor:
    """Each element without its fraction (``ggml_trunc``); else as `unary`."""
    return unary_node("trunc", a, False)


def log(a: Tensor) -> Tensor:
    """The natural logarithm of each element (``ggml_log``); else as `unary`."""
    return unary_node("log", a, False)


def sin(a: Tensor) -> Tensor:
    """The sine of each element (``ggml_sin``); else as `unary`."""
    return unary_node("sin", a, False)


def cos(a: Tensor) -> Tensor:
    """The cosine of each element (``ggml_cos``); else as `unary`."""
    return unary_node("cos", a, False)


abs_inplace: Unary = in_place("abs")
ceil_inplace: Unary = in_place("ceil")
cos_inplace: Unary = in_place("cos")
elu_inplace: Unary = in_place("elu")
exp_inplace: Unary = in_place("exp")
expm1_inplace: Unary = in_place("expm1")
floor_inplace: Unary = in_place("floor")
gelu_erf_inplace: Unary = in_place("gelu_erf")
gelu_inplace: Unary = in_place("gelu")
gelu_quick_inplace: Unary = in_place("gelu_quick")
log_inplace: Unary = in_place("log")
neg_inplace: Unary = in_place("neg")
relu_inplace: Unary = in_place("relu")
round_inplace: Unary = in_place("round")
sgn_inplace: Unary = in_place("sgn")
sigmoid_inplace: Unary = in_place("sigmoid")
silu_inplace: Unary = in_place("silu")
sin_inplace: Unary = in_place("sin")
softplus_inplace: Unary = in_place("softplus")
sqr_inplace: Unary = in_place("sqr")
sqrt_inplace: Unary = in_place("sqrt")
step_inplace: Unary = in_place("step")
tanh_inplace: Unary = in_place("tanh")
trunc_inplace: Unary = in_place("trunc")
