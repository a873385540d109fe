"""A graph seen before is enqueued again in one call: no planning, no memory, the same results.

Not here: what is planned the first time (test_run.py).
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimBackend, SimDevice
from aggml.scheduler.running.job import Job
from aggml.stream.slices import finish

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
N = 8


class Counting(SimDevice):
    """Counts the allocations of the device."""

    taken = 0

    def _take(self, size: int) -> None:
        self.taken += 1
        super()._take(size)


class Ladder:
    """Adds 1 to x, n times; every ``every`` nodes the backend changes."""

    def __init__(self, n: int, every: int) -> None:
        self.devices = Counting("A"), Counting("B")
        backends = [d.backend() for d in self.devices]
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.sched = Scheduler([*backends, self.cpu], parallel=True)
        self.n = n
        self.x = new_tensor("f32", ne=N, name="x").set_input()
        y = self.x
        for k in range(n):
            y = ops.scale_bias(y, 1.0, 1.0)
            self.sched.set_tensor_backend(y, backends[k // every % 2])
        self.y = y
        self.graph = Graph(y)

    async def run(self, x: float) -> bool:
        y = await self.sched.run(self.graph, {self.x: np.full(N, x, np.float32)}, self.y)
        return bool((y == x + self.n).all())


@pytest.fixture
def ladder() -> Iterator[Ladder]:
    found = Ladder(8, 2)
    yield found
    found.sched.close()


@pytest.mark.parametrize(("n", "every"), [(6, 2), (400, 100)])
async def test_a_graph_seen_before_takes_no_memory_at_any_number_of_nodes(
    n: int, every: int
) -> None:
    ladder = Ladder(n, every)
    for k in range(40):
        assert await ladder.run(k)
    taken = [d.taken for d in ladder.devices]
    left = []
    for _ in range(4):  # in debug mode asyncio caches source lines, in the first round only
        gc.collect()
        before = sys.getallocatedblocks()
        for k in range(100):
            assert await ladder.run(k)
        gc.collect()
        left.append(sys.getallocatedblocks() - before)
    assert [d.taken for d in ladder.devices] == taken
    assert min(left) < 20  # not one object is left per run, let alone per node
    ladder.sched.close()


async def test_hooks_are_called_once_and_again_when_the_device_changes(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    compute = SimBackend._compute

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return compute(*args)

    monkeypatch.setattr(SimBackend, "_compute", counted)
    for k in range(10):
        assert await ladder.run(k)
    assert calls == 4  # only the first run uses the hooks, in 4 calls; the others are replays
    ladder.devices[0].speed = 1e9
    assert await ladder.run(1)
    assert calls == 8
    assert await ladder.run(2)
    assert calls == 8


async def test_a_fault_is_not_repeated(ladder: Ladder) -> None:
    for kind in ("compute", "transfer"):
        ladder.devices[1].fail_at(0, kind, OSError("unplugged"))
        with pytest.raises(aggml.DeviceError):
            await ladder.run(0)
        for k in range(3):
            assert await ladder.run(k)
        ladder.devices[1].fail_at(0, kind, OSError("again"))
        with pytest.raises(aggml.DeviceError):
            await ladder.run(0)
        assert await ladder.run(5)


async def test_other_outputs_and_arrays_are_other_recordings(ladder: Ladder) -> None:
    x, y = ladder.x, ladder.y
    sched, graph = ladder.sched, ladder.graph
    for k in range(3):
        value = np.full(N, k, np.float32)
        wide = np.repeat(value, 2)
        assert (await sched.run(graph, {x: value}, y) == k + 8).all()
        assert (await sched.run(graph, {x: wide[::2]}, [y]))[0][0] == k + 8
        assert await sched.run(graph, {x: value}) == []
        two = await sched.run(graph, {x: value}, [y, y])
        assert two[0] is not two[1]
        assert (two[1] == k + 8).all()
        with pytest.raises(aggml.NotAllocated):
            await sched.run(graph, {x: value}, graph.nodes[0])


async def test_inputs_in_another_order_go_where_they_belong(ladder: Ladder) -> None:
    """Also for equivalent graphs, which share the recording."""
    names = [f"in {k}" for k in range(3)]
    for _ in range(2):
        x, y, z = (new_tensor("f32", ne=N, name=name).set_input() for name in names)
        end = ops.add(ops.mul(x, y), z)
        graph = Graph(end)
        values = {t: np.full(N, v, np.float32) for t, v in ((x, 2), (y, 3), (z, 4))}
        for k in range(8):
            order = [(x, y, z), (z, y, x), (y, x, z), (z, x, y)][k % 4]
            found = await ladder.sched.run(graph, {t: values[t] for t in order}, end)
            assert (found == 10).all()
            values[z] = values[z] * 1  # an array of its own each time


async def test_misuse_is_refused_after_any_number_of_runs(ladder: Ladder) -> None:
    x, value = ladder.x, np.zeros(N, np.float32)
    sched, graph = ladder.sched, ladder.graph
    for k in range(3):
        assert await ladder.run(k)
        wrong: list[Any] = [[np.zeros(2)], [[ladder.y]], 7, b"y"]
        for outputs in wrong:
            with pytest.raises(aggml.InvalidHandle):
                await sched.run(graph, {x: value}, outputs)
        with pytest.raises(aggml.LayoutMismatch):
            await sched.run(graph, {x: value.astype(np.float64)}, ladder.y)
        with pytest.raises(aggml.LayoutMismatch):
            await sched.run(graph, {x: value[1:]}, ladder.y)
        with pytest.raises(aggml.InvalidHandle):
            await sched.run(graph, [x], ladder.y)  # type: ignore[call-overload]
    assert await ladder.run(9)
    sched.close()
    with pytest.raises(aggml.InvalidState):
        await ladder.run(1)


@pytest.mark.parametrize("device", ["cpu", "sim"])
async def test_a_backend_runs_again_what_it_ran_before(device: str) -> None:
    """Outputs in any order, also after memory moved. What the first run refuses, replays refuse."""
    be = (aggml.get_device("CPU") if device == "cpu" else SimDevice("R")).backend()
    a, b = (new_tensor("f32", ne=(N, 2), name=name).set_input() for name in "ab")
    y, z = ops.sub(a, b).set_output(), new_tensor("f32", ne=N, name="z")
    graph = Graph(ops.mul(y, z))
    be.alloc([z])
    be.alloc_graph(graph)
    one, two = np.full((2, N), 5, np.float32), np.full((2, N), 3, np.float32)
    for k in range(4):
        await be.set(z, np.full(N, k, np.float32))
        for inputs in ({a: one, b: two}, {b: two, a: one}):
            assert (await be.run(graph, inputs, y) == 2).all()
            both = await be.run(graph, inputs, [graph.ends[0], y])
            assert (both[0] == 2 * k).all()
            assert (both[1] == 2).all()
        assert (await be.run(graph, {b: one.reshape(-1)}, y, reuse=[a]) == 0).all()
        assert await be.run(graph, None, [], reuse=[a, b]) == []
        with pytest.raises(aggml.LayoutMismatch):
            be.run(graph, {a: one[:, 1:], b: two}, y)
        with pytest.raises(aggml.InvalidHandle):
            be.run(graph, {a: one, b: two}, [np.zeros(1)])  # type: ignore[arg-type]
        with be.batch():
            inside = be.run(graph, {a: one, b: two}, y)
        assert (await inside == 2).all()
        assert graph.memory is not None
        graph.memory.close()
        with pytest.raises(aggml.NotAllocated):
            be.run(graph, {a: one, b: two}, y)
        be.alloc_graph(graph)
    be.close()
    with pytest.raises(aggml.InvalidState):
        be.run(graph, {a: one, b: two}, y)


async def test_inputs_that_lie_in_memory_are_set_each_time(ladder: Ladder) -> None:
    cpu = ladder.cpu
    b = new_tensor("f32", ne=N, name="b")
    cpu.alloc([b])
    x = new_tensor("f32", ne=N, name="x").set_input()
    y = ops.sqr(ops.add(x, b))
    graph = Graph(y)
    xs = bs = np.zeros(N, np.float32)
    for k in range(6):
        xs, bs = np.full(N, k, np.float32), np.full(N, 10 * k, np.float32)
        assert (await ladder.sched.run(graph, {x: xs, b: bs}, y) == (11 * k) ** 2).all()
    other = new_tensor("f32", ne=N, name="other")
    cpu.alloc([other])
    with pytest.raises(aggml.InvalidArgument, match="other"):
        await ladder.sched.run(graph, {x: xs, b: bs, other: bs}, y)
    for k in range(3):  # the prepared run from before still works
        xs = np.full(N, k, np.float32)
        assert (await ladder.sched.run(graph, {x: xs}, y) == (k + 50) ** 2).all()


async def test_a_replay_is_aborted_watched_and_joined_like_the_first(ladder: Ladder) -> None:
    for k in range(4):
        assert await ladder.run(k)
    with ladder.devices[0].hold(), anyio.move_on_after(0) as scope:
        await ladder.run(0)
    assert scope.cancelled_caught
    assert await ladder.run(1)
    with aggml.trace() as trace, aggml.check_races():
        assert await ladder.run(2)
    assert sum(e.operation == "graph_compute" for e in trace.events) == 4
    future = await ladder.sched.submit(ladder.graph, {ladder.x: np.zeros(N, np.float32)}, ladder.y)
    await future
    times = future.times
    assert times.done is not None
    assert times.submitted <= times.done


async def test_results_leave_no_arrays_behind(ladder: Ladder) -> None:
    for k in range(4):
        assert await ladder.run(k)
    value = np.zeros(N, np.float32)
    before = sys.getrefcount(value)
    for _ in range(5):
        await ladder.sched.run(ladder.graph, {ladder.x: value}, ladder.y)
    await ladder.sched.synchronize()
    for stream in ladder.sched._runner.streams():
        stream.native.release_finished()
    assert sys.getrefcount(value) == before


async def test_what_is_known_does_not_wait_for_the_planning_of_something_new() -> None:
    """Planning 4,000 nodes takes hundreds of turns of the loop, a known graph takes a few."""
    ladder, large = Ladder(8, 2), Ladder(1, 1)
    assert await ladder.run(0)
    y = large.x
    for _ in range(4000):
        y = ops.neg(y)
    graph = Graph(y)
    planned = anyio.Event()

    async def plan() -> None:
        zeros = np.zeros(N, np.float32)
        await (await ladder.sched.submit(graph, {large.x: zeros}, y)).wait_until_done()
        planned.set()

    found: list[aggml.Future[Any]] = []
    async with anyio.create_task_group() as tg:
        tg.start_soon(plan)
        while not ladder.sched._submitter.plans.locked():
            await anyio.lowlevel.checkpoint()
        ones = {ladder.x: np.ones(N, np.float32)}
        # once with outputs that were asked for before, once with new ones
        found.append(await ladder.sched.submit(ladder.graph, ones, ladder.y))
        found.append(await ladder.sched.submit(ladder.graph, ones, [ladder.y] * 2))
        assert not planned.is_set()
        assert ladder.sched._submitter.plans.locked()
    assert planned.is_set()
    for future in found:
        assert (np.array(await future) == 1 + ladder.n).all()


async def test_submissions_of_a_graph_that_is_being_planned_keep_their_order() -> None:
    """The second submission finds the first one's plan before the first one has used it."""
    device = SimDevice("SIM")
    async with device.backend() as sim, aggml.get_device("CPU").backend() as cpu:
        sched = Scheduler([sim, cpu])
        x = new_tensor("f32", ne=(N,), name="x")
        graph = Graph(ops.neg(x))
        order: list[int] = []

        async def client(k: int) -> None:
            future = await sched.submit(graph, {x: np.full(N, k, np.float32)}, graph.nodes[-1])
            order.append(k)
            assert (await future == -k).all()

        await sched._submitter.plans.acquire()  # as if another graph were being planned
        async with anyio.create_task_group() as tg:
            tg.start_soon(client, 0)
            await anyio.wait_all_tasks_blocked()
            finish(
                sched._submitter.plan_steps(
                    Job(graph, {x: np.zeros(N, np.float32)}, graph.nodes[-1])
                )
            )
            tg.start_soon(client, 1)
            await anyio.wait_all_tasks_blocked()
            assert order == []
            sched._submitter.plans.release()
        assert order == [0, 1]
        await sched.aclose()


