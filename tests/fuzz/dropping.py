"""Fuzzer: batches that are dropped, calls that are refused, leafs flagged INPUT, events, moves.

Several threads share backends; each has leafs, graphs and events of its own, and a model of them:
the value of each leaf, and whether a call, or only a run, has written it. A run must fail exactly
when the model says that an input is missing, and else give the result of NumPy. A dropped batch
changes nothing of the model. Not here: the order of operations (streams.py), placing (placing.py).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import numpy as np
import pytest
from fuzz.rounds import Report, one_by_one

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    import random

SHORT = 12
N = 16
PATIENCE_S = 60
SWITCH_S = 2e-5
EMPTY, KEPT, BROUGHT = range(3)


class Drawn(Exception):
    """Raised by the bodies of batches."""


@dataclass(frozen=True)
class Leaf:
    """What the model knows of one leaf."""

    state: int = EMPTY
    value: float = 0.0


@dataclass
class Model:
    """What the model knows of one worker's leafs and events; copied when a batch begins."""

    leafs: list[Leaf]
    recorded: list[bool]

    def copy(self) -> Model:
        return Model(list(self.leafs), list(self.recorded))


@dataclass
class Shared:
    backends: list[Any]
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Worker:
    """The operations of one thread on its own leafs; its choices are drawn from its own numbers."""

    def __init__(self, shared: Shared, choose: random.Random, number: int) -> None:
        self.shared, self.choose, self.number = shared, choose, number
        self.be = choose.choice(shared.backends)
        self.other = choose.choice(shared.backends)
        self.leafs = [aggml.new_tensor("f32", ne=(N,), name=f"x{i}").set_input() for i in range(2)]
        self.source = aggml.new_tensor("f32", ne=(N,), name="source")  # always 7
        x, z = self.leafs
        self.y = ops.add(x, z).set_name("y")
        self.sums = Graph(self.y)  # y = x0 + x1
        self.fills = Graph(ops.cpy(self.source, x))  # x0 = source
        self.twice = Graph(ops.scale_inplace(z, 2.0))  # x1 *= 2, which is read and written
        self.buffers = [self.be.alloc([leaf]) for leaf in self.leafs]
        self.be.alloc([self.source])
        self.be.set(self.source, np.full(N, 7, np.float32)).wait(PATIENCE_S)
        for graph in (self.sums, self.fills, self.twice):
            self.be.alloc_graph(graph)
        self.events = [self.be.device.event() for _ in range(2)]
        self.model = Model([Leaf(), Leaf()], [False, False])
        self.expected: list[tuple[aggml.Future[Any], float]] = []
        self.counts: Counter[str] = Counter()
        self.in_batch = False

    def work(self) -> None:
        try:
            for _ in range(self.choose.randrange(5, 60)):
                self.step()
            self.settle()
        except BaseException as error:
            with self.shared.lock:
                self.shared.problems.append(
                    f"thread {self.number}: {type(error).__name__}: {error}"
                )
        with self.shared.lock:
            self.shared.counts += self.counts

    def step(self) -> None:
        kind = self.choose.choice(KINDS)
        self.counts[kind] += 1
        getattr(self, f"_{kind}")()

    def settle(self) -> None:
        for future, value in self.expected:
            assert future.wait(PATIENCE_S), f"{future} hangs"
            got = future.result()
            assert (got == np.float32(value)).all(), f"{future} gave {got}, not {value}"
        self.expected = []
        for event, recorded in zip(self.events, self.model.recorded, strict=True):
            assert event.wait(PATIENCE_S)
            assert recorded is ("never recorded" not in repr(event)), f"{event}, not {recorded}"

    def number_drawn(self) -> float:
        return float(self.choose.randrange(100))

    def _set(self) -> None:
        i, value = self.choose.randrange(2), self.number_drawn()
        self.be.set(self.leafs[i], np.full(N, value, np.float32))
        self.model.leafs[i] = Leaf(KEPT, value)

    def _memset(self) -> None:
        i = self.choose.randrange(2)
        self.be.memset(self.leafs[i], 0)
        self.model.leafs[i] = Leaf(KEPT, 0.0)

    def _copy(self) -> None:
        i = self.choose.randrange(2)
        to = None if self.other is self.be or self.in_batch else self.other
        self.be.copy(self.source, self.leafs[i], to=to)
        self.model.leafs[i] = Leaf(KEPT, 7.0)

    def _fill(self) -> None:
        self.be.graph_compute(self.fills)
        self.model.leafs[0] = Leaf(KEPT, 7.0)

    def _double(self) -> None:
        leaf = self.model.leafs[1]
        if leaf.value > 1e6:
            return
        # The graph writes x1 itself, so that it need not have been written before.
        self.be.graph_compute(self.twice)
        self.model.leafs[1] = Leaf(KEPT, leaf.value * 2)

    def _run(self) -> None:
        """Brings some of the inputs, says reuse for some."""
        leafs = self.model.leafs
        brings = [i for i in range(2) if self.choose.random() < 0.4]
        again = [i for i in range(2) if i not in brings and self.choose.random() < 0.3]
        values = {i: self.number_drawn() for i in brings}
        keys: list[Any] = [leaf.name if self.choose.random() < 0.5 else leaf for leaf in self.leafs]
        inputs = {keys[i]: np.full(N, value, np.float32) for i, value in values.items()}
        missing = any(
            i not in brings
            and not (leafs[i].state == KEPT or (i in again and leafs[i].state == BROUGHT))
            for i in range(2)
        )
        output: Any = self.choose.choice(("y", self.y))
        try:
            future = self.be.run(self.sums, inputs, output, reuse=[keys[i] for i in again])
        except aggml.NotAllocated:
            assert missing, f"{leafs}, {brings}, {again}: refused"
            self.counts["refused"] += 1
            return
        assert not missing, f"{leafs}, {brings}, {again}: not refused"
        for i, value in values.items():
            leafs[i] = Leaf(BROUGHT, value)
        self.expected.append((future, leafs[0].value + leafs[1].value))

    def _compute(self) -> None:
        leafs = self.model.leafs
        missing = any(leaf.state == EMPTY for leaf in leafs)
        try:
            self.be.graph_compute(self.sums)
        except aggml.NotAllocated:
            assert missing, f"{leafs}: refused"
            return
        assert not missing, f"{leafs}: not refused"
        self.expected.append((self.be.get(self.y), leafs[0].value + leafs[1].value))

    def _wrong_array(self) -> None:
        with contextlib.suppress(aggml.AggmlError):
            self.be.run(self.sums, {"x0": np.zeros(N, np.float32), "x1": np.zeros(3)}, "y")
            raise AssertionError("an array that does not fit was taken")

    def _foreign(self) -> None:
        foreign = self.fills.ends[0]
        inputs = {x: np.zeros(N, np.float32) for x in self.leafs}
        with pytest.raises(aggml.AggmlError, match="cannot be an output"):
            self.be.run(self.sums, inputs, [foreign])

    def _get(self) -> None:
        i = self.choose.randrange(2)
        leaf = self.model.leafs[i]
        if leaf.state != EMPTY:
            self.expected.append((self.be.get(self.leafs[i]), leaf.value))

    def _record(self) -> None:
        i = self.choose.randrange(2)
        self.be.record(self.events[i])
        self.model.recorded[i] = True

    def _wait(self) -> None:
        self.be.wait(self.choose.choice(self.events))

    def _move(self) -> None:
        if self.in_batch:
            return
        i = self.choose.randrange(2)
        self.buffers[i].close()
        self.buffers[i] = self.be.alloc([self.leafs[i]])
        self.model.leafs[i] = Leaf()

    def _batch(self) -> None:
        if self.in_batch:
            return
        before, expected = self.model.copy(), list(self.expected)
        at = self.choose.randrange(8) if self.choose.random() < 0.6 else None
        self.in_batch = True
        made: list[tuple[aggml.Future[Any], float]] = []
        try:
            with self.be.batch():
                for step in range(self.choose.randrange(1, 8)):
                    if step == at:
                        raise Drawn
                    self.step()
                if at is not None:
                    raise Drawn
        except Drawn:
            made = self.expected[len(expected) :]
            self.model, self.expected = before, expected
            self.counts["dropped"] += 1
        finally:
            self.in_batch = False
        for future, _ in made:
            assert isinstance(future.exception(), aggml.Aborted), f"{future} of a dropped batch"

    def _settle(self) -> None:
        if not self.in_batch:
            self.settle()


KINDS = (
    *("set",) * 4, "memset", *("copy",) * 2, *("fill",) * 2, "double", *("run",) * 8, "compute",
    "wrong_array", "foreign", *("get",) * 3, *("record",) * 3, "wait", "move", *("batch",) * 6,
    "settle",
)  # fmt: skip


async def _program(choose: random.Random) -> Counter[str]:
    device = aggml.get_device("CPU")
    limit = choose.choice((None, None, 4))
    backends = [
        device.backend(n_threads=1, max_queued=limit) for _ in range(choose.randrange(1, 3))
    ]
    shared = Shared(backends)
    seeds = [choose.random() for _ in range(choose.choice((1, 2, 4)))]
    workers = [Worker(shared, type(choose)(seed), number) for number, seed in enumerate(seeds)]
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
        assert not be.stream.open_batches
        await be.aclose()
    return shared.counts


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`. Which thread comes first is the system's choice, not the seed's."""
    return one_by_one(_program, seed, programs, loop, first)
