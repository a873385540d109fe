"""Functions of one number that take parameters: clamp, leaky_relu, xielu.

Here: shapes, types, checks. Not here: kernels (native/kernels/), functions without (unary.py).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from aggml.ops._common import pack
from aggml.ops._unary import unary_node

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = ["clamp", "clamp_inplace", "leaky_relu", "xielu"]

_FLOATS = struct.Struct("<5f44x")
_XIELU = struct.Struct("<i4f44x")
_XIELU_ID = 17


def xielu(
    a: Tensor, alpha_n: float, alpha_p: float, beta: float = 0.5, eps: float = -1e-6
) -> Tensor:
    """The xIELU activation of each element x (``ggml_xielu``); else as `unary`.

    ``p x^2 + beta x`` above 0, else ``(exp(min(x, eps)) - 1 - x) (n + beta) + beta x``, where n and
    p are the soft plus of ``alpha_n`` and ``alpha_p``.

    Args:
        a: any shape, f32, f16 or bf16, rows without gaps.
        alpha_n: of the negative side, before soft plus.
        alpha_p: of the positive side, before soft plus.
        beta: slope at 0.
        eps: upper limit of the argument of exp.

    Raises:
        InvalidArgument: a number that f32 cannot hold.
        LayoutMismatch: the rows of ``a`` have gaps.
        Unsupported: the type of ``a``.
    """
    params = pack("xielu", _FLOATS, 0.0, alpha_n, alpha_p, beta, eps)
    _, n, p, beta, _ = _FLOATS.unpack(params)
    params = pack("xielu", _XIELU, _XIELU_ID, beta + _softplus(n), _softplus(p), beta, eps)
    return unary_node("xielu", a, False, params)


def _softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))


def clamp(a: Tensor, min: float, max: float) -> Tensor:  # noqa: A002 - ggml's names
    """Limit each element to ``min`` and ``max`` (``ggml_clamp``).

    NaN becomes ``max``.

    Args:
        a: any shape, f32 or f16, rows without gaps.
        min: the least element of the result.
        max: the largest, unless it is below ``min``.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: a number that f32 cannot hold.
        LayoutMismatch: the rows of ``a`` have gaps.
        Unsupported: the type of ``a``.
    """
    return unary_node("clamp", a, False, pack("clamp", _FLOATS, min, max, 0.0, 0.0, 0.0))


def clamp_inplace(a: Tensor, min: float, max: float) -> Tensor:  # noqa: A002 - ggml's names
    """`clamp` in place: the result overwrites ``a`` (``ggml_clamp_inplace``).

    Returns:
        A view of ``a``.
    """
    return unary_node("clamp", a, True, pack("clamp_inplace", _FLOATS, min, max, 0.0, 0.0, 0.0))


def leaky_relu(a: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Each element, multiplied by ``negative_slope`` where it is negative (``ggml_leaky_relu``).

    Args:
        a: any shape, f32 or f16, rows without gaps.
        negative_slope: the factor.
        inplace: whether the result overwrites ``a``.

    Returns:
        A tensor of the type and extents of ``a``; a view of it if in place.

    Raises:
        InvalidArgument: a number that f32 cannot hold.
        LayoutMismatch: the rows of ``a`` have gaps.
        Unsupported: the type of ``a``.
    """
    params = pack("leaky_relu", _FLOATS, negative_slope, 0.0, 0.0, 0.0, 0.0)
    return unary_node("leaky_relu", a, bool(inplace), params)
