"""Memory of graphs: what is placed where, how long, what may be read; shared leaves; scratch."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_graph, sum_on, vector

import aggml
from aggml import Graph, ops
from aggml.memory.allocators import GraphAllocator

if TYPE_CHECKING:
    from conftest import AnyDevice

    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend, SimDevice


def test_what_gets_memory(be: aggml.Backend) -> None:
    a, b = vector(name="a"), vector(name="b")
    inner = ops.add(a, b)
    shown = ops.add(inner, b).set_output()
    y = ops.add(shown, a)
    mem = be.alloc_graph(Graph(y))
    for tensor in (a, b, shown, y):
        assert tensor.buffer is mem
        assert tensor.address is not None
        assert tensor.address % be.buffer_type.alignment == 0
    assert inner.buffer is None
    with pytest.raises(aggml.NotAllocated, match="set_output"):
        be.get(inner)
    assert mem.size >= 4 * 4 * N


async def test_leaves_already_placed_stay_and_graphs_share_them(be: aggml.Backend) -> None:
    w = holding(be, ramp(), "w")
    where = w.buffer
    x1, x2 = vector(name="x1"), vector(name="x2")
    y1, y2 = ops.add(w, x1), ops.add(w, ops.add(w, x2))
    first, second = Graph(y1), Graph(y2)
    be.alloc_graph(first)
    be.alloc_graph(second)
    assert w.buffer is where
    for k in range(3):
        one = be.run(first, {x1: ramp(start=k)}, y1)
        two = be.run(second, {x2: ramp(start=k)}, y2)
        assert np.array_equal(await one, 2 * ramp() + k)
        assert np.array_equal(await two, 3 * ramp() + k)
    await be.set(w, ramp(start=1))
    assert np.array_equal(await be.run(first, {x1: ramp()}, y1), 2 * ramp() + 1)


async def test_closing_one_graphs_memory_unplaces_leaves_that_another_uses(
    be: aggml.Backend,
) -> None:
    w = vector(name="w")
    y1, y2 = ops.add(w, w), ops.add(w, ops.add(w, w))
    first, second = Graph(y1), Graph(y2)
    mem = be.alloc_graph(first)
    be.alloc_graph(second)
    assert np.array_equal(await be.run(second, {w: ramp()}, y2), 3 * ramp())
    mem.close()
    for call in (
        lambda: be.graph_compute(second),
        lambda: be.run(second, {}, y2),
        lambda: be.get(w),
    ):
        with pytest.raises(aggml.NotAllocated, match="w"):
            call()
    be.alloc([w])
    assert np.array_equal(await be.run(second, {w: ramp()}, y2), 3 * ramp())


async def test_the_placement_lives_as_long_as_the_graph(be: aggml.Backend) -> None:
    s = sum_on(be)  # the memory object is not kept
    gc.collect()
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
    y, a = s.y, s.a
    del s
    gc.collect()
    assert np.array_equal(await be.get(y), 2 * ramp())  # a tensor keeps its buffer alive
    assert np.array_equal(await be.get(a), ramp())


def test_unplaced_and_placed_twice(be: aggml.Backend) -> None:
    s = sum_graph()
    for call in (
        lambda: be.graph_compute(s.graph),
        lambda: be.run(s.graph, None, s.y),
        lambda: be.graph_plan(s.graph),
    ):
        with pytest.raises(aggml.NotAllocated, match=f"Graph {s.graph.uid}"):
            call()
    mem = be.alloc_graph(s.graph)
    with pytest.raises(aggml.AlreadyAllocated):
        be.alloc_graph(s.graph)
    mem.close()
    mem.close()
    with pytest.raises(aggml.NotAllocated):
        be.graph_compute(s.graph)
    with pytest.raises(aggml.NotAllocated):
        be.get(s.y)
    be.alloc_graph(s.graph)
    be.graph_compute(s.graph)


async def test_a_graph_placed_by_another_backend_is_refused(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    s = sum_on(be)
    for call in (
        lambda: other.graph_compute(s.graph),
        lambda: s.run(other, ramp(), ramp()),
        lambda: other.graph_plan(s.graph),
    ):
        with pytest.raises(aggml.InvalidState, match="placed by"):
            call()
    with pytest.raises(aggml.InvalidState, match="placed by"):
        await other.prepare(s.graph)
    with pytest.raises(aggml.AlreadyAllocated):
        other.alloc_graph(s.graph)
    assert other.pending == 0
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


async def test_a_graph_outlives_the_backend_that_placed_it(
    device: AnyDevice, other: aggml.Backend
) -> None:
    async with device.backend() as be:
        s = sum_on(be)
    del be
    gc.collect()
    with pytest.raises(aggml.InvalidState):
        s.run(other, ramp(), ramp())
    assert s.graph.memory is not None
    s.graph.memory.close()
    other.alloc_graph(s.graph)
    assert np.array_equal(await s.run(other, ramp(), ramp()), 2 * ramp())


async def test_a_graph_of_a_graph_allocator_runs_wherever_supported(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    a, b = vector(name="a").set_input(), vector(name="b").set_input()
    inner = ops.add(a, b)
    y = ops.add(inner, b).set_output()
    graph = Graph(y)
    GraphAllocator(be.buffer_type).alloc_graph(graph)
    assert np.array_equal(await be.run(graph, {a: ramp(), b: ramp()}, y), 3 * ramp())
    assert np.array_equal(await other.run(graph, {a: ramp(), b: ramp()}, y), 3 * ramp())
    with pytest.raises(aggml.AggmlError):  # it has no OUTPUT flag: its bytes were used again
        be.get(inner)


async def test_backends_that_take_turns_compile_a_graph_once_each(
    be: aggml.Backend, other: aggml.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sum_graph()
    be.alloc([s.a, s.b, s.y])
    memory = GraphAllocator(be.buffer_type)
    memory.alloc_graph(s.graph)
    compiled: list[aggml.Backend] = []
    compiling = type(be)._compile

    def count(self: aggml.Backend, *args: Any) -> Any:
        compiled.append(self)
        return compiling(self, *args)

    monkeypatch.setattr(type(be), "_compile", count)
    plans, one = [], be
    for k in range(4):
        for one in (be, other):
            assert (await s.run(one, ramp(), ramp(start=k)) == ramp() + ramp(start=k)).all()
            await one.graph_compute(s.graph)
            plans.append(one.graph_plan(s.graph).plan)
    assert compiled == [be, other]
    assert len(set(map(id, plans))) == 2
    kept = be.plans.find(s.graph)
    assert kept is not None
    before = list(kept.prepared.values())  # empty for a backend that runs through the hooks
    await s.run(other, ramp(), ramp())
    await s.run(be, ramp(), ramp())
    assert be.plans.find(s.graph) is kept
    assert list(kept.prepared.values()) == before
    third = be.device.backend()
    await s.run(third, ramp(), ramp())
    assert compiled == [be, other, third]
    gone = weakref.ref(third.plans.find(s.graph))
    assert gone() is not None
    await third.aclose()
    gc.collect()
    assert gone() is None
    assert be.plans.find(s.graph) is kept


async def test_growing_scratch_recompiles_nothing_and_keeps_the_old_until_done(
    be: aggml.Backend,
) -> None:
    def deep(n: int) -> tuple[aggml.Tensor, aggml.Tensor, Graph]:
        a = vector(n, "a")
        y = ops.add(ops.add(ops.add(a, a), a), a)
        return a, y, Graph(y)

    a1, y1, small = deep(64)
    a2, y2, large = deep(1 << 18)
    be.alloc_graph(small)
    plan = be.graph_plan(small)
    native = plan.plan
    with be.stream.hold():
        before = be.run(small, {a1: ramp(64)}, y1)
        be.alloc_graph(large)
        between = be.run(large, {a2: ramp(1 << 18)}, y2)
        after = be.run(small, {a1: ramp(64)}, y1)
    assert np.array_equal(await before, 4 * ramp(64))
    assert np.array_equal(await between, 4 * ramp(1 << 18))
    assert np.array_equal(await after, 4 * ramp(64))
    assert plan.plan is native


async def test_prepare_places_and_compiles(be: aggml.Backend) -> None:
    s = sum_graph()
    await be.prepare(s.graph)
    await be.prepare(s.graph)
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
    await be.reserve(1 << 20)
    await be.reserve(0)


async def test_prepare_gives_way_to_the_loop(be: aggml.Backend) -> None:
    a = vector(name="a")
    y = a
    for _ in range(3000):
        y = ops.add(y, a)
    graph = Graph(y)
    turns = 0

    async def ticker() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticker)
        await be.prepare(graph)
        tasks.cancel_scope.cancel()
    assert turns > 3


async def test_cancelled_prepare_leaves_a_graph_that_can_be_prepared_again(
    be: aggml.Backend,
) -> None:
    s = sum_graph()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await be.prepare(s.graph)
    await be.prepare(s.graph)
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


def test_alloc_of_nothing_and_of_empty_tensors(be: aggml.Backend) -> None:
    assert be.alloc([]).size == 0
    empty = aggml.new_tensor("f32", ne=(0, 3), name="empty")
    buffer = be.alloc([empty])
    assert buffer.size == 0
    assert empty.buffer is buffer


async def test_empty_tensors_everywhere(be: aggml.Backend) -> None:
    a, b = (
        aggml.new_tensor("f32", ne=(0, 3), name="a"),
        aggml.new_tensor("f32", ne=(0, 3), name="b"),
    )
    be.alloc([a])
    await be.set(a, np.empty((3, 0), np.float32))
    assert (await be.get(a)).size == 0
    await be.memset(a, 0)
    await be.set(a, b"", offset=0)
    be.alloc([b])
    await be.copy(a, b)
    y = ops.add(a, b)
    graph = Graph(y)
    be.alloc_graph(graph)
    assert (await be.run(graph, {a: np.empty((3, 0), np.float32)}, y)).size == 0


async def test_a_graph_of_leaves_and_one_of_views(be: aggml.Backend) -> None:
    leaf = vector(name="leaf")
    graph = Graph(leaf)
    be.alloc_graph(graph)
    assert np.array_equal(await be.run(graph, {leaf: ramp()}, leaf), ramp())
    half = ops.view_1d(leaf, N // 2, 4 * (N // 2))
    view = Graph(half)
    be.alloc_graph(view)
    assert np.array_equal(await be.run(view, None, half), ramp()[N // 2 :])


async def test_views_are_never_placed(be: aggml.Backend) -> None:
    a = vector(name="a")
    view = ops.view_1d(a, 4, 8)
    y = ops.add(view, view)
    end = ops.reshape_2d(y, 2, 2)
    graph = Graph(end)
    be.alloc_graph(graph)
    assert view.placement is None
    assert end.placement is None
    assert end.buffer is y.buffer
    assert np.array_equal(await be.run(graph, {a: ramp()}, end), 2 * ramp()[2:6].reshape(2, 2))
    for placed_with in (view, end):
        with pytest.raises(aggml.InvalidArgument, match="view"):
            be.alloc([placed_with])


def test_alloc_is_all_or_nothing(be: aggml.Backend) -> None:
    fresh, taken = vector(name="fresh"), placed(be, name="taken")
    with pytest.raises(aggml.AlreadyAllocated, match="taken"):
        be.alloc([fresh, taken])
    assert fresh.buffer is None
    be.alloc([fresh, fresh])
    assert fresh.buffer is not None


async def test_usage_may_change_at_any_time(be: aggml.Backend) -> None:
    s = sum_graph()
    buffer = be.alloc([s.a])
    assert buffer.usage is aggml.BufferUsage.ANY
    be.alloc_graph(s.graph)
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
    buffer.usage = aggml.BufferUsage.WEIGHTS
    assert np.array_equal(await s.run(be, ramp(), ramp(start=1)), 2 * ramp() + 1)
    assert buffer.usage is aggml.BufferUsage.WEIGHTS


async def test_device_memory_is_counted_and_given_back(sim: SimBackend) -> None:
    total = sim.device.memory()[1]
    s = sum_on(sim, 1 << 16)
    assert sim.device.memory()[0] <= total - 3 * 4 * (1 << 16)
    with sim.hold():
        run = s.run(sim, ramp(1 << 16), ramp(1 << 16))
        assert s.graph.memory is not None
        s.graph.memory.close()
        del s
        gc.collect()
        assert sim.device.memory()[0] < total  # work in flight keeps the memory
    await run
    del run
    sim.stream.native.release_finished()
    gc.collect()
    assert sim.device.memory()[0] == total


def test_a_full_device_refuses_and_stays_usable(sim: SimBackend) -> None:
    from aggml.devices.sim import SimDevice

    with SimDevice("SMALL", memory=4096).backend() as small:
        kept = placed(small, 512)
        with pytest.raises(aggml.AllocFailed, match="4096"):
            placed(small, 1024)
        with pytest.raises(aggml.AllocFailed):
            sum_on(small, 1024)
        assert placed(small, 256).buffer is not None
        assert small.set(kept, ramp(512)).wait(60)


def test_huge_requests_fail_without_harm(cpu: CPUBackend) -> None:
    with pytest.raises((aggml.AllocFailed, aggml.InvalidArgument, aggml.CapacityExceeded)):
        placed(cpu, 1 << 45)
    assert placed(cpu, 16).buffer is not None


async def test_a_closed_backend_gives_its_scratch_back_once_queued_runs_have_ended(
    sim_device: SimDevice,
) -> None:
    before, total = sim_device.memory()
    be = sim_device.backend()
    x, w = vector(name="x"), vector(name="w")
    y = ops.add(ops.sqr(ops.add(x, w)), w)
    graph = Graph(y)
    placed_in = be.alloc_graph(graph)
    await be.set(w, ramp())
    runs = [be.run(graph, {x: ramp(start=k)}, y) for k in range(8)]
    be.close()
    for k, run in enumerate(runs):
        assert np.array_equal(await run, (2 * ramp() + k) ** 2 + ramp())
    await be.aclose()
    # `be` is still there, and the graph with the memory of its leafs and results.
    assert sim_device.memory() == (before - placed_in.size, total)
