"""DeviceFixtures: fixtures and helpers of all parts of the suite: device, backends, numbers.

Not here: tests.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Array",
    "DeviceFixtures",
    "N",
    "Sum",
    "needs",
    "place",
    "place_array",
    "ramp",
    "sum_graph",
    "sum_on",
    "vector",
]

Array = np.ndarray[Any, Any]
N = 16


class DeviceFixtures:
    """Fixtures of the suite; a subclass overrides ``device``."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    @pytest.fixture
    def device(self) -> aggml.Device:
        """The device under test."""
        raise NotImplementedError("override the fixture `device` of DeviceTests")

    @pytest.fixture
    def be(self, device: aggml.Device) -> Iterator[aggml.Backend]:
        """An open backend of the device."""
        yield from _open(device.backend())

    @pytest.fixture
    def other(self, device: aggml.Device) -> Iterator[aggml.Backend]:
        """A second open backend of the same device."""
        yield from _open(device.backend())

    @pytest.fixture
    def cpu(self) -> Iterator[aggml.Backend]:
        """An open backend of the CPU, for copies to the host and back."""
        yield from _open(aggml.get_device("CPU").backend())

    @pytest.fixture
    def rng(self, request: pytest.FixtureRequest) -> np.random.Generator:
        """A generator whose seed is fixed for each test."""
        return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def _open(backend: aggml.Backend) -> Iterator[aggml.Backend]:
    yield backend
    while backend.stream.native.release():
        pass
    backend.stream.abort()
    backend.close()
    assert backend.synchronize().wait(10), f"{backend!r} has not finished its work within 10 s"


def ramp(n: int = N, start: float = 0) -> Array:
    """``start``, ``start + 1``, ..."""
    return np.arange(n, dtype=np.float32) + np.float32(start)


def place(
    be: aggml.Backend, ne: tuple[int, ...] = (N,), dtype: str = "f32", name: str = "t"
) -> Tensor:
    """Make a new tensor in memory of ``be``."""
    tensor = aggml.new_tensor(dtype, ne=ne, name=name)
    be.alloc([tensor])
    return tensor


def place_array(be: aggml.Backend, value: Array, name: str = "t") -> Tensor:
    """A new f32 tensor in memory of ``be`` that holds ``value``."""
    tensor = place(be, value.shape[::-1], name=name)
    assert be.set(tensor, value, copy=True).wait(10)
    return tensor


@dataclass(frozen=True)
class Sum:
    """The graph y = a + b."""

    a: Tensor
    b: Tensor
    y: Tensor
    graph: Graph

    def run(self, be: aggml.Backend, a: Array, b: Array) -> aggml.Future[Array]:
        """Set a and b, compute, get y."""
        return be.run(self.graph, {self.a: a, self.b: b}, self.y)


def needs(device: aggml.Device, graph: Graph) -> None:
    """Skip the test if the device cannot run the graph that the test uses."""
    missing = [node.op for node in graph.nodes if not device.supports_op(node)]
    if missing:
        pytest.skip(f"{device.name} cannot run {missing[0]!r}, with which this test is made")


def vector(n: int = N, name: str = "") -> Tensor:
    """A new f32 tensor without memory."""
    return aggml.new_tensor("f32", ne=(n,), name=name)


def sum_graph(n: int = N) -> Sum:
    """The graph y = a + b, without memory."""
    a, b = vector(n, "a"), vector(n, "b")
    y = ops.add(a, b).set_name("y")
    return Sum(a, b, y, Graph(y))


def sum_on(be: aggml.Backend, n: int = N) -> Sum:
    """The graph y = a + b in memory of ``be``. If its device cannot add, the test is skipped."""
    s = sum_graph(n)
    needs(be.device, s.graph)
    be.alloc_graph(s.graph)
    return s
