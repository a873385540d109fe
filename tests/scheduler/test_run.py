"""The scheduler as its user sees it: pins, sizes, states, printed plans.

Here: one submission at a time, by hand. Not here: recorded cases (test_recorded_runs.py),
pipelines (test_pipelines.py), decisions (test_split.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Iterator


Array = np.ndarray[Any, Any]


class Two:
    """y = relu(w0 x) on A, then w1 y on B, then the negative of that on any backend."""

    def __init__(self, **settings: Any) -> None:
        self.a = SimDevice("A").backend()
        self.b = SimDevice("B").backend()
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.w0 = new_tensor("f32", ne=(8, 8), name="w0")
        self.w1 = new_tensor("f32", ne=(8, 8), name="w1")
        self.x = new_tensor("f32", ne=(8, 3), name="x").set_input()
        self.y = ops.relu(ops.mul_mat(self.w0, self.x)).set_name("y")
        self.z = ops.neg(ops.mul_mat(self.w1, self.y)).set_name("z")
        self.graph = Graph(self.z)
        rng = np.random.default_rng(7)
        self.v0, self.v1 = (rng.standard_normal((8, 8), np.float32) for _ in range(2))
        for be, w, v in ((self.a, self.w0, self.v0), (self.b, self.w1, self.v1)):
            be.alloc([w], usage="weights")
            be.set(w, v)
        self.sched = Scheduler([self.a, self.b, self.cpu], **settings)

    def input(self, seed: int = 0) -> Array:
        return np.random.default_rng(seed).standard_normal((3, 8), np.float32)

    def expected(self, x: Array) -> Array:
        result: Array = -(np.maximum(x @ self.v0.T, 0) @ self.v1.T)
        return result


@pytest.fixture
def two() -> Iterator[Two]:
    found = Two()
    yield found
    found.sched.close()
    for be in (found.a, found.b, found.cpu):
        be.close()


@pytest.mark.feature("SC-07")
@pytest.mark.feature("SC-13")
def test_splitting_allocates_nothing(two: Two) -> None:
    assert two.sched.n_splits == 0
    two.sched.split_graph(two.graph)
    assert two.sched.n_splits == 2
    assert [two.sched.buffer_size(b) for b in two.sched.backends] == [0, 0, 0]
    assert two.z.placement is None


@pytest.mark.feature("SC-16")
async def test_run_gives_one_array_or_a_list(two: Two) -> None:
    x = two.input()
    z = await two.sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, two.expected(x), atol=1e-5)
    (z,) = await two.sched.run(two.graph, {two.x: x}, [two.z])
    assert np.allclose(z, two.expected(x), atol=1e-5)
    assert await two.sched.run(two.graph, {two.x: x}) == []


async def test_the_graph_is_left_as_it_was(two: Two) -> None:
    before = [(n, n.src, n.placement) for n in two.graph.nodes]
    await two.sched.run(two.graph, {two.x: two.input()}, two.z)
    assert [(n, n.src, n.placement) for n in two.graph.nodes] == before
    assert two.graph.memory is None
    assert two.x.placement is None


@pytest.mark.feature("SC-01")
def test_what_a_scheduler_is_made_of(two: Two) -> None:
    sim = SimDevice("S").backend()
    cpu = two.cpu
    with pytest.raises(aggml.InvalidArgument, match="backends is empty"):
        Scheduler([])
    with pytest.raises(aggml.CapacityExceeded, match="16"):
        Scheduler([SimDevice(f"S{i}").backend() for i in range(16)] + [cpu])
    with pytest.raises(aggml.InvalidArgument, match="CPU"):
        Scheduler([cpu, sim])
    with pytest.raises(aggml.Unsupported, match="reach"):
        Scheduler([sim, cpu], [cpu.buffer_type, cpu.buffer_type])
    with pytest.raises(aggml.InvalidArgument, match="types"):
        Scheduler([sim, cpu], [cpu.buffer_type])
    with pytest.raises(aggml.InvalidArgument, match="twice"):
        Scheduler([cpu, cpu])
    with pytest.raises(aggml.InvalidHandle):
        Scheduler([sim, "CPU"])  # type: ignore[list-item]
    with pytest.raises(aggml.InvalidHandle):
        Scheduler(5)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument, match="max_in_flight"):
        Scheduler([cpu], max_in_flight=0)
    assert Scheduler([sim, cpu], [sim.buffer_type, cpu.buffer_type]).n_backends == 2


@pytest.mark.feature("SC-05")
@pytest.mark.feature("SC-06")
@pytest.mark.feature("SC-08")
@pytest.mark.feature("SC-09")
def test_what_a_scheduler_tells(two: Two) -> None:
    sched = two.sched
    assert sched.n_backends == 3
    assert [sched.backend(i) for i in range(3)] == [two.a, two.b, two.cpu]
    for i in (-1, 3):
        with pytest.raises(aggml.InvalidArgument):
            sched.backend(i)
    with pytest.raises(aggml.InvalidHandle):
        sched.backend("0")  # type: ignore[arg-type]
    assert sched.n_copies == 1
    assert Scheduler([two.cpu], parallel=True).n_copies == 4
    assert Scheduler([two.cpu], parallel=3).n_copies == 3
    assert sched.buffer_type(two.b) is two.b.buffer_type
    stranger = SimDevice("X").backend()
    for ask in (sched.buffer_type, sched.buffer_size, sched.buffer):
        with pytest.raises(aggml.InvalidArgument, match="not one of"):
            ask(stranger)
        with pytest.raises(aggml.InvalidHandle):
            ask(None)  # type: ignore[arg-type]


@pytest.mark.feature("SC-02")
async def test_a_closed_scheduler_refuses_and_leaves_the_backends(two: Two) -> None:
    async with two.sched:
        future = await two.sched.submit(two.graph, {two.x: two.input()}, two.z)
    assert future.done()
    with pytest.raises(aggml.InvalidState, match="closed"):
        await two.sched.submit(two.graph, {two.x: two.input()}, two.z)
    assert np.allclose(await two.a.get(two.w0), two.v0)
    two.sched.close()
    await two.sched.aclose()


@pytest.mark.feature("SC-11")
@pytest.mark.feature("SC-12")
@pytest.mark.feature("SC-18")
@pytest.mark.feature("SC-24")
async def test_pins_hold_until_reset(two: Two) -> None:
    sched, x = two.sched, two.input()
    assert sched.get_tensor_backend(two.z) is None
    sched.set_tensor_backend(two.z, two.cpu)
    assert sched.get_tensor_backend(two.z) is two.cpu
    for _ in range(2):
        z = await sched.run(two.graph, {two.x: x}, two.z)
        assert np.allclose(z, two.expected(x), atol=1e-5)
        assert sched.n_splits == 3
        assert sched.get_tensor_backend(two.z) is two.cpu
        assert sched.get_tensor_backend(two.y) is two.a
    sched.reset()
    assert sched.get_tensor_backend(two.z) is None
    z = await sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, two.expected(x), atol=1e-5)
    assert sched.n_splits == 2
    assert sched.get_tensor_backend(two.z) is two.b
    with pytest.raises(aggml.InvalidHandle):
        sched.set_tensor_backend("z", two.a)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument):
        sched.set_tensor_backend(two.z, SimDevice("X").backend())


@pytest.mark.feature("SC-03")
@pytest.mark.feature("SC-04")
@pytest.mark.feature("SC-21")
@pytest.mark.feature("SC-23")
async def test_reserving_and_measuring(two: Two) -> None:
    sched = two.sched
    size = sched.reserve_size(two.graph)
    assert [sched.buffer_size(b) for b in sched.backends] == [0, 0, 0]
    assert sched.buffer(two.a) is None
    sched.reserve(two.graph)
    assert tuple(sched.buffer_size(b) for b in sched.backends) == size
    before = sched.buffer(two.a)
    assert before is not None
    assert before.size == size[0]
    await sched.run(two.graph, {two.x: two.input()}, two.z)
    assert sched.buffer(two.a) is before
    big = new_tensor("f32", ne=(8, 300), name="big").set_input()
    bigger = sched.reserve_size(Graph(ops.relu(ops.mul_mat(two.w0, big))))
    assert bigger[0] > size[0]
    assert sched.buffer(two.a) is before  # measuring allocated nothing
    small = SimDevice("small", memory=1024)
    w = new_tensor("f32", ne=(8, 8), name="w")
    tight = Scheduler([small.backend(), two.cpu])
    tight.backend(0).alloc([w], usage="weights")
    with pytest.raises(aggml.AllocFailed):
        tight.reserve(Graph(ops.mul_mat(w, big)))


@pytest.mark.feature("SC-14")
@pytest.mark.feature("SC-22")
async def test_a_graph_placed_by_hand(two: Two) -> None:
    sched, x = two.sched, two.input()
    sched.alloc_graph(two.graph)
    assert two.x.buffer is not None
    assert two.z.buffer is not None
    with pytest.raises(aggml.AlreadyAllocated):
        sched.alloc_graph(two.graph)
    home = sched.get_tensor_backend(two.x)
    assert home is two.cpu  # inputs belong to the last backend
    assert home is not None
    home.set(two.x, x)
    for _ in range(2):  # the value that was set is kept
        sched.graph_compute(two.graph)
        assert np.allclose(await two.b.get(two.z), two.expected(x), atol=1e-5)
    y = two.input(1)
    z = await sched.run(two.graph, {two.x: y}, two.z)
    assert np.allclose(z, two.expected(y), atol=1e-5)
    sched.reset()
    assert two.x.buffer is None
    assert two.z.buffer is None


@pytest.mark.feature("SC-17")
async def test_synchronize_tells_what_nobody_saw(two: Two) -> None:
    await two.sched.run(two.graph, {two.x: two.input()}, two.z)
    await two.sched.synchronize()
    two.b.device.fail_at(0, "compute")
    await two.sched.submit(two.graph, {two.x: two.input()}, two.z)
    done = two.sched.synchronize()
    with pytest.raises(ExceptionGroup) as caught:
        await done
    assert len(caught.value.exceptions) == 1
    await two.sched.synchronize()


async def test_what_cannot_be_brought_or_read_is_refused(two: Two) -> None:
    sched, x = two.sched, two.input()
    with pytest.raises(aggml.NotAllocated, match="cannot be read"):
        await sched.submit(two.graph, {two.x: x}, two.y)
    with pytest.raises(aggml.NotAllocated, match="no leaf"):
        await sched.submit(two.graph, {two.y: x}, two.z)
    with pytest.raises(aggml.LayoutMismatch):
        await sched.submit(two.graph, {two.x: x[:2]}, two.z)
    with pytest.raises(aggml.InvalidHandle):
        await sched.submit(two.graph, [x], two.z)  # type: ignore[call-overload]
    with pytest.raises(aggml.InvalidHandle):
        await sched.submit(two.graph, {two.x: x}, [None])  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidHandle):
        await sched.submit(None, {two.x: x}, two.z)  # type: ignore[call-overload]
    await sched.run(two.graph, {two.x: x}, two.z)
    with pytest.raises(aggml.NotAllocated, match="earlier run"):
        await sched.submit(two.graph, {}, two.z)
    assert np.allclose(await sched.run(two.graph, {two.x: x}, two.z), two.expected(x), atol=1e-5)


async def test_a_leaf_with_memory_keeps_what_is_brought(two: Two) -> None:
    two.a.alloc([two.x])
    x, y = two.input(), two.input(1)
    assert np.allclose(
        await two.sched.run(two.graph, {two.x: x}, two.z), two.expected(x), atol=1e-5
    )
    z = await two.sched.run(two.graph, {}, two.z, reuse=[two.x])
    assert np.allclose(z, two.expected(x), atol=1e-5)
    await two.a.set(two.x, y)
    assert np.allclose(await two.sched.run(two.graph, {}, two.z), two.expected(y), atol=1e-5)
    z, back = await two.sched.run(two.graph, {two.x: x}, [two.z, two.x])
    assert np.allclose(z, two.expected(x), atol=1e-5)
    assert np.array_equal(back, x)


async def test_work_queued_before_on_a_backend_comes_first(two: Two) -> None:
    x = two.input()
    await two.sched.run(two.graph, {two.x: x}, two.z)
    two.b.set(two.w1, two.v1 * 2)
    z = await two.sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, 2 * two.expected(x), atol=1e-5)


@pytest.mark.feature("SC-19")
@pytest.mark.feature("SC-20")
async def test_the_callback_is_asked_for_each_node_and_shown_those_wanted(two: Two) -> None:
    asked: list[str] = []
    shown: dict[str, Array] = {}

    def callback(node: aggml.Tensor, ask: bool) -> bool:
        if ask:
            asked.append(node.name)
            return node is two.y
        assert two.sched.observed is not None
        shown[node.name] = two.sched.observed.copy()
        return True

    two.sched.set_eval_callback(callback)
    x = two.input()
    z = await two.sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, two.expected(x), atol=1e-5)
    assert asked == [n.name for n in two.graph.nodes]
    assert list(shown) == ["y"]
    assert np.allclose(shown["y"], np.maximum(x @ two.v0.T, 0), atol=1e-5)
    # false for the first node: the run ends there
    two.sched.set_eval_callback(lambda _node, ask: ask)
    future = await two.sched.submit(two.graph, {two.x: x}, two.z)
    with pytest.raises(aggml.Aborted, match="callback"):
        await future
    two.sched.set_eval_callback(None)
    z = await two.sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, two.expected(x), atol=1e-5)
    assert len(asked) == len(two.graph.nodes)


async def test_nodes_come_out_of_an_iterator(two: Two) -> None:
    x = two.input()
    seen = [n async for n in two.sched.evaluate(two.graph, {two.x: x})]
    assert [t for t, _ in seen] == list(two.graph.nodes)
    assert np.allclose(seen[-1][1], two.expected(x), atol=1e-5)
    async with two.sched.evaluate(two.graph, {two.x: x}, [two.y]) as nodes:
        async for tensor, array in nodes:
            assert tensor is two.y
            assert np.allclose(array, np.maximum(x @ two.v0.T, 0), atol=1e-5)
            break
    z = await two.sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, two.expected(x), atol=1e-5)


def test_a_plan_is_printed_with_causes(two: Two) -> None:
    two.sched.set_tensor_backend(two.z, two.cpu)
    plan = two.sched.plan(two.graph)
    text = str(plan)
    assert "split 0 on 0 A, 1 copied in" in text
    assert "<- y f32 [8, 3], 96 bytes, from 0 A" in text
    assert plan.cause(two.z) == "usr"
    assert plan.cause(two.w0) == "1.dst"
    assert "[1.wgt0]" in text
    assert text.endswith("*  read from a copy")
    assert "\n[usr] set_tensor_backend pinned it to this backend\n" in text
    assert "[1.off]" not in text  # the legend leaves out signs that do not occur
    dot = plan.dot()
    assert dot.startswith("digraph")
    assert dot.count("subgraph") == len(plan.splits) == 3
    assert dot.count("style=dashed") == 3  # x, y, and the tensor that z is computed from
    assert dot.count("{") == dot.count("}")


def test_a_layout_is_printed_with_what_each_action_waits_for(two: Two) -> None:
    two.sched.set_tensor_backend(two.z, two.cpu)
    two.sched.reserve(two.graph)
    assert two.sched._planner.last is not None
    lines = str(two.sched._planner.last.layouts[None]).splitlines()
    assert lines[0] == f"layout of graph {two.graph.uid}, memory shared"
    assert "set A#x" in lines[2]
    copied = next(line for line in lines if "copy y to B#y" in line)
    assert copied.endswith("after all queued on A down")
    assert len(lines) == 2 + len(two.sched._planner.last.layouts[None].script.actions)


async def test_a_graph_seen_before_is_not_planned_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = two.input()
    await two.sched.run(two.graph, {two.x: x}, two.z)
    from aggml.scheduler import planner

    def never(*_: object, **__: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(planner, "build_split_graph", never)
    monkeypatch.setattr(planner, "lay_out", never)
    z = await two.sched.run(two.graph, {two.x: x}, two.z)
    assert np.allclose(z, two.expected(x), atol=1e-5)


async def test_a_graph_and_what_was_planned_for_it_go_together(two: Two) -> None:
    import gc
    import weakref

    graph = Graph(ops.sqr(two.z))
    await two.sched.run(graph, {two.x: two.input()}, graph.ends[0])
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    assert two.sched._planner.graphs == {}