async def test_an_evaluation_keeps_what_is_known_and_what_is_new_away() -> None:
    ladder, new = Ladder(8, 2), Ladder(3, 1)
    assert await ladder.run(0)
    ended: list[str] = []
    x = np.zeros(N, np.float32)

    async def submit(name: str, graph: Graph, leaf: aggml.Tensor, y: aggml.Tensor) -> None:
        future = await ladder.sched.submit(graph, {leaf: x}, y)
        ended.append(name)
        await future

    nodes = ladder.sched.evaluate(ladder.graph, {ladder.x: x})
    async with anyio.create_task_group() as tg, nodes:
        await anext(nodes)
        tg.start_soon(submit, "known", ladder.graph, ladder.x, ladder.y)
        tg.start_soon(submit, "new", new.graph, new.x, new.y)
        async for _ in nodes:
            assert ended == []
    assert sorted(ended) == ["known", "new"]


async def test_a_graph_that_is_forgotten_is_planned_anew() -> None:
    ladder = Ladder(8, 2)
    async with ladder.sched:
        assert await ladder.run(1.0)
        assert ladder.sched._planner.graphs
        ladder.sched.forget(ladder.graph)
        assert not ladder.sched._planner.graphs
        assert not ladder.sched._planner._remembered
        ladder.sched.forget(ladder.graph)  # forgetting twice does no harm
        assert await ladder.run(2.0)
        with pytest.raises(aggml.InvalidHandle, match="is no Graph"):
            ladder.sched.forget(ladder.y)  # type: ignore[arg-type]


async def test_a_cache_is_written_in_place_across_runs() -> None:
    dev, cpu = SimDevice("A").backend(), aggml.get_device("CPU").backend(n_threads=1)
    cache = new_tensor("f32", ne=(4, 8), name="cache")
    dev.alloc([cache])
    await dev.memset(cache, 0)
    rows = new_tensor("f32", ne=(4, 1), name="rows").set_input()
    at = new_tensor("i64", ne=1, name="at").set_input()
    total = ops.sqr(ops.set_rows(cache, rows, at))
    graph = Graph(total)
    async with Scheduler([dev, cpu], parallel=True) as sched:
        futures = [
            await sched.submit(
                graph,
                {rows: np.full((1, 4), k + 1, np.float32), at: np.array([k], np.int64)},
                total,
            )
            for k in range(8)
        ]
        for k, future in enumerate(futures):
            filled = np.arange(1, 9, dtype=np.float32) * (np.arange(8) <= k)
            assert np.array_equal(await future, np.repeat(filled**2, 4).reshape(8, 4))
