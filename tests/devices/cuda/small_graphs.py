"""Small tensors and graphs for the tests of CUDA devices."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import numpy as np

import aggml
from aggml import Graph, ops

N = 16


def ramp(n: int = N, start: float = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(n, dtype=np.float32) + np.float32(start)


def vector(name: str = "", n: int = N) -> aggml.Tensor:
    return aggml.new_tensor("f32", ne=(n,), name=name)


def chain(length: int) -> tuple[aggml.Tensor, aggml.Tensor, Graph]:
    """The graph y = x + b + b ..., with its two leaves."""
    x, b = vector("x"), vector("b")
    y = x
    for i in range(length):
        y = ops.add(y, b).set_name(f"y{i}")
    return x, b, Graph(y)


async def turns(n: int = 20) -> None:
    """Let the loop make ``n`` turns, which it can do even while other threads are blocked."""
    for _ in range(n):
        await anyio.lowlevel.checkpoint()
