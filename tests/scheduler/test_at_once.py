"""`Scheduler.run` returns its Future at once: order, limits, cancellation, evaluations.

Not here: what a submission computes (test_run.py), `Scheduler.submit` (test_pipelines.py).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

N = 16
pytestmark = pytest.mark.anyio


class Two:
    """``y = weight * 2 x``; the doubling is pinned to one device, the product to another."""

    def __init__(self, **options: Any) -> None:
        self.devices = SimDevice("A"), SimDevice("B")
        self.a, self.b = (device.backend() for device in self.devices)
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.x = new_tensor("f32", ne=(N,), name="x")
        self.weight = new_tensor("f32", ne=(N,), name="weight")
        self.doubled = ops.scale(self.x, 2.0)
        self.y = ops.mul(self.doubled, self.weight).set_name("y")
        self.graph = Graph(self.y)
        self.b.alloc([self.weight], usage="weights")
        self.b.set(self.weight, np.full(N, 3, np.float32))
        self.sched = Scheduler([self.a, self.b, self.cpu], **options)
        self.sched.set_tensor_backend(self.doubled, self.a)
        self.sched.set_tensor_backend(self.y, self.b)

    def run(self, k: float) -> aggml.Future[Any]:
        return self.sched.run(self.graph, {"x": np.full(N, k, np.float32)}, "y")


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    found = Two(parallel=True)
    async with found.a, found.b, found.cpu, found.sched:
        yield found


def test_without_a_loop_a_new_graph_runs_and_get_returns_its_result() -> None:
    two = Two()
    with two.a, two.b, two.cpu, two.sched:
        futures = [two.run(k) for k in range(9)]  # more than may be in flight
        assert all(isinstance(future, aggml.Future) for future in futures)
        for k, future in enumerate(futures):
            assert (future.get(60) == 6 * k).all()


async def test_more_than_may_be_in_flight_are_queued_at_once_and_done_in_order(two: Two) -> None:
    await two.run(0)
    with two.devices[1].hold():
        futures = [two.run(k) for k in range(20)]
        assert not any(future.done() for future in futures)
    found = []
    async for future in aggml.as_completed(futures):
        found.append(future)
        assert all(f.done() for f in futures[: len(found)])
    for k, future in enumerate(futures):
        assert (await future == 6 * k).all()


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_no_more_than_max_in_flight_ever_begin(limit: int) -> None:
    two = Two(parallel=True, max_in_flight=limit)
    async with two.a, two.b, two.cpu, two.sched:
        for _ in range(2):  # planned by the call, then recorded
            futures = []
            with two.devices[1].hold():
                for k in range(8):
                    futures.append(two.run(k))
                    if k % 3 == 0:
                        await anyio.lowlevel.checkpoint()
            await futures[-1]
            for earlier, later in zip(futures, futures[limit:], strict=False):
                begun, done = later.times.started, earlier.times.done
                assert begun is not None
                assert done is not None
                assert begun >= done


async def test_what_is_queued_on_a_backend_afterwards_comes_afterwards(two: Two) -> None:
    """Also behind a graph that was not seen before, and behind one that is held back."""
    futures, values = [], []
    for k in range(1, 12):
        futures.append(two.run(1))
        values.append(two.b.get(two.weight))
        two.b.set(two.weight, np.full(N, 3 + k, np.float32))
    for k, (future, value) in enumerate(zip(futures, values, strict=True)):
        assert (await value == 3 + k).all()
        assert (await future == 2 * (3 + k)).all()


async def test_cancelling_the_last_waiter_aborts_also_one_that_is_held_back(two: Two) -> None:
    await two.run(0)
    with two.devices[0].hold():
        futures = [two.run(k) for k in range(7)]
        for k in (1, 6):
            with anyio.move_on_after(0):
                await futures[k]
        with anyio.move_on_after(0):
            await futures[3].shield()
    for k, future in enumerate(futures):
        if k in (1, 6):
            with pytest.raises(aggml.Aborted):
                await future
        else:
            assert (await future == 6 * k).all()
    assert (await two.run(5) == 30).all()


async def test_misuse_raises_at_the_call(two: Two) -> None:
    x = np.ones(N, np.float32)
    with pytest.raises(aggml.InvalidHandle, match=r"\[Scheduler\.run\]"):
        two.sched.run(None, {two.x: x}, two.y)  # type: ignore[call-overload]
    with pytest.raises(aggml.LayoutMismatch, match=r"\[Scheduler\.run\]"):
        two.sched.run(two.graph, {two.x: x[:3]}, two.y)
    with pytest.raises(aggml.LayoutMismatch, match=r"\[Scheduler\.run\]"):
        two.sched.run(two.graph, {two.x: x}, two.y, shape=(3, 5))
    with pytest.raises(aggml.NotAllocated, match=r"\[Scheduler\.run\]"):
        two.sched.run(two.graph, {two.x: x}, two.doubled)
    with two.a.batch(), pytest.raises(aggml.InvalidState, match="batch"):
        two.run(1)
    result = await two.sched.run(two.graph, {two.x: x}, [two.y], shape=[(4, 4)])
    assert result[0].shape == (4, 4)
    two.sched.close()
    with pytest.raises(aggml.InvalidState, match="closed"):
        two.run(1)


async def test_runs_during_an_evaluation_wait_for_it_and_keep_their_order(two: Two) -> None:
    futures: list[aggml.Future[Any]] = []
    async with two.sched.evaluate(two.graph, {two.x: np.ones(N, np.float32)}) as nodes:
        async for _ in nodes:
            futures.append(two.run(len(futures)))
            await anyio.lowlevel.checkpoint()
            assert not any(future.done() for future in futures)
    futures.append(two.run(len(futures)))
    done = []
    async for future in aggml.as_completed(futures):
        done.append(future)
        assert all(f.done() for f in futures[: len(done)])
    for k, future in enumerate(futures):
        assert (await future == 6 * k).all()


async def test_with_a_callback_every_run_shows_its_nodes_in_order(two: Two) -> None:
    shown: list[float] = []

    def callback(node: aggml.Tensor, ask: bool) -> bool:
        if not ask and node is two.y:
            assert two.sched.observed is not None
            shown.append(float(two.sched.observed[0]))
        return True

    two.sched.set_eval_callback(callback)
    futures = [two.run(k) for k in range(4)]
    assert (await futures[3] == 18).all()
    assert all(future.done() for future in futures)
    assert shown == [0, 6, 12, 18]
    shaped = await two.sched.run(two.graph, {"x": np.ones(N, np.float32)}, "y", shape=(4, 4))
    assert shaped.shape == (4, 4)
    stopped, cancelled, last = two.run(1), two.run(2), two.run(3)
    with anyio.move_on_after(0):
        await cancelled
    stopped.abort()
    for future in (stopped, cancelled):
        with pytest.raises(aggml.Aborted):
            await future
    assert (await last == 18).all()

    def broken(node: aggml.Tensor, ask: bool) -> bool:
        raise KeyError("broken")

    two.sched.set_eval_callback(broken)
    with pytest.raises(aggml.AggmlError) as caught:
        await two.run(1)
    assert isinstance(caught.value.__cause__, KeyError)
    two.sched.set_eval_callback(None)
    assert (await two.run(1) == 6).all()


def test_with_a_callback_and_no_loop_a_run_is_refused() -> None:
    two = Two()
    with two.a, two.b, two.cpu, two.sched:
        two.sched.set_eval_callback(lambda _node, _ask: True)
        with pytest.raises(aggml.InvalidState, match="event loop"):
            two.run(1)
        two.sched.set_eval_callback(None)
        assert (two.run(1).get(60) == 6).all()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_run_whose_loop_ends_before_it_is_queued_raises_aborted(loop: str) -> None:
    two = Two()

    async def main() -> aggml.Future[Any]:
        nodes = two.sched.evaluate(two.graph, {two.x: np.ones(N, np.float32)})
        await anext(nodes)
        future = two.run(1)
        await anyio.lowlevel.checkpoint()
        held.append(nodes)
        return future

    held: list[object] = []
    with two.a, two.b, two.cpu:
        future = anyio.run(main, backend=loop)
        with pytest.raises(aggml.Aborted, match="loop"):
            future.get(60)
        two.sched.close()


@pytest.mark.parametrize("seed", range(8))
async def test_random_runs_submits_writes_and_cancellations(seed: int) -> None:
    """Every result is that of the writes before it in program order."""
    rng = random.Random(seed)
    two = Two(parallel=rng.choice([False, True]), max_in_flight=rng.choice([1, 2, 4, None]))
    async with two.a, two.b, two.cpu, two.sched:
        weight = 3
        expected: list[tuple[aggml.Future[Any], int, bool]] = []
        for _ in range(60):
            match rng.choice("rrrrswca"):
                case "r":
                    k = rng.randint(0, 9)
                    expected.append((two.run(k), 2 * k * weight, False))
                case "s":
                    x = np.ones(N, np.float32)
                    future = await two.sched.submit(two.graph, {"x": x}, "y")
                    expected.append((future, 2 * weight, False))
                case "w":
                    weight = rng.randint(1, 9)
                    two.b.set(two.weight, np.full(N, weight, np.float32))
                case "c":
                    future = two.run(1)
                    with anyio.move_on_after(0):
                        await future
                    expected.append((future, 2 * weight, True))
                case "a":
                    if expected:
                        await expected[-1][0].wait_until_done()
        for future, value, may_be_aborted in expected:
            try:
                assert (await future == value).all()
            except aggml.Aborted:
                assert may_be_aborted
