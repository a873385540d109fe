"""Small tensors and graphs for the tests of CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
from support import N

import aggml
from aggml import Graph, ops
from aggml.devices.cuda.plan import CUDAPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aggml.devices.cuda import CUDADevice


def vector(name: str = "", n: int = N) -> aggml.Tensor:
    return aggml.new_tensor("f32", ne=(n,), name=name)


def drawn(kind: str, *ne: int, seed: int, values: dict[aggml.Tensor, NDArray[Any]]) -> aggml.Tensor:
    """A leaf of any type; its normal numbers are entered in ``values``."""
    tensor = aggml.new_tensor(kind, ne=ne)
    x = np.random.default_rng(seed).normal(size=tensor.ne[::-1]).astype(np.float32)
    dtype = tensor.dtype
    if dtype.is_quantized:
        values[tensor] = aggml.quantize(x, dtype, np.ones(x.shape[-1], np.float32))
    else:
        assert dtype.numpy is not None
        values[tensor] = x.astype(dtype.numpy)
    return tensor


def chain(length: int) -> tuple[aggml.Tensor, aggml.Tensor, Graph]:
    """The graph y = x + b + b ..., with its two leaves."""
    x, b = vector("x"), vector("b")
    y = x
    for i in range(length):
        y = ops.add(y, b).set_name(f"y{i}")
    return x, b, Graph(y)


async def launched(
    device: CUDADevice,
    result: aggml.Tensor,
    values: dict[aggml.Tensor, NDArray[Any]],
    *,
    watched: bool,
) -> tuple[NDArray[Any], int]:
    """The result, and how many launches it took. ``watched`` nodes are computed one by one."""
    graph = Graph(result)
    if watched:
        graph = Graph(*graph.nodes)
    async with device.backend() as backend:
        await backend.prepare(graph)
        plan = backend.graph_plan(graph).plan
        found = await backend.run(graph, values, result)
    assert isinstance(plan, CUDAPlan)
    return np.asarray(found), plan.launches


async def turns(n: int = 20) -> None:
    """Let the loop make ``n`` turns, which it can do even while other threads are blocked."""
    for _ in range(n):
        await anyio.lowlevel.checkpoint()
