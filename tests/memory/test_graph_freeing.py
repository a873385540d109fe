"""The memory of a graph is freed when no reference to the graph and its tensors is left.

Python's garbage collector is off in these tests: in a service it may run late or never. Not here:
the memory of models (tests/models/test_freeing.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from support import without_collector

import aggml
from aggml import ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

N = 1024
WEIGHTS = 4 * N * N  # bytes
REST = 1 << 20  # bytes that a backend may keep for the next graph


class Case:
    """relu(w x): the graph whose memory must be freed."""

    def __init__(self) -> None:
        self.w = aggml.new_tensor("f32", ne=(N, N))
        self.x = aggml.new_tensor("f32", ne=(N, 4))
        self.y = ops.relu(ops.mul_mat(self.w, self.x))
        self.graph = aggml.Graph(self.y)
        self.inputs = {self.w: np.eye(N, dtype="f"), self.x: np.ones((4, N), "f")}


async def placed(be: aggml.Backend, case: Case) -> None:
    be.alloc_graph(case.graph)


async def prepared(be: aggml.Backend, case: Case) -> None:
    await be.prepare(case.graph)


async def run(be: aggml.Backend, case: Case) -> None:
    be.alloc_graph(case.graph)
    for _ in range(3):
        assert (await be.run(case.graph, case.inputs, case.y) == 1).all()


async def computed(be: aggml.Backend, case: Case) -> None:
    be.alloc_graph(case.graph)
    for tensor, value in case.inputs.items():
        be.set(tensor, value)
    await be.graph_compute(case.graph)
    await be.graph_compute(case.graph)


async def shown(be: aggml.Backend, case: Case) -> None:
    be.alloc_graph(case.graph)
    assert "mul_mat" in str(be.graph_plan(case.graph))


async def refused(be: aggml.Backend, case: Case) -> None:
    be.alloc_graph(case.graph)
    with pytest.raises(aggml.LayoutMismatch):
        be.run(case.graph, {case.w: np.ones((2, 2), "f")}, case.y)


async def on_two_backends(be: aggml.Backend, case: Case) -> None:
    allocator = aggml.GraphAllocator(be.buffer_type)
    allocator.alloc_graph(case.graph)
    await be.graph_compute(case.graph)
    async with be.device.backend() as other:
        await other.graph_compute(case.graph)


async def a_function(be: aggml.Backend, case: Case) -> None:
    y = ops.map_custom1(case.y, lambda out, a, *_: np.copyto(out, a))
    graph = aggml.Graph(y)
    be.alloc_graph(graph)
    assert (await be.run(graph, case.inputs, y) == 1).all()


WAYS = (placed, prepared, run, computed, shown, refused, on_two_backends, a_function)


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    with without_collector():
        yield


@pytest.fixture
async def sim() -> AsyncGenerator[aggml.Backend]:
    async with SimDevice("SIM", memory=64 << 20).backend() as backend:
        yield backend


def used(backend: aggml.Backend) -> int:
    free, total = backend.device.memory()
    return total - free


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_graph_that_is_dropped_is_free_at_once(
    sim: aggml.Backend, way: Callable[[aggml.Backend, Case], Awaitable[None]]
) -> None:
    case = Case()
    await way(sim, case)
    assert used(sim) >= WEIGHTS
    await sim.synchronize()
    gone = weakref.ref(case.graph), weakref.ref(case.w)
    del case
    with anyio.fail_after(60):
        while used(sim) > REST:  # a plan that ran keeps memory until its stream is idle
            await anyio.lowlevel.checkpoint()
    assert [ref() for ref in gone] == [None, None]


async def test_a_tensor_that_is_kept_keeps_its_value_and_not_the_plans(sim: aggml.Backend) -> None:
    case = Case()
    await run(sim, case)
    y, graph = case.y, weakref.ref(case.graph)
    assert len(sim.plans) == 1
    del case
    assert (graph(), len(sim.plans)) == (None, 0)
    assert (await sim.get(y) == 1).all()


async def test_a_plan_that_is_kept_can_be_shown_when_its_graph_is_gone(sim: aggml.Backend) -> None:
    case = Case()
    sim.alloc_graph(case.graph)
    plan = sim.graph_plan(case.graph).plan
    assert plan.graph is case.graph
    before, graph = str(plan), weakref.ref(case.graph)
    del case
    assert graph() is None
    assert str(plan) == before
    assert [node.op for node in plan.nodes] == ["mul_mat", "relu"]
    with pytest.raises(aggml.InvalidState, match=r"\[Plan\.graph\] graph \d+ is gone"):
        _ = plan.graph


async def test_a_backend_that_is_gone_takes_its_plan_along(sim: aggml.Backend) -> None:
    case = Case()
    allocator = aggml.GraphAllocator(sim.buffer_type)
    allocator.alloc_graph(case.graph)
    other = sim.device.backend()
    await other.graph_compute(case.graph)
    plan = other.plans.find(case.graph)
    assert plan is not None
    gone = weakref.ref(other.plans)
    del other, plan
    with anyio.fail_after(60):
        while gone() is not None:  # a run keeps its plan until the stream is idle
            await anyio.lowlevel.checkpoint()


async def test_memory_that_is_closed_takes_the_plans_of_all_backends_along(
    sim: aggml.Backend,
) -> None:
    case = Case()
    allocator = aggml.GraphAllocator(sim.buffer_type)
    async with sim.device.backend() as other:
        for placing in range(2):
            allocator.alloc_graph(case.graph)
            for backend in (sim, other):
                await backend.graph_compute(case.graph)
            assert (len(sim.plans), len(other.plans)) == (1, 1)
            if placing == 0:
                assert case.graph.memory is not None
                case.graph.memory.close()
                assert (len(sim.plans), len(other.plans)) == (0, 0)
        allocator.close()
        assert (len(sim.plans), len(other.plans)) == (0, 0)


async def test_a_backend_that_is_closed_drops_its_plans(sim: aggml.Backend) -> None:
    case = Case()
    allocator = aggml.GraphAllocator(sim.buffer_type)
    allocator.alloc_graph(case.graph)
    async with sim.device.backend() as other:
        await sim.graph_compute(case.graph)
        await other.graph_compute(case.graph)
    assert (len(sim.plans), len(other.plans)) == (1, 0)
    with pytest.raises(aggml.InvalidState, match="is closed"):
        other.graph_compute(case.graph)
