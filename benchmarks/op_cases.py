"""The cases of the part "ops": operands, and a function that builds the nodes.

The function gets `aggml.ops`, or an object with the same names that calls ggml (op_ggml.py). The
data of an operand follow from the operand alone. Not here: the rows (op_rows/), the contenders that
compute them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import aggml
from aggml import DType

Build = Callable[..., Any]
"""Takes the ops and the operands, gives the result."""


@dataclass(frozen=True)
class Operand:
    """One input tensor.

    Attributes:
        dtype: its element type; data of quantized types are made from f32.
        ne: its extents.
        fill: "normal", "positive", "small" (a tenth of normal), "ids:N" (numbers below N), "rows:N"
            (distinct ones), "mask" (0 or -inf), "triangle", "adamw", "sgd".
    """

    dtype: str
    ne: tuple[int, ...]
    fill: str = "normal"


@dataclass(frozen=True)
class OpCase:
    """The case of one row.

    Attributes:
        inputs: the operands, in the order in which ``build`` takes them.
        copies: how many nodes one run computes, each into memory of its own; many if one would be
            too short to be timed.
    """

    inputs: tuple[Operand, ...]
    build: Build
    copies: int = 1


def given(dtype: str, *ne: int, fill: str = "normal") -> Operand:
    """An operand."""
    return Operand(dtype, ne, fill)


def data(operand: Operand, number: int) -> np.ndarray[Any, Any]:
    """The data of an operand in numpy order; rows of quantized types as bytes."""
    shape, rng = tuple(reversed(operand.ne)), np.random.default_rng(number + 1)
    kind, _, most = operand.fill.partition(":")
    if kind == "rows":
        plane = rng.permutation(int(most))[: operand.ne[0]]
        return np.broadcast_to(plane, shape).astype(DType.parse(operand.dtype).numpy)
    if kind == "ids":
        return rng.integers(0, int(most), shape).astype(DType.parse(operand.dtype).numpy)
    if kind == "adamw":
        return np.array([1e-3, 0.9, 0.999, 1e-8, 1e-2, 10.0, 1000.0], np.float32)
    if kind == "sgd":
        return np.array([1e-3, 1e-2], np.float32)
    if kind == "mask":
        made = np.where(np.tri(shape[-2], shape[-1]) > 0, np.float32(0), np.float32(-np.inf))
        made = np.broadcast_to(made, shape)
    else:
        # Repeated: drawing millions of random numbers would take longer than measuring.
        count = math.prod(shape)
        base = rng.standard_normal(min(count, 1 << 16), np.float32)
        made = np.resize(base, count).reshape(shape)
    if kind == "positive":
        made = np.abs(made) + np.float32(0.1)
    elif kind == "small":
        made = made * np.float32(0.1)
    elif kind == "triangle":
        made = np.tril(made) * np.float32(0.02) + np.eye(shape[-1], dtype=np.float32)
    if operand.dtype == "f32":
        return np.ascontiguousarray(made)
    if operand.dtype in ("f16", "bf16"):
        return made.astype(np.float16 if operand.dtype == "f16" else ml_dtypes.bfloat16)
    if DType.parse(operand.dtype).numpy is not None:
        return made.astype(DType.parse(operand.dtype).numpy)
    rows = made.reshape(-1, operand.ne[0])
    few = aggml.quantize(rows[:16], operand.dtype, imatrix=np.ones(operand.ne[0], np.float32))
    size = DType.parse(operand.dtype).row_size(operand.ne[0])
    return np.resize(few, (*shape[:-1], size))
