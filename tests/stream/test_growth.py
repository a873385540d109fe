"""A step costs the same, however many other objects exist. Calls and comparisons are counted.

Not here: the heap itself (tests/native/runtime_notifier.c), figures (benchmarks/growth.py).
"""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from support import holding, ramp

import aggml
from aggml.native import _native
from aggml.stream.reactor import current_reactor

if TYPE_CHECKING:
    from collections.abc import Callable

PER_ENTRY = 40  # comparisons of the heap for an entry that is added and removed, of up to 10,000


def calls_in(function: Callable[[], object]) -> int:
    """How many functions of Python and C ``function`` calls, without the garbage collector's."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return calls


async def calls_of_a_turn(n_streams: int) -> int:
    """Calls of one turn of the reactor, when one of ``n_streams`` awaited streams is done."""
    streams = [aggml.Stream(f"s{i}") for i in range(n_streams)]
    woken: list[object] = []
    calls = 0
    with ExitStack() as held:
        for stream in streams:
            held.enter_context(stream.hold())
        async with anyio.create_task_group() as tasks:

            async def wait(future: aggml.Future[None]) -> None:
                await future

            futures = [stream.mark() for stream in streams]
            for future in futures[1:]:
                tasks.start_soon(wait, future)
            await anyio.wait_all_tasks_blocked()
            futures[0].add_done_callback(woken.append)
            streams[0].native.release()
            while not woken:  # only this thread, which runs the loop, calls the reactor
                calls = calls_in(current_reactor().wake)
            streams[0].native.hold()
            tasks.cancel_scope.cancel()
    return calls


async def test_a_turn_of_the_loop_looks_at_what_is_done_alone() -> None:
    assert await calls_of_a_turn(400) == await calls_of_a_turn(4)


@pytest.mark.parametrize("order", ["first", "last", "random"])
async def test_cancelled_waits_leave_at_once(order: str, seed: int) -> None:
    """They leave no callback and no task behind; removal costs the logarithm of the waits left."""
    n = 2000
    stream, reactor = aggml.Stream("s"), current_reactor()

    class Callback:
        def __call__(self) -> None:
            raise AssertionError("it was cancelled")

    with stream.hold():
        futures = [stream.mark() for _ in range(n)]
        callbacks = [Callback() for _ in range(n)]
        waits = [
            reactor.arm(f._ops[0], c)  # type: ignore[index]
            for f, c in zip(futures, callbacks, strict=True)
        ]
        dead = [weakref.ref(c) for c in callbacks]
        del callbacks
        turns = list(range(n))
        if order == "last":
            turns.reverse()
        elif order == "random":
            np.random.default_rng(seed).shuffle(turns)
        for i in turns:
            wait = waits[i]
            assert wait is not None
            assert dead[i]() is not None
            wait.cancel()
            assert dead[i]() is None
        assert stream.native.compared < PER_ENTRY * n
    await futures[-1]


async def test_a_cancelled_await_leaves_nothing_in_the_reactor() -> None:
    stream = aggml.Stream("s")

    class Marker:
        pass

    async def client(future: aggml.Future[None], marker: object) -> None:
        await future
        raise AssertionError(marker)

    with stream.hold():
        future = stream.mark()
        marker = Marker()
        ref = weakref.ref(marker)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client, future, marker)
            del marker
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        del tasks
        gc.collect()
        assert ref() is None


async def test_a_circle_through_a_wait_is_collected() -> None:
    """The collector sees all that a wait refers to: here, a loop closed while a task waited."""
    stream = aggml.Stream("s")

    class Loop:
        def __init__(self) -> None:
            self.notifier = _native.Notifier()

        def wake(self) -> None:
            raise AssertionError("the loop is gone")

    with stream.hold():
        future = stream.mark()
        assert future._ops is not None
        loop = Loop()
        ref = weakref.ref(loop)
        assert loop.notifier.watch(future._ops[0], loop.wake) is not None
        del loop
        gc.collect()
        assert ref() is None
    await future


async def test_workers_that_fall_asleep_look_at_streams_that_came_to_rest_alone(
    be: aggml.Backend,
) -> None:
    """A worker that falls asleep visits only idle streams, to drop what their work referred to."""
    tensor = holding(be, ramp())
    n = 300
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    kept: Any = object()
    with ExitStack() as held:
        for stream in streams:
            held.enter_context(stream.hold())
            _native.submit_one(stream.native, _native.call("call", (), (), (), kept))
        with anyio.fail_after(60):
            await anyio.lowlevel.checkpoint()
            before = _native.streams_seen()
            for _ in range(5):
                value = np.zeros(16, np.float32)
                ref = weakref.ref(value)
                future = be.get(tensor, out=value)
                assert future.wait(60)
                del future, value
                be.pending  # noqa: B018
                # until the worker sleeps and has told this thread to release the array
                while ref() is not None:
                    await anyio.lowlevel.checkpoint()
            assert _native.streams_seen() - before < 60
        for stream in streams:
            stream.abort()


async def test_delays_cost_the_logarithm_of_how_many_there_are() -> None:
    n = 500
    streams = [aggml.Stream(f"s{i}") for i in range(n)]
    before = _native.timers_compared()
    futures = [stream.delay(3600 + i * 37 % 101) for i, stream in enumerate(streams)]
    for future in futures:
        future.abort()
    with anyio.fail_after(60):
        for future in futures:
            with pytest.raises(aggml.Aborted):
                await future
    assert _native.timers_compared() - before < PER_ENTRY * n


async def test_a_queued_call_of_python_costs_the_same_whatever_is_queued_behind_it() -> None:
    """Counted on the thread that runs the calls, from the first call to the last."""

    async def work_of(n: int) -> float:
        stream = aggml.Stream("s")
        lines = 0

        def count(_frame: object, event: str, _argument: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        def begin() -> None:
            frame = sys._getframe()
            sys.settrace(count)
            while frame is not None:  # the loop that runs the calls, which is already entered
                frame.f_trace = count
                frame = frame.f_back  # type: ignore[assignment]

        with stream.hold():
            stream.call(begin)
            for _ in range(n):
                stream.call(int)
            last = stream.call(sys.settrace, None)
        await last
        stream.close()
        return lines / n

    few, many = await work_of(50), await work_of(1500)
    assert many < 1.5 * few
