"""Fuzzer: many Python threads on the same backends submit, wait, give up, abort, call, open loops.

The threads share streams, but each has tensors of its own. A thread must read the values that it
wrote, and no operation may be lost, hang or stay queued. Not here: one thread's streams
(streams.py).
"""

from __future__ import annotations

import threading
import time
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

N = 16
PATIENCE_S = 60


@dataclass
class Shared:
    """The backends, a graph on each, and what went wrong."""

    backends: list[Any]
    sums: list[tuple[Graph, aggml.Tensor, aggml.Tensor]]
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str) -> None:
        with self.lock:
            self.counts[kind] += 1


class Worker:
    """The operations of one thread; all its choices are drawn before it begins."""

    def __init__(self, shared: Shared, choose: random.Random, number: int) -> None:
        self.shared, self.number = shared, number
        self.turns = [
            (choose.choice(KINDS), choose.randrange(len(shared.backends)), choose.randrange(1000))
            for _ in range(choose.randrange(5, 40))
        ]
        self.loop = choose.choice(("asyncio", "trio", None, None))
        self.tensors = []
        for be in shared.backends:
            tensor = aggml.new_tensor("f32", ne=(N,), name=f"of {number}")
            be.alloc([tensor])
            self.tensors.append(tensor)

    def work(self) -> None:
        try:
            if self.loop is None:
                for kind, i, value in self.turns:
                    self.one(kind, i, value)
            else:
                anyio.run(self.in_loop, backend=self.loop)
        except BaseException as error:
            with self.shared.lock:
                self.shared.problems.append(
                    f"thread {self.number}: {type(error).__name__}: {error}"
                )

    async def in_loop(self) -> None:
        for kind, i, value in self.turns:
            self.shared.note("awaited")
            future, expected = self.submit(kind, i, value)
            if value % 7 == 0:
                with anyio.move_on_after(0):
                    await future
                if kind != "run":  # a run whose last waiter gave up is aborted
                    self.check(await future, expected)
                else:
                    await future.wait_until_done()
            else:
                self.check(await future, expected)

    def one(self, kind: str, i: int, value: int) -> None:
        self.shared.note(kind)
        future, expected = self.submit(kind, i, value)
        if value % 11 == 0:
            future.wait(0)
        if value % 5 == 0 and kind == "run":
            future.abort()
            assert future.wait(PATIENCE_S)
            problem = future.exception()
            assert problem is None or isinstance(problem, aggml.Aborted), problem
            return
        assert future.wait(PATIENCE_S), f"{future} hangs"
        self.check(future.result(), expected)

    def submit(self, kind: str, i: int, value: int) -> tuple[aggml.Future[Any], object]:
        be, tensor = self.shared.backends[i], self.tensors[i]
        x = np.full(N, value, np.float32)
        if kind == "run":
            graph, a, y = self.shared.sums[i]
            return be.run(graph, {a: x}, y), x + x
        if kind == "call":
            return be.stream.call(lambda: value), value
        if kind == "batch":
            with be.batch():
                be.set(tensor, x)
                return be.get(tensor), x
        if kind == "across":
            j = (i + 1) % len(self.shared.backends)
            be.set(tensor, x)
            if j != i:
                be.copy(tensor, self.tensors[j], to=self.shared.backends[j])
            return self.shared.backends[j].get(self.tensors[j]), x
        be.set(tensor, x)
        return be.get(tensor), x

    @staticmethod
    def check(got: object, expected: object) -> None:
        assert np.array_equal(np.asarray(got), np.asarray(expected)), f"{got}, not {expected}"


KINDS = ("run", "run", "run", "get", "get", "batch", "across", "call")


async def _program(choose: random.Random) -> Counter[str]:
    device = aggml.get_device("CPU")
    backends = [device.backend() for _ in range(choose.randrange(1, 4))]
    sums = []
    for be in backends:
        a = aggml.new_tensor("f32", ne=(N,), name="a")
        y = ops.add(a, a)
        graph = Graph(y)
        be.alloc_graph(graph)
        sums.append((graph, a, y))
    shared = Shared(backends, sums)
    workers = [Worker(shared, choose, number) for number in range(choose.randrange(2, 7))]
    threads = [threading.Thread(target=worker.work, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    mine = Worker(shared, choose, len(workers))
    with anyio.move_on_after(PATIENCE_S):
        await mine.in_loop()
    end = time.monotonic() + PATIENCE_S
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join, max(0.0, end - time.monotonic()))
    hung = [thread.name for thread in threads if thread.is_alive()]
    assert not hung, f"threads hang: {hung}"
    assert not shared.problems, "; ".join(shared.problems)
    for be in backends:
        await be.aclose()
        assert be.pending == 0
        be.stream.native.release_finished()
        assert be.stream.native.kept == 0, f"{be} keeps {be.stream.native.kept} objects"
    return shared.counts


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`. Which thread comes first is the system's choice, not the seed's."""
    return one_by_one(_program, seed, programs, loop, first)
