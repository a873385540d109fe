"""Tensors that move while their graph is planned: the result is that of one of their places.

Each test moves a leaf at each pause of the work in turn: `Scheduler.prepare`, a first submission,
an evaluation. The old memory is filled with 99 and freed. Not here: one backend
(memory/test_concurrent_placing.py).
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice
from aggml.scheduler import scheduler as scheduler_module
from aggml.scheduler.running import evaluate as evaluate_module
from aggml.scheduler.running import submitter as submitter_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

N = 16


class Mover:
    """Gives a leaf other memory with the next value, after filling the old memory with 99."""

    def __init__(self, be: Any, leaf: aggml.Tensor) -> None:
        self.be, self.leaf, self.value, self.buffer = be, leaf, 0.0, None
        self()

    def __call__(self) -> None:
        if self.buffer is not None:
            self.be.set(self.leaf, np.full(N, 99, np.float32)).wait(60)
            self.buffer.close()
        self.buffer = self.be.alloc([self.leaf])
        self.value += 1
        self.be.set(self.leaf, np.full(N, self.value, np.float32)).wait(60)


@pytest.fixture
def backends() -> Iterator[list[Any]]:
    with ExitStack() as stack:
        sim = stack.enter_context(SimDevice("sim-moving").backend())
        cpu = stack.enter_context(aggml.get_device("CPU").backend(n_threads=1))
        yield [sim, cpu]


def pausing(monkeypatch: pytest.MonkeyPatch, at: int, what: Callable[[], object]) -> list[int]:
    """Pause after every step of all work in slices; do ``what`` at pause ``at``.

    Returns the number of pauses so far.
    """
    n = [0]

    async def give_way(steps: Any) -> Any:
        while True:
            await anyio.lowlevel.checkpoint()
            if n[0] == at:
                what()
            n[0] += 1
            try:
                away = next(steps)
            except StopIteration as end:
                return end.value
            if away is not None:
                await away.later()

    for module in (scheduler_module, submitter_module, evaluate_module):
        if hasattr(module, "give_way"):
            monkeypatch.setattr(module, "give_way", give_way)
    return n


def build(w: aggml.Tensor) -> tuple[aggml.Tensor, Graph, aggml.Tensor]:
    """y = (x + w) + 3, over two devices if x + w is pinned."""
    x = aggml.new_tensor("f32", ne=(N,), name="x").set_input()
    first = ops.add(x, w)
    y = first
    for _ in range(3):
        y = ops.scale_bias(y, 1.0, 1.0)
    return x, Graph(y.set_name("y")), first


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("way", ["prepare", "submit", "alike"])
@pytest.mark.parametrize("placed_on", [0, 1])
async def test_a_submission_reads_a_leaf_where_it_lies_whenever_it_moves(
    backends: list[Any], monkeypatch: pytest.MonkeyPatch, way: str, placed_on: int
) -> None:
    for at in itertools.count(placed_on, 2):
        with aggml.Scheduler(backends) as scheduler, monkeypatch.context() as patch:
            w = aggml.new_tensor("f32", ne=(N,), name="w")
            move = Mover(backends[placed_on], w)
            x, graph, first = build(w)
            scheduler.set_tensor_backend(first, backends[0])
            value = np.arange(N, dtype=np.float32)
            if way == "alike":  # an equivalent graph was planned before
                x, graph, _ = build(w)
                await scheduler.run(graph, {x: value}, "y")
                x, graph, first = build(w)
            n = pausing(patch, at, move)
            if way == "prepare":
                await scheduler.prepare(graph)
            for _ in range(2):
                future = await scheduler.submit(graph, {x: value}, "y")
                got = await future
                assert (got == value + move.value + 3).all(), f"moved at pause {at}"
            if n[0] <= at:
                break
    assert at > (1 if way == "alike" else 5)  # pyright: ignore[reportPossiblyUnboundVariable] - count()


async def test_an_evaluation_reads_a_leaf_where_it_lies_or_refuses(
    backends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.arange(N, dtype=np.float32)
    for at in itertools.count(0, 3):
        with aggml.Scheduler(backends) as scheduler, monkeypatch.context() as patch:
            w = aggml.new_tensor("f32", ne=(N,), name="w")
            move = Mover(backends[1], w)
            x, graph, _ = build(w)
            n = pausing(patch, at, move)
            found = [array async for _, array in scheduler.evaluate(graph, {x: value})]
            assert (found[-1] == value + move.value + 3).all(), f"moved at pause {at}"
            if n[0] <= at:
                break
    assert at > 5  # pyright: ignore[reportPossiblyUnboundVariable] - count()


async def test_a_leaf_that_moves_between_two_nodes_ends_the_evaluation(
    backends: list[Any],
) -> None:
    w = aggml.new_tensor("f32", ne=(N,), name="w")
    move = Mover(backends[1], w)
    x, graph, _ = build(w)
    with aggml.Scheduler(backends) as scheduler:
        walk = scheduler.evaluate(graph, {x: np.zeros(N, np.float32)})
        await anext(walk)
        move()
        with pytest.raises(aggml.InvalidState, match="Tensor w"):
            await anext(walk)
        await walk.aclose()


async def test_pins_that_change_meanwhile_hold_for_the_plan(
    backends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in itertools.count(0, 3):
        with aggml.Scheduler(backends) as scheduler, monkeypatch.context() as patch:
            w = aggml.new_tensor("f32", ne=(N,), name="w")
            Mover(backends[1], w)
            x, graph, first = build(w)
            scheduler.set_tensor_backend(first, backends[0])

            def pin(scheduler: Any = scheduler, first: aggml.Tensor = first) -> None:
                scheduler.set_tensor_backend(first, backends[1])

            n = pausing(patch, at, pin)
            await scheduler.prepare(graph)
            if n[0] <= at:
                break
            await scheduler.run(graph, {x: np.zeros(N, np.float32)}, "y")
            last = scheduler._planner.last
            assert last is not None
            assert last.program.found.backend[first] == 1, f"pinned at pause {at}"


async def test_memory_that_is_forgotten_meanwhile_is_not_used(
    backends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.arange(N, dtype=np.float32)
    for at in itertools.count(0, 3):
        with aggml.Scheduler(backends) as scheduler, monkeypatch.context() as patch:
            w = aggml.new_tensor("f32", ne=(N,), name="w")
            move = Mover(backends[1], w)
            x, graph, _ = build(w)
            n = pausing(patch, at, scheduler.reset)
            assert (await scheduler.run(graph, {x: value}, "y") == value + move.value + 3).all()
            if n[0] <= at:
                break
            assert (await scheduler.run(graph, {x: value}, "y") == value + move.value + 3).all()


async def test_an_input_leaf_that_graph_compute_writes_counts_as_written(
    backends: list[Any],
) -> None:
    state = aggml.new_tensor("f32", ne=(N,), name="state").set_input()
    source = aggml.new_tensor("f32", ne=(N,), name="source")
    backends[1].alloc([state, source])
    await backends[1].set(source, np.ones(N, np.float32))
    fills = Graph(ops.cpy(source, state))
    reads = Graph(ops.scale_bias(state, 1.0, 1.0).set_name("y"))
    with aggml.Scheduler(backends) as scheduler:
        await scheduler.graph_compute(fills)
        assert (await scheduler.run(reads, None, "y") == 2).all()
