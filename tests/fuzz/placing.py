"""Fuzzer: threads that place graphs, prepare, run and close them on the same backends.

Python switches threads every few microseconds. All threads share the backends and so their
scratch, a leaf that any of them may place, and graphs that several try to place. Each result is
compared with NumPy's. Not here: threads that use graphs which were placed before (threads.py).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
from fuzz.rounds import Report, one_by_one

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    import random

SHORT = 8
PATIENCE_S = 60
SWITCH_S = 2e-6


@dataclass
class Placed:
    """A graph of ``terms`` sums over a leaf: y = sum of (x + term), then squared."""

    be: Any
    x: aggml.Tensor
    terms: list[int]
    graph: Graph
    own: Any = None  # the buffer of x, if x has one of its own
    value: float = 0.0  # of x, if it has memory of its own

    def expected(self, value: float) -> float:
        return float(sum(value + term for term in self.terms) ** 2)


def build(be: Any, n: int, terms: list[int], x: aggml.Tensor | None = None) -> Placed:
    leaf = aggml.new_tensor("f32", ne=(n,), name="x") if x is None else x
    parts = [ops.scale_bias(leaf, 1.0, float(term)) for term in terms]  # all alive at once
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return Placed(be, leaf, terms, Graph(ops.sqr(total).set_name("y")))


@dataclass
class Shared:
    """What all threads use, and what went wrong."""

    backends: list[Any]
    contested: list[Placed]  # graphs that each thread tries to place
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Worker:
    """The operations of one thread; all its choices are drawn before it begins."""

    def __init__(self, shared: Shared, choose: random.Random, number: int) -> None:
        self.shared, self.number = shared, number
        self.turns = [
            (choose.choice(KINDS), choose.randrange(1 << 20))
            for _ in range(choose.randrange(8, 30))
        ]
        self.loop = choose.choice(("asyncio", "trio"))
        self.graphs: list[Placed] = []

    def work(self) -> None:
        try:
            anyio.run(self.run, backend=self.loop)
        except BaseException as error:
            with self.shared.lock:
                self.shared.problems.append(
                    f"thread {self.number}: {type(error).__name__}: {error}"
                )

    async def run(self) -> None:
        for kind, number in self.turns:
            await getattr(self, f"_{kind}")(number)
            with self.shared.lock:
                self.shared.counts[kind] += 1
        for placed in self.graphs:
            await self.check(placed, 3)

    def pick(self, number: int) -> Placed | None:
        return self.graphs[number % len(self.graphs)] if self.graphs else None

    async def check(self, placed: Placed, number: int) -> None:
        if placed.own is not None:
            inputs, value = None, placed.value
        else:
            value = float(number % 50)
            inputs = {placed.x: np.full(placed.x.ne[0], value, np.float32)}
        key: Any = "y" if number % 2 else placed.graph.ends[0]
        got = await placed.be.run(placed.graph, inputs, key)
        wanted = placed.expected(value)
        assert (got == np.float32(wanted)).all(), f"{got}, not {wanted}, of {placed.graph}"

    async def _place(self, number: int) -> None:
        be = self.shared.backends[number % len(self.shared.backends)]
        n = 1 << (number % 13)
        terms = [(number >> i) % 5 for i in range(1 + number % 9)]
        placed = build(be, n, terms)
        if number % 3 == 0:
            self.move(placed)
        if number % 2:
            be.alloc_graph(placed.graph)
        self.graphs.append(placed)
        if not number % 2:
            await be.prepare(placed.graph)
        await self.check(placed, number)

    async def _run(self, number: int) -> None:
        placed = self.pick(number)
        if placed is not None:
            await self.check(placed, number)

    async def _again(self, number: int) -> None:
        """Close the memory of a graph, and place the graph again."""
        placed = self.pick(number)
        if placed is not None:
            assert placed.graph.memory is not None
            placed.graph.memory.close()
            if number % 2:
                placed.be.alloc_graph(placed.graph)
            else:
                await placed.be.prepare(placed.graph)
            await self.check(placed, number)

    def move(self, placed: Placed) -> None:
        """Give the leaf of a graph other memory of its own, with another value."""
        if placed.own is not None:
            placed.be.set(placed.x, np.full(placed.x.ne[0], 99, np.float32))
            placed.own.close()
        placed.own = placed.be.alloc([placed.x])
        placed.value = float((placed.value + 1) % 50)
        placed.be.set(placed.x, np.full(placed.x.ne[0], placed.value, np.float32))

    async def _move(self, number: int) -> None:
        placed = self.pick(number)
        if placed is not None and placed.own is not None:
            self.move(placed)
            await self.check(placed, number)

    async def _move_meanwhile(self, number: int) -> None:
        """Move a leaf while a task prepares the graph."""
        placed = self.pick(number)
        if placed is None or placed.own is None:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(placed.be.prepare, placed.graph)
            for _ in range(number % 4):
                await anyio.lowlevel.checkpoint()
                self.move(placed)
        await self.check(placed, number)

    async def _contest(self, number: int) -> None:
        """Place a graph that other threads try to place, too; one of them succeeds."""
        placed = self.shared.contested[number % len(self.shared.contested)]
        with contextlib.suppress(aggml.AlreadyAllocated):
            placed.be.alloc_graph(placed.graph)
        await self.check(placed, number)

    async def _reserve(self, number: int) -> None:
        await self.shared.backends[number % len(self.shared.backends)].reserve(number % (1 << 14))


KINDS = (
    *("place",) * 4, *("run",) * 4, *("again",) * 2, *("move",) * 2, *("move_meanwhile",) * 2,
    *("contest",) * 3, "reserve",
)  # fmt: skip


async def _program(choose: random.Random) -> Counter[str]:
    device = aggml.get_device("CPU")
    backends = [device.backend(n_threads=1) for _ in range(choose.randrange(1, 3))]
    common = aggml.new_tensor("f32", ne=(8,), name="x")
    contested = []
    for be in backends:
        x = common if be is backends[0] else None
        for _ in range(choose.randrange(1, 4)):
            terms = [choose.randrange(5) for _ in range(choose.randrange(1, 20))]
            contested.append(build(be, choose.choice((8, 1 << 10)), terms, x))
    shared = Shared(backends, contested)
    workers = [Worker(shared, choose, number) for number in range(choose.randrange(2, 6))]
    threads = [threading.Thread(target=worker.work, daemon=True) for worker in workers]
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join, PATIENCE_S)
    finally:
        sys.setswitchinterval(before)
    hung = [thread.name for thread in threads if thread.is_alive()]
    assert not hung, f"threads hang: {hung}"
    assert not shared.problems, "; ".join(shared.problems)
    for be in backends:
        await be.aclose()
    return shared.counts


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`. Which thread comes first is the system's choice, not the seed's."""
    return one_by_one(_program, seed, programs, loop, first)
