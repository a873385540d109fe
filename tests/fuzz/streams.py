"""Fuzzer: streams with random sets, copies, events, waits, delays, holds, aborts, dropped batches.

A program runs on some CPU backends. The result of each `get` is compared with that of the program
run one operation after the other. No operation begins before all operations that it must come after
are done. Not here: what several threads submit (threads.py), schedulers (schedules.py).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
from fuzz.rounds import Report, one_by_one

import aggml

if TYPE_CHECKING:
    import random

N = 16
PATIENCE_S = 60


class _Dropped(Exception):
    """Raised by the body of a batch."""


@dataclass
class Program:
    """The operations queued so far, and the results that they must have."""

    choose: random.Random
    backends: list[Any]
    tensors: list[aggml.Tensor]  # one in each backend
    # the expected contents; None if unknown, because the writer may have failed
    values: list[float | None]
    queued: list[list[aggml.Future[Any]]]  # the Futures of each backend, in order
    after: list[tuple[aggml.Future[Any], aggml.Future[Any]]] = field(default_factory=list)
    gets: list[tuple[aggml.Future[Any], float | None]] = field(default_factory=list)
    events: list[tuple[Any, aggml.Future[Any]]] = field(default_factory=list)
    abortable: list[aggml.Future[Any]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, i: int, future: aggml.Future[Any]) -> aggml.Future[Any]:
        self.queued[i].append(future)
        return future

    def step(self) -> None:
        kind = self.choose.choice(KINDS)
        self.counts[kind] += 1
        getattr(self, f"_{kind}")(self.choose.randrange(len(self.backends)))

    def _write(self, i: int) -> None:
        value = float(self.choose.randrange(100))
        self.note(i, self.backends[i].set(self.tensors[i], np.full(N, value, np.float32)))
        self.values[i] = value

    def _copy(self, i: int) -> None:
        j = self.choose.randrange(len(self.backends))
        if i == j:
            return
        before = [queued[-1] for queued in (self.queued[i], self.queued[j]) if queued]
        copy = self.backends[i].copy(self.tensors[i], self.tensors[j], to=self.backends[j])
        self.after += [(first, copy) for first in before]
        self.values[j] = self.values[i]
        for k in (i, j):  # this mark begins after the copy
            self.after.append((copy, self.note(k, self.backends[k].stream.mark())))

    def _read(self, i: int) -> None:
        future = self.note(i, self.backends[i].get(self.tensors[i]))
        self.gets.append((future, self.values[i]))

    def _record(self, i: int) -> None:
        event = self.backends[i].device.event()
        self.events.append((event, self.note(i, self.backends[i].record(event))))

    def _wait(self, i: int) -> None:
        if not self.events:
            return
        event, mark = self.choose.choice(self.events)
        self.backends[i].wait(event)
        self.after.append((mark, self.note(i, self.backends[i].stream.mark())))

    def _tail(self, i: int) -> None:
        j = self.choose.randrange(len(self.backends))
        before = self.queued[j][-1] if self.queued[j] else None
        self.backends[i].stream.wait(self.backends[j].stream)
        mark = self.note(i, self.backends[i].stream.mark())
        if before is not None and before is not mark:
            self.after.append((before, mark))

    def _delay(self, i: int) -> None:
        delay = self.backends[i].stream.delay(self.choose.choice((0, 1e-5, 2e-4)))
        self.abortable.append(self.note(i, delay))

    def _fail(self, i: int) -> None:
        self.note(i, self.backends[i].stream.fail(ValueError("drawn"), writes=[self.tensors[i]]))
        self.values[i] = math.nan  # poisoned: an operation that reads it fails

    def _drop(self, i: int) -> None:
        """A batch whose body raises: values, events and the order of the rest stay as they are."""
        be, tensor = self.backends[i], self.tensors[i]
        j = self.choose.randrange(len(self.backends))
        made = []
        with contextlib.suppress(_Dropped), be.batch():
            for _ in range(self.choose.randrange(6)):
                what = self.choose.randrange(5)
                if what == 0:
                    made.append(be.set(tensor, np.full(N, 555, np.float32)))
                elif what == 1 and i != j:
                    made.append(be.copy(tensor, self.tensors[j], to=self.backends[j]))
                elif what == 2 and self.events:
                    made.append(be.record(self.choose.choice(self.events)[0]))
                elif what == 3 and self.events:
                    made.append(be.wait(self.choose.choice(self.events)[0]))
                elif what == 4:
                    made.append(be.stream.fail(ValueError("drawn"), writes=[tensor]))
            raise _Dropped
        for future in made:
            assert isinstance(future.exception(), aggml.Aborted), f"{future} of a dropped batch"

    def _hold(self, i: int) -> None:
        self.backends[i].stream.native.hold()
        self.held.append(i)

    def _release(self, _: int) -> None:
        if self.held:
            i = self.held.pop(self.choose.randrange(len(self.held)))
            self.backends[i].stream.native.release()

    def _abort(self, _: int) -> None:
        if self.abortable:
            self.choose.choice(self.abortable).abort()


KINDS = (
    *("write",) * 5, *("copy",) * 5, *("read",) * 5, *("record",) * 3, *("wait",) * 3,
    *("tail",) * 2, *("delay",) * 2, "fail", "drop", "drop", "hold", *("release",) * 2, "abort",
)  # fmt: skip


async def _await_some(program: Program) -> None:
    """Await in any order: a Future may be awaited several times, and some waits are given up."""
    choose = program.choose
    futures = [future for queued in program.queued for future in queued]
    choose.shuffle(futures)

    async def wait(future: aggml.Future[Any]) -> None:
        await future.wait_until_done()

    async def give_up(future: aggml.Future[Any]) -> None:
        with anyio.move_on_after(0):
            await future.wait_until_done()

    async with anyio.create_task_group() as tasks:
        for future in futures[: choose.randrange(40)]:
            tasks.start_soon(choose.choice((wait, wait, give_up)), future)
        if choose.random() < 0.5:
            await anyio.lowlevel.checkpoint()
        while program.held:
            program._release(0)
            if choose.random() < 0.3:
                await anyio.lowlevel.checkpoint()
    for future in futures:
        await future.wait_until_done()


def _check(program: Program) -> None:
    for future, value in program.gets:
        problem = future.exception()
        if value is not None and math.isnan(value):
            assert problem is not None, f"{future} read what was poisoned: {future.result()}"
        else:
            assert problem is None, f"{future} failed: {problem!r}"
            got = future.result()
            assert (got == value).all(), f"{future} brought {got}, not {value}"
    for first, second in program.after:
        done, started = first.times.done, second.times.done
        assert done is not None
        assert started is not None
        assert done <= started, f"{second} was over before {first}, which comes before it"
    for queued in program.queued:
        ends = [future.times.done or 0.0 for future in queued]
        assert ends == sorted(ends), f"a stream ended out of order: {queued}"


async def _program(choose: random.Random) -> Counter[str]:
    device = aggml.get_device("CPU")
    n = choose.randrange(1, 7)
    backends = [device.backend() for _ in range(n)]
    tensors = [aggml.new_tensor("f32", ne=(N,), name=f"t{i}") for i in range(n)]
    for be, tensor in zip(backends, tensors, strict=True):
        be.alloc([tensor])
    program = Program(choose, backends, tensors, [0.0] * n, [[] for _ in range(n)])
    for i in range(n):
        program.note(i, backends[i].memset(tensors[i], 0))
    try:
        with anyio.fail_after(PATIENCE_S):
            for _ in range(choose.randrange(1, 120)):
                program.step()
                if choose.random() < 0.02:
                    await anyio.lowlevel.checkpoint()
            await _await_some(program)
        _check(program)
    finally:
        for i in program.held:
            backends[i].stream.native.release()
        for be in backends:
            be.stream.failures()  # asks for the drawn failures, so that closing does not log them
            await be.aclose()
    return program.counts


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`."""
    return one_by_one(_program, seed, programs, loop, first)
