"""One scheduler, tasks of several event loops and threads; evaluations that are left early.

Not here: random programs of this kind (fuzz/loops.py).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import in_threads

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from aggml import Tensor

Array = np.ndarray[Any, Any]
N = 8
LOOPS = ("asyncio", "trio")
PATIENCE_S = 60


class Chain:
    """Doubles x, adds k to it, and takes both ends; the middle is on another backend."""

    def __init__(self, sched: Scheduler, k: float = 1.0) -> None:
        self.sched, self.k = sched, k
        self.x = new_tensor("f32", ne=N, name="x").set_input()
        middle = ops.scale_bias(self.x, 2.0, 0.0).set_name("middle")
        self.y = ops.scale_bias(middle, 1.0, k).set_name("y")
        sched.set_tensor_backend(middle, sched.backends[0])
        sched.set_tensor_backend(self.y, sched.backends[-1])
        self.graph = Graph(self.y)

    def expected(self, x: float) -> Array:
        return np.full(N, 2 * x + self.k, np.float32)

    @staticmethod
    def input(x: float) -> Array:
        return np.full(N, x, np.float32)

    async def check(self, x: float) -> None:
        y = await self.sched.run(self.graph, {self.x: self.input(x)}, self.y)
        assert np.array_equal(y, self.expected(x)), f"{y}, not {self.expected(x)}"


@pytest.fixture
def sched() -> Iterator[Scheduler]:
    device = SimDevice("A")
    backends = [device.backend(), aggml.get_device("CPU").backend(n_threads=1)]
    sched = Scheduler(backends, parallel=True, max_in_flight=3)
    yield sched
    sched.close()
    for be in backends:
        be.close()


@pytest.mark.parametrize("loops", [("asyncio",), ("trio",), LOOPS])
@pytest.mark.parametrize("shared", [True, False], ids=["one graph", "a graph each"])
def test_tasks_of_several_loops_and_threads_share_a_scheduler(
    sched: Scheduler, loops: tuple[str, ...], shared: bool
) -> None:
    one = Chain(sched)

    async def client(chain: Chain, i: int) -> None:
        for k in range(8):
            await chain.check(10 * i + k)

    async def clients(thread: int) -> None:
        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(client, one if shared else Chain(sched, i), 4 * thread + i)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(
            [partial(anyio.run, clients, i, backend=loops[i % len(loops)]) for i in range(4)]
        )
    finally:
        sys.setswitchinterval(before)


def test_a_scheduler_made_on_one_loop_works_on_another_one(sched: Scheduler) -> None:
    chain = Chain(sched)
    for loop in (*LOOPS, *LOOPS):
        in_threads([partial(anyio.run, chain.check, 3, backend=loop)])


def test_preparing_evaluating_and_asking_from_several_threads(sched: Scheduler) -> None:
    async def prepares(i: int) -> None:
        for k in range(4):
            chain = Chain(sched, k)
            await sched.prepare(chain.graph)
            await chain.check(i)

    async def evaluates(i: int) -> None:
        for k in range(4):
            chain = Chain(sched, k)
            found = [a async for _, a in sched.evaluate(chain.graph, {chain.x: chain.input(i)})]
            assert np.array_equal(found[-1], chain.expected(i))

    def asks() -> None:
        for k in range(20):
            chain = Chain(sched, k)
            sched.split_graph(chain.graph)
            assert "middle" in str(sched.plan(chain.graph))
            assert len(sched.reserve_size(chain.graph)) == 2
            sched.get_tensor_backend(chain.y)
            sched.forget(chain.graph)

    def works(i: int) -> None:
        anyio.run((prepares, evaluates)[i % 2], i, backend=LOOPS[i // 2 % 2])

    in_threads([*[partial(works, i) for i in range(4)], asks])


@pytest.mark.parametrize("how", ["break", "raise", "return", "cancel", "drop", "generator"])
@pytest.mark.parametrize("after", [0, 1])
async def test_an_evaluation_that_is_left_early_lets_others_go_on(
    sched: Scheduler, how: str, after: int
) -> None:
    chain = Chain(sched)
    values = {chain.x: chain.input(3)}

    async def leave() -> None:
        n = 0
        async for tensor, _ in sched.evaluate(chain.graph, values):
            assert isinstance(tensor, aggml.Tensor)
            n += 1
            if n > after:
                if how == "raise":
                    raise KeyError
                if how == "return":
                    return
                if how == "cancel":
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
                break

    async def steps() -> AsyncGenerator[Tensor, None]:
        async for tensor, _ in sched.evaluate(chain.graph, values):
            yield tensor

    with anyio.fail_after(PATIENCE_S), anyio.CancelScope() as scope:
        if how == "raise":
            with pytest.raises(KeyError):
                await leave()
        elif how == "drop":
            evaluation = sched.evaluate(chain.graph, values)
            for _ in range(1 + after):
                await anext(evaluation)
            evaluation = [evaluation]  # type: ignore[assignment]
            evaluation.append(evaluation)  # type: ignore[attr-defined]
            del evaluation
            gc.collect()
        elif how == "generator":
            async with aclosing(steps()) as generator:
                async for _ in generator:
                    break
        else:
            await leave()
    with anyio.fail_after(PATIENCE_S):
        await chain.check(4)
        sched.graph_compute(_placed(sched)).get(PATIENCE_S)


def _placed(sched: Scheduler) -> Graph:
    y = ops.scale_bias(new_tensor("f32", ne=N), 1.0, 1.0)
    graph = Graph(y)
    sched.alloc_graph(graph)
    return graph


async def test_waiting_for_a_turn_may_be_cancelled(sched: Scheduler) -> None:
    chain = Chain(sched)
    values = {chain.x: chain.input(3)}
    evaluation = sched.evaluate(chain.graph, values)
    await anext(evaluation)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def waits() -> None:
                async for _ in sched.evaluate(chain.graph, values):
                    raise AssertionError

            tasks.start_soon(waits)
            tasks.start_soon(chain.check, 3)
            await wait_all_tasks_blocked()
            scope.cancel()
    await evaluation.aclose()
    with anyio.fail_after(PATIENCE_S):
        await chain.check(5)


async def test_an_evaluation_may_be_continued_as_long_as_a_variable_refers_to_it(
    sched: Scheduler,
) -> None:
    chain = Chain(sched)
    evaluation = sched.evaluate(chain.graph, {chain.x: chain.input(3)})
    seen = []
    async for tensor, _ in evaluation:
        seen.append(tensor.name)
        break
    async for tensor, array in evaluation:
        seen.append(tensor.name)
        assert np.array_equal(array, chain.expected(3))
    assert seen == ["middle", "y"]
    await chain.check(4)


async def test_two_tasks_cannot_step_one_evaluation_at_the_same_time(sched: Scheduler) -> None:
    chain = Chain(sched)
    other = sched.evaluate(chain.graph, {chain.x: chain.input(3)})
    await anext(other)
    evaluation = sched.evaluate(chain.graph, {chain.x: chain.input(4)})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(evaluation.__anext__)
        await wait_all_tasks_blocked()
        with pytest.raises(aggml.InvalidState, match="another task"):
            await anext(evaluation)
        await other.aclose()
    await evaluation.aclose()
    await chain.check(4)


def test_a_thread_waits_for_an_evaluation_of_another_loop(sched: Scheduler) -> None:
    chain = Chain(sched)
    begun, asked = threading.Event(), threading.Event()
    order: list[str] = []

    async def evaluates() -> None:
        async for tensor, _ in sched.evaluate(chain.graph, {chain.x: chain.input(3)}):
            order.append(tensor.name)
            begun.set()
            await anyio.to_thread.run_sync(asked.wait, PATIENCE_S)

    async def submits() -> None:
        async def note() -> None:
            await wait_all_tasks_blocked()
            asked.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note)
            await chain.check(4)
            order.append("submitted")

    def other() -> None:
        assert begun.wait(PATIENCE_S)
        anyio.run(submits, backend="trio")

    in_threads([partial(asyncio.run, evaluates()), other])
    assert order == ["middle", "y", "submitted"]


async def test_a_program_keeps_no_tensor_of_another_graph_alive(sched: Scheduler) -> None:
    """Pins belong to tensors; a program keeps those of its own graph only."""
    kept = []
    gone = []
    for k in range(40):
        x = new_tensor("f32", ne=8 + k, name="x").set_input()
        y = ops.scale_bias(x, 1.0, 1.0)
        sched.set_tensor_backend(y, sched.backends[k % 2])
        graph = Graph(y)
        await sched.run(graph, {x: np.ones(8 + k, np.float32)}, y)
        kept.append(graph) if k < 2 else gone.append(weakref.ref(y))
        del x, y, graph
    gc.collect()
    remembered = (
        16 + 1
    )  # see `Scheduler`: the last 16 programs, and the one that was looked at last
    assert sum(ref() is not None for ref in gone) <= remembered
