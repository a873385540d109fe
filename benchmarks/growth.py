"""The cost of one object among many: futures, streams, backends, inputs, calls; 1 to 10,000.

Each curve is the cost of one object, in microseconds, if there are 1, 10, 100, 1,000 or 10,000 of
them. Among 10,000 it may cost at most twice as much as among 100. The figure is the best of several
rounds, which leaves out time that other processes take. Not here: counted work
(tests/stream/test_growth.py).
"""

from __future__ import annotations

import gc
import time
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
import numpy as np

import aggml
from aggml import Graph, ops
from benchmarks.timing import Row, median, progress, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PART: Final = "growth"
SIZES: Final = (1, 10, 100, 1000, 10_000)
FEW: Final = 100
MOST: Final = 2.0


async def measure(loop: str, *, quick: bool) -> list[Row]:
    """A row for each curve, on the running loop, which is called ``loop``."""
    sizes = SIZES[:-1] if quick else SIZES
    rows = []
    for what, curve in CURVES.items():
        progress(f"{PART}: {what}, {loop}")
        await curve(FEW)
        figures = {}
        for n in sizes:
            rounds = 2 if quick else max(3, min(30, 3000 // n))
            figures[n] = 1e6 * min([await _quiet(curve, n) for _ in range(rounds)])
        name = f"{what}, {sizes[-1]} of them, {loop}"
        last = figures[sizes[-1]]
        rows.append(
            versus(PART, name, last, "us", f"{FEW} of them", figures[FEW], ("<=", MOST),
                   curve={str(n): us for n, us in figures.items()})
        )  # fmt: skip
    return rows


async def _quiet(curve: Callable[[int], Awaitable[float]], n: int) -> float:
    gc.collect()
    gc.disable()  # a full garbage collection is no cost of one object
    try:
        return await curve(n)
    finally:
        gc.enable()


async def _waiters(n: int, *, give_up: bool) -> float:
    """n tasks wait for a Future each, all of one stream. All get done, or all tasks are cancelled.

    Seconds for each task, from then until the last task has ended.
    """
    stream = aggml.Stream("s")
    start = time.perf_counter()
    stream.native.hold()
    futures = [stream.mark() for _ in range(n)]
    async with anyio.create_task_group() as tasks:
        for future in futures:
            tasks.start_soon(future.wait_until_done)
        await anyio.wait_all_tasks_blocked()
        start = time.perf_counter()
        if give_up:
            tasks.cancel_scope.cancel()
        else:
            stream.native.release()
    seconds = time.perf_counter() - start
    if give_up:
        stream.native.release()
    return seconds / n


async def _streams(n: int) -> float:
    """n tasks wait for a Future each; one more gets done: seconds until its callback runs."""
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    one = aggml.Stream("one")
    spans: list[float] = []
    with ExitStack() as held:
        for stream in streams:
            held.enter_context(stream.hold())
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(stream.mark().wait_until_done)
            await anyio.wait_all_tasks_blocked()
            for _ in range(20):
                done = anyio.Event()

                def finish(_: object, done: anyio.Event = done) -> None:
                    done.set()

                with one.hold():
                    one.mark().add_done_callback(finish)
                start = time.perf_counter()
                await done.wait()
                spans.append(time.perf_counter() - start)
            tasks.cancel_scope.cancel()
    return median(spans)


async def _waits(n: int) -> float:
    """n streams wait for another one: seconds for each, from enqueuing the waits to their end."""
    first = aggml.Stream("first")
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    with first.hold():
        mark = first.mark()
        start = time.perf_counter()
        futures = [stream.wait(mark) for stream in streams]
    for future in futures:
        await future.wait_until_done()
    return (time.perf_counter() - start) / n


async def _joined(n: int) -> float:
    """A batch makes n streams wait in one submission (`let_wait`): seconds for each."""
    first = aggml.Stream("first")
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    start = time.perf_counter()
    with first.batch():
        for stream in streams:
            first.let_wait(stream)
    for stream in streams:
        await stream.mark().wait_until_done()
    return (time.perf_counter() - start) / n


async def _delays(n: int) -> float:
    """n streams sleep and are aborted: seconds for each."""
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    start = time.perf_counter()
    futures = [stream.delay(3600) for stream in streams]
    for future in futures:
        future.abort()
    for future in futures:
        await future.wait_until_done()
    return (time.perf_counter() - start) / n


async def _ended(n: int) -> float:
    """n streams with 20 delays of 1 us each: seconds for each delay, until the last ends."""
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    with ExitStack() as held:
        for stream in streams:
            held.enter_context(stream.hold())
        last = [[stream.delay(1e-6) for _ in range(20)][-1] for stream in streams]
        start = time.perf_counter()
    for future in last:
        await future.wait_until_done()
    return (time.perf_counter() - start) / n / 20


async def _backends(n: int) -> float:
    """Seconds of a tiny graph on one backend whose worker has fallen asleep; n others are open."""
    device = aggml.get_device("CPU")
    async with AsyncExitStack() as open_:
        for _ in range(n):
            await open_.enter_async_context(device.backend())
        be = await open_.enter_async_context(device.backend())
        x = aggml.new_tensor("f32", ne=(16,))
        y = ops.add(x, x)
        graph, data = Graph(y), np.ones(16, np.float32)
        be.alloc_graph(graph)
        spans = []
        for _ in range(30):
            await anyio.sleep(0.001)
            start = time.perf_counter()
            await be.run(graph, {x: data}, y)
            spans.append(time.perf_counter() - start)
    return median(spans)


async def _inputs(n: int) -> float:
    """A run with n inputs: seconds for each input."""
    async with aggml.get_device("CPU").backend() as be:
        inputs = [aggml.new_tensor("f32", ne=(4,)) for _ in range(n)]
        ends = [ops.scale(x, 2.0) for x in inputs]
        graph, data = Graph(*ends), np.ones(4, np.float32)
        be.alloc_graph(graph)
        given = dict.fromkeys(inputs, data)
        await be.run(graph, given, ends[-1])
        start = time.perf_counter()
        await be.run(graph, given, ends[-1])
        return (time.perf_counter() - start) / n


async def _calls(n: int) -> float:
    """n Python functions are queued on one stream: seconds for each."""
    stream = aggml.Stream("s")
    with stream.hold():
        last = [stream.call(int) for _ in range(n)][-1]
        start = time.perf_counter()
    await last.wait_until_done()
    seconds = (time.perf_counter() - start) / n
    stream.close()
    return seconds


CURVES: Final[dict[str, Callable[[int], Awaitable[float]]]] = {
    "a future that a task waits for": partial(_waiters, give_up=False),
    "a wait that is cancelled": partial(_waiters, give_up=True),
    "a stream gets done among others": _streams,
    "a stream waits for another": _waits,
    "a stream in one submission of many": _joined,
    "a delay": _delays,
    "a delay that ends": _ended,
    "a run among other backends": _backends,
    "an input of a run": _inputs,
    "a call of Python that is queued": _calls,
}
