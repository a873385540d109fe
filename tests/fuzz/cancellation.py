"""Fuzzer: waits of every kind, cancelled at random moments.

Other waiters still get their results, runs are aborted only when their last waiter leaves, and
nothing is left behind.

A program queues some 12 operations on two held streams, starts waits for them, and cancels, aborts
and releases in random order. Not here: loops that end (finalisation.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
from fuzz.rounds import Failure, Report, draw

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from aggml.native import _native

N = 16
KINDS = ["run", "run", "run", "get", "set", "mark", "call", "fail", "delay"]
WAITS = ["await", "await", "shield", "gather", "as_completed", "callback", "until_done", "timeout"]


class _Work:
    """One queued operation: its Future, the result it must have, and whether it may be aborted."""

    def __init__(self, kind: str, future: aggml.Future[Any], value: Any) -> None:
        self.kind, self.future, self.value = kind, future, value
        self.waiting: set[_Wait] = set()
        self.may_abort = False  # true once somebody aborted it, or its last waiter was cancelled

    def check(self, value: object, error: BaseException | None) -> None:
        what = f"{self.kind} of {self.future!r}"
        if self.kind == "fail":
            assert isinstance(error, aggml.AggmlError), f"{what}: {error!r}"
            assert isinstance(error.__cause__, ValueError) or self.may_abort, what
        elif error is not None:
            assert isinstance(error, aggml.Aborted), f"{what}: {error!r}"
            assert self.may_abort, f"{what} was aborted while somebody waited"
        elif isinstance(self.value, np.ndarray):
            assert np.array_equal(value, self.value), f"{what} brought {value}"  # type: ignore[arg-type]
        else:
            assert value == self.value, f"{what} brought {value}"


class _Wait:
    """One task, or callback, that waits for some of the work."""

    def __init__(self, how: str, works: list[_Work]) -> None:
        self.how, self.works = how, works
        self.scope = anyio.CancelScope()
        self.over = False

    def begin(self) -> None:
        """Count as a waiter from here on; no checkpoint may lie between this and the wait."""
        for work in self.works if self.how != "until_done" else ():
            work.waiting.add(self)

    def end(self) -> None:
        self.over = True
        for work in self.works:
            work.waiting.discard(self)

    def cancel(self) -> None:
        """Cancel the wait.

        A run of which this was the last waiter may be aborted from now on. Waiters that are
        cancelled themselves do not count.
        """
        powers = self.how in ("await", "gather", "as_completed", "timeout")
        for work in self.works:
            others = [w for w in work.waiting if w is not self and not w.scope.cancel_called]
            if work.kind == "run" and powers and not others:
                work.may_abort = True
        self.scope.cancel()

    async def run(self) -> None:
        with self.scope:
            try:
                self.begin()
                await self._wait()
            finally:
                self.end()
        self.end()

    async def _wait(self) -> None:
        first = self.works[0]
        if self.how == "gather":
            try:
                values = await aggml.gather(*[w.future for w in self.works])
            except aggml.AggmlError:
                assert any(w.kind == "fail" or w.may_abort for w in self.works)
                return
            for work, value in zip(self.works, values, strict=True):
                work.check(value, None)
        elif self.how == "as_completed":
            left = {id(w.future): w for w in self.works}
            async for future in aggml.as_completed([w.future for w in self.works]):
                _judge(left.pop(id(future)))
            assert not left
        elif self.how == "until_done":
            await first.future.wait_until_done()
            _judge(first)
        else:
            value = None
            try:
                if self.how == "shield":
                    value = await first.future.shield()
                elif self.how == "timeout":
                    with anyio.move_on_after(1000):
                        value = await first.future
                else:
                    value = await first.future
            except aggml.AggmlError as error:
                first.check(None, error)
            else:
                first.check(value, None)


def _judge(work: _Work) -> None:
    error = work.future.exception()
    work.check(None if error else work.future.result(), error)


class _Bench:
    """A backend with a placed graph, y = 2 x, and a vector whose contents never change."""

    def __init__(self, be: aggml.Backend) -> None:
        self.be = be
        self.x = aggml.new_tensor("f32", ne=(N,), name="x").set_input()
        self.y = ops.add(self.x, self.x)
        self.graph = Graph(self.y)
        be.alloc_graph(self.graph)
        self.kept, self.spare = (aggml.new_tensor("f32", ne=(N,)) for _ in range(2))
        be.alloc([self.kept, self.spare])
        be.set(self.kept, _vector(7)).get()

    def work(self, kind: str, value: int) -> _Work:
        be, x = self.be, _vector(value)
        if kind == "run":
            return _Work(kind, be.run(self.graph, {self.x: x}, self.y), 2 * x)
        if kind == "get":
            return _Work(kind, be.get(self.kept), _vector(7))
        if kind == "set":
            return _Work(kind, be.set(self.spare, x), None)
        if kind == "call":
            return _Work(kind, be.stream.call(lambda: value), value)
        if kind == "fail":
            return _Work(kind, be.stream.fail(ValueError(str(value))), None)
        if kind == "delay":
            return _Work(kind, be.stream.delay(value * 1e-7), None)
        return _Work(kind, be.stream.mark(), None)


def _vector(start: int) -> np.ndarray[Any, Any]:
    return np.arange(N, dtype=np.float32) + start


async def _program(dice: random.Random, benches: list[_Bench], counts: Counter[str]) -> None:
    held = [bench.be.stream.native for bench in benches]
    for native in held:
        native.hold()
    try:
        await _waits(dice, benches, held, counts)
    finally:
        while held:
            held.pop().release()


async def _waits(
    dice: random.Random,
    benches: list[_Bench],
    held: list[_native.Stream],
    counts: Counter[str],
) -> None:
    works = [
        dice.choice(benches).work(dice.choice(KINDS), dice.randrange(100))
        for _ in range(dice.randint(4, 12))
    ]
    waits: list[_Wait] = []
    async with anyio.create_task_group() as tasks:

        def wait() -> None:
            how = dice.choice(WAITS)
            n = dice.randint(1, 4) if how in ("gather", "as_completed") else 1
            waiter = _Wait(how, dice.sample(works, min(n, len(works))))
            counts[how] += 1
            if how == "callback":
                waiter.begin()
                waiter.works[0].future.add_done_callback(_called(waiter))
            else:
                tasks.start_soon(waiter.run)
            waits.append(waiter)

        def cancel() -> None:
            left = [w for w in waits if w.how != "callback" and not w.over]
            if left:
                counts["cancelled"] += 1
                dice.choice(left).cancel()

        def abort() -> None:
            work = dice.choice(works)
            work.may_abort = True
            counts["aborted"] += 1
            work.future.abort()

        def release() -> None:
            if held:
                held.pop().release()

        steps: list[Callable[[], None]] = [wait, wait, wait, cancel, cancel, abort, release]
        for _ in range(dice.randint(5, 40)):
            dice.choices(steps, [4, 4, 4, 3, 3, 1, 1])[0]()
            for _ in range(dice.choice([0, 0, 1, 3])):
                await anyio.lowlevel.checkpoint()
        while held:
            held.pop().release()
    for work in works:
        await work.future.wait_until_done()
        _judge(work)
    while any(not w.over for w in waits):  # callbacks run in a turn of the loop of their own
        await anyio.lowlevel.checkpoint()
    for work in works:
        assert work.future._waiters == 0, f"{work.kind}: {work.future._waiters} waiters are left"
    for bench in benches:
        last = bench.work("run", 3)
        last.check(await last.future, None)
        assert np.array_equal(await bench.be.get(bench.kept), _vector(7))
        assert bench.be.pending == 0
        bench.be.stream.failures()
    counts["operations"] += len(works)


def _called(waiter: _Wait) -> Callable[[object], None]:
    def call(_: object) -> None:
        assert not waiter.over, "called twice"
        waiter.end()

    return call


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`."""
    counts: Counter[str] = Counter()

    async def all_of_them() -> None:
        cpu = aggml.get_device("CPU")
        async with cpu.backend(n_threads=1) as a, SimDevice(latency=1e-5).backend() as b:
            benches = [_Bench(a), _Bench(b)]
            for k in range(first, first + programs):
                try:
                    with anyio.fail_after(120):
                        await _program(draw(seed, k), benches, counts)
                except Exception as error:
                    raise Failure(seed, k, loop, f"{error!r}") from error

    anyio.run(all_of_them, backend=loop)
    return Report(programs, dict(counts))
