"""Small graphs, tensors with known contents, a way to tell the event loops apart. No tests here."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import trio.testing

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
N = 16


def vector(n: int = N, name: str = "", dtype: str = "f32") -> aggml.Tensor:
    return aggml.new_tensor(dtype, ne=(n,), name=name)


def ramp(n: int = N, start: float = 0) -> Array:
    return np.arange(n, dtype=np.float32) + np.float32(start)


def placed(be: aggml.Backend, n: int = N, name: str = "t", dtype: str = "f32") -> aggml.Tensor:
    """A vector in memory of ``be``."""
    tensor = vector(n, name, dtype)
    be.alloc([tensor])
    return tensor


def holding(be: aggml.Backend, value: Array, name: str = "t") -> aggml.Tensor:
    """A vector of f32 in memory of ``be`` with these contents."""
    tensor = placed(be, value.size, name)
    assert be.set(tensor, value, copy=True).wait(60)
    return tensor


@dataclass(frozen=True)
class Sum:
    """y = a + b."""

    a: aggml.Tensor
    b: aggml.Tensor
    y: aggml.Tensor
    graph: Graph

    def run(self, be: aggml.Backend, a: Array, b: Array) -> aggml.Future[Array]:
        return be.run(self.graph, {self.a: a, self.b: b}, self.y)


def sum_graph(n: int = N) -> Sum:
    a, b = vector(n, "a"), vector(n, "b")
    y = ops.add(a, b).set_name("y")
    return Sum(a, b, y, Graph(y))


def sum_on(be: aggml.Backend, n: int = N) -> Sum:
    """The same, placed."""
    s = sum_graph(n)
    be.alloc_graph(s.graph)
    return s


def on_trio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


@contextmanager
def assert_checkpoint() -> Iterator[None]:
    """The block lets other tasks run; on trio it also looks for a cancellation."""
    if on_trio():
        with trio.testing.assert_checkpoints():
            yield
        return
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    yield
    assert ran, "nothing else could run meanwhile"


@contextmanager
def without_collector() -> Iterator[None]:
    """What ends in the block ends without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def child(code: str) -> list[str]:
    """Arguments for another interpreter that sees this package; warnings are errors.

    It tells after 90 s where it hangs. The imports alone take 15 s where others have the cores.
    """
    if (
        "os.fork" not in code
    ):  # the forked child would wait for faulthandler's thread, which it lacks
        code = "import faulthandler; faulthandler.dump_traceback_later(90, exit=True)\n" + code
    return [sys.executable, "-P", "-X", "faulthandler", "-W", "error", "-c", code]
