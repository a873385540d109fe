"""Fuzzer: loops that end while operations are under way.

Async generators are finalised at the end, tasks are left pending, coroutines are dropped between
two steps, backends and Futures lose their last reference. A program is one run of a loop in a
thread of its own. The run has to end. Then every queued operation must be done or aborted, and the
loop's descriptors and reactor must be gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
from fuzz.rounds import Failure, Report, draw
from support import in_a_thread

import aggml
from aggml import Graph, ops
from aggml.devices.cpu import CPUDevice
from aggml.stream.reactor import Reactor

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator

N = 16
SHORT = 10
PARTS = [
    "generator",
    "generator",
    "generator",
    "task",
    "callback",
    "iterator",
    "stepped",
    "backend",
]


def _cpu() -> CPUDevice:
    device = aggml.get_device("CPU")
    assert isinstance(device, CPUDevice)
    return device


def _ramp() -> np.ndarray[Any, Any]:
    return np.arange(N, dtype=np.float32)


class _Program:
    """The operations that one run of a loop starts before it ends, and the objects it leaves."""

    def __init__(self, dice: random.Random, pool: aggml.ThreadPool, counts: Counter[str]) -> None:
        self.dice, self.pool, self.counts = dice, pool, counts
        self.be = _cpu().backend(pool=pool)
        x = aggml.new_tensor("f32", ne=(N,), name="x").set_input()
        self.x, self.y = x, ops.add(x, x)
        self.graph = Graph(self.y)
        self.be.alloc_graph(self.graph)
        self.kept = aggml.new_tensor("f32", ne=(N,), name="kept")
        self.be.alloc([self.kept])
        self.be.set(self.kept, _ramp()).get()
        self.futures: list[aggml.Future[Any]] = []
        self.left: list[object] = []  # objects that are still alive when the run ends
        self.finished = 0
        self.expected = 0

    def queue(self) -> aggml.Future[Any]:
        kind = self.dice.choice(["run", "run", "get", "mark", "call", "delay"])
        stream = self.be.stream
        if kind == "run":
            future: aggml.Future[Any] = self.be.run(self.graph, {self.x: _ramp()}, self.y)
        elif kind == "get":
            future = self.be.get(self.kept)
        elif kind == "call":
            future = stream.call(lambda: 5)
        else:
            future = stream.mark() if kind == "mark" else stream.delay(1e-6)
        self.futures.append(future)
        return future

    async def wait(self, future: aggml.Future[Any]) -> None:
        how = self.dice.choice(
            ["await", "shield", "gather", "as_completed", "until_done", "timeout"]
        )
        try:
            if how == "gather":
                await aggml.gather(future, self.queue())
            elif how == "as_completed":
                async for _ in aggml.as_completed([future, self.queue()]):
                    pass
            elif how == "timeout":
                with anyio.move_on_after(self.dice.choice([0, 1e-5, 1000])):
                    await future
            elif how == "until_done":
                await future.wait_until_done()
            else:
                await (future if how == "await" else future.shield())
        except aggml.Aborted:
            pass

    async def generator(self) -> AsyncGenerator[int]:
        shielded, several = self.dice.random() < 0.8, self.dice.random() < 0.3
        owns = self.dice.random() < 0.4
        try:
            if owns:
                async with _cpu().backend(pool=self.pool) as be:
                    self.futures.append(be.stream.call(lambda: 5))
                    yield 0
            yield 1
        finally:
            with anyio.CancelScope(shield=shielded):
                self.be.stream.native.hold()
                futures = [self.queue() for _ in range(3 if several else 1)]
                release = threading.Thread(target=self.be.stream.native.release)
                release.start()
                try:
                    if several:
                        async with anyio.create_task_group() as tasks:
                            for future in futures:
                                tasks.start_soon(self.wait, future)
                    else:
                        await self.wait(futures[0])
                    self.finished += shielded
                finally:
                    release.join()

    async def part(self, what: str) -> None:
        self.counts[what] += 1
        if what == "generator":
            generator = self.generator()
            await anext(generator)
            self.expected += 1
            self.left.append(generator)
        elif what == "callback":
            self.queue().add_done_callback(lambda _: None)
        elif what == "iterator":
            iterator = aiter(aggml.as_completed([self.queue() for _ in range(3)]))
            with anyio.move_on_after(1e-4):
                await anext(iterator)
            self.left.append(iterator)
        elif what == "stepped":
            step = self.queue().__await__()
            if self.dice.random() < 0.5:
                step.close()
            self.left.append(step)
        elif what == "backend":
            be = _cpu().backend(pool=self.pool)
            be.stream.delay(1e-5)
            self.futures.append(be.stream.call(lambda: 5))
        elif asyncio_runs():
            self.left.append(asyncio.get_running_loop().create_task(self.wait(self.queue())))
            await anyio.lowlevel.checkpoint()
        else:
            with anyio.move_on_after(1e-4):
                await self.wait(self.queue())

    async def main(self) -> None:
        held = self.dice.random() < 0.5
        if held:
            self.be.stream.native.hold()
        for _ in range(self.dice.randint(1, 6)):
            await self.part(self.dice.choice(PARTS))
        if self.dice.random() < 0.3:
            self.left.clear()  # collected while the loop still runs, instead of when it ends
            gc.collect()
            await anyio.lowlevel.checkpoint()
        if held:
            self.be.stream.native.release()

    def check(self) -> None:
        """After the run: each queued operation ended, right or, if it may be, aborted."""
        self.left.clear()
        for future in self.futures:
            assert future.wait(60), f"{future!r} is lost"
            error = future.exception()
            assert error is None or isinstance(error, aggml.Aborted), repr(error)
            assert error is None or future.what == "run", (
                f"{future!r} was aborted, though it is no run"
            )
        run = self.be.run(self.graph, {self.x: _ramp()}, self.y)
        assert np.array_equal(run.get(60), 2 * _ramp())
        self.be.close()


def asyncio_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _by_hand(program: _Program) -> None:
    """Run on a loop that is closed with tasks pending, which ``asyncio.run`` never does."""
    loop = asyncio.new_event_loop()
    # "Task was destroyed but it is pending": the purpose of this run
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        loop.run_until_complete(program.main())
    finally:
        if program.dice.random() < 0.5:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _descriptors() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            found += "eventfd" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # closed meanwhile: the descriptor of the listing itself
            continue
    return found


def _reactors() -> int:
    gc.collect()
    return sum(isinstance(thing, Reactor) for thing in gc.get_objects())


def _one(program: _Program, loop: str) -> None:
    def end() -> None:
        if loop == "asyncio" and program.dice.random() < 0.3:
            program.counts["closed by hand"] += 1
            _by_hand(program)
        else:
            anyio.run(program.main, backend=loop)

    in_a_thread(end)
    program.check()


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`."""
    counts: Counter[str] = Counter()
    pool = aggml.ThreadPool(2)
    before = _reactors(), _descriptors()
    with warnings.catch_warnings():
        # Python and the loops warn of unfinished tasks and generators, which this fuzzer leaves on
        # purpose.
        warnings.simplefilter("ignore")
        for k in range(first, first + programs):
            try:
                _one(_Program(draw(seed, k), pool, counts), loop)
            except Exception as error:
                raise Failure(seed, k, loop, f"{error!r}") from error
        after = _reactors(), _descriptors()
    if after > before:
        raise Failure(seed, first, loop, f"(reactors, eventfds): {before} before, {after} after")
    return Report(programs, dict(counts))
