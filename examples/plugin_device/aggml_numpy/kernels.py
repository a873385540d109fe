"""The kernels of the device, in numpy, and which nodes they can compute.

Here: functions of arrays whose axes are in numpy order, ne[0] last. Not here: memory (memory.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import aggml

__all__ = ["KERNELS", "VIEWS", "problem"]

Array = np.ndarray[Any, Any]


#: Ops that compute nothing: their nodes are views or leaves.
VIEWS = frozenset({"none", "view", "reshape", "permute", "transpose"})


def _floats(node: aggml.Tensor, n: int) -> tuple[float, ...]:
    """The first ``n`` parameters of a node, which are floats."""
    return struct.unpack_from(f"{n}f", node.op_params)


def _mul_mat(_: aggml.Tensor, src: Sequence[Array]) -> Array:
    a, b = src
    for axis in (0, 1):  # repeat the matrices of a: each is used with several of b
        a = np.repeat(a, b.shape[axis] // a.shape[axis], axis)
    product: Array = np.matmul(b, a.swapaxes(2, 3))
    return product


def _scale(node: aggml.Tensor, src: Sequence[Array]) -> Array:
    factor, bias = _floats(node, 2)
    scaled: Array = src[0] * np.float32(factor) + np.float32(bias)
    return scaled


def _rms_norm(node: aggml.Tensor, src: Sequence[Array]) -> Array:
    (eps,) = _floats(node, 1)
    mean = np.mean(np.square(src[0], dtype=np.float64), -1, keepdims=True)
    normed: Array = (src[0] / np.sqrt(mean + eps)).astype(np.float32)
    return normed


def _soft_max(node: aggml.Tensor, src: Sequence[Array]) -> Array:
    (factor,) = _floats(node, 1)
    x = src[0] * np.float32(factor)
    x = np.exp(x - x.max(-1, keepdims=True))
    shares: Array = x / x.sum(-1, keepdims=True)
    return shares


def _silu(_: aggml.Tensor, src: Sequence[Array]) -> Array:
    gated: Array = src[0] / (1 + np.exp(-src[0]))
    return gated


KERNELS: dict[str, Callable[[aggml.Tensor, Sequence[Array]], Array]] = {
    "add": lambda _, src: src[0] + src[1],
    "sub": lambda _, src: src[0] - src[1],
    "mul": lambda _, src: src[0] * src[1],
    "div": lambda _, src: src[0] / src[1],
    "mul_mat": _mul_mat,
    "scale": _scale,
    "sqr": lambda _, src: src[0] * src[0],
    "sqrt": lambda _, src: np.sqrt(src[0]),
    "neg": lambda _, src: -src[0],
    "abs": lambda _, src: np.abs(src[0]),
    "relu": lambda _, src: np.maximum(src[0], 0),
    "silu": _silu,
    "rms_norm": _rms_norm,
    "soft_max": _soft_max,
    "cont": lambda node, src: src[0].reshape(node.ne[::-1]),
    "cpy": lambda node, src: src[0].reshape(node.ne[::-1]),
}


def problem(node: aggml.Tensor) -> str | None:
    """Why no kernel can compute this node; None if one can."""
    if node.op in VIEWS:
        return None
    if node.op not in KERNELS:
        return f"there is no kernel for {node.op!r}"
    given = [src for src in node.src if src is not None]
    for tensor in (node, *given):
        if tensor.dtype.type_name != "f32":
            return f"{tensor!r} is not f32"
    if node.op in ("add", "sub", "mul", "div"):
        # ggml repeats a smaller operand as often as it fits, numpy from extent 1 only
        a, b = given
        if any(n not in (1, m) for n, m in zip(b.ne, a.ne, strict=True)):
            return f"{b!r} would have to be repeated from more than one element"
    if node.op == "soft_max" and len(given) > 1:
        return "masks are not implemented"
    return None
