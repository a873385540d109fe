"""Loops that end: async generators finalised then, awaits left behind, Ctrl-C between waiters.

Not here: processes that end (process/test_processes.py), dropped backends (test_lifetime.py).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import trio
import trio.testing
from support import Array, holding, in_a_thread, placed, ramp, sum_on

import aggml
from aggml.stream.reactor import Reactor, current_reactor
from aggml.stream.waits import turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
    from types import FrameType

    from conftest import AnyDevice

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])


# -- async generators that are finalised at the end of a run


@LOOPS
def test_a_backend_left_by_a_generator_that_is_finalised(device: AnyDevice, loop: str) -> None:
    """``async with backend`` around a ``yield``: leaving it awaits the drain, shielded."""
    left: list[bool] = []

    async def stream() -> AsyncGenerator[Array]:
        async with device.backend() as be:
            a = placed(be)
            be.set(a, ramp())
            yield await be.get(a)
            be.stream.delay(1000)
        left.append(True)

    async def main() -> None:
        async with device.backend() as be:
            generator = stream()
            assert np.array_equal(await anext(generator), ramp())
            await be.synchronize()
            held.append(generator)

    held: list[object] = []
    run_to_the_end(loop, main)
    assert left == []  # the generator was closed at its yield, by GeneratorExit


def run_to_the_end(loop: str, main: Callable[[], Awaitable[None]]) -> None:
    in_a_thread(lambda: anyio.run(main, backend=loop))


HOW = ["await", "several", "gather", "as_completed", "callback", "ready", "until_done"]


@pytest.mark.parametrize("used_before", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("how", HOW)
@LOOPS
def test_a_generator_waits_while_it_is_finalised(
    cpu_device: aggml.Device, loop: str, how: str, used_before: bool
) -> None:
    """The generator's wait may be the first of this run, so that it has to make the reactor."""
    be = cpu_device.backend(n_threads=1, max_queued=1)
    tensor, got, held = holding(be, ramp()), [], []

    async def wait(future: aggml.Future[Array]) -> None:
        if how == "await":
            got.append(await future)
        elif how == "several":
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(future.wait_until_done)
            got.append(future.result())
        elif how == "gather":
            got.append((await aggml.gather(future, be.stream.mark()))[0])
        elif how == "as_completed":
            got.extend([f.result() async for f in aggml.as_completed([future])])
        elif how == "callback":
            future.add_done_callback(lambda f: got.append(f.result()))
            await be.synchronize()
        elif how == "ready":
            await be.ready()
            got.append(future.result())
        else:
            await future.wait_until_done()
            got.append(future.result())

    async def stream() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            with anyio.CancelScope(shield=True):
                be.stream.native.hold()
                future = be.get(tensor)
                release = threading.Timer(0, be.stream.native.release)
                release.start()
                await wait(future)
                release.join()

    async def main() -> None:
        if used_before:
            with be.stream.hold():
                future = be.stream.mark()
                with anyio.move_on_after(0.001):
                    await future
        generator = stream()
        held.append(generator)
        assert await anext(generator) == 1

    run_to_the_end(loop, main)
    assert len(got) == 1
    assert np.array_equal(got[0], ramp())
    be.close()


@LOOPS
def test_a_wait_that_is_cancelled_while_a_generator_is_finalised(
    cpu_device: aggml.Device, loop: str
) -> None:
    be = cpu_device.backend(n_threads=1)
    s, held, runs = sum_on(be), [], []

    async def stream() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            with anyio.CancelScope(shield=True):
                be.stream.native.hold()
                runs.append(s.run(be, ramp(), ramp()))
                with anyio.move_on_after(0.001):
                    await runs[0]
                be.stream.native.release()
                await runs[0].wait_until_done()

    async def main() -> None:
        held.append(stream())
        await anext(held[0])

    run_to_the_end(loop, main)
    assert isinstance(runs[0].exception(), aggml.Aborted)
    be.close()


@pytest.mark.parametrize("how", ["await", "gather"])
def test_a_shielded_system_task_of_trio_outlives_the_pump(
    cpu_device: aggml.Device, how: str
) -> None:
    """The reactor's own task is cancelled with all system tasks; a shielded waiter must go on."""
    be = cpu_device.backend(n_threads=1)
    tensor, got = holding(be, ramp()), []

    async def main() -> None:
        waiting = trio.Event()

        async def system() -> None:
            with trio.CancelScope(shield=True):
                waiting.set()
                got.append(await future if how == "await" else (await aggml.gather(future))[0])

        be.stream.native.hold()
        future = be.get(tensor)
        trio.lowlevel.spawn_system_task(system)
        await waiting.wait()
        await trio.testing.wait_all_tasks_blocked()
        threading.Timer(0.01, be.stream.native.release).start()

    run_to_the_end("trio", main)
    assert np.array_equal(got[0], ramp())
    be.close()


def test_a_task_that_begins_to_wait_at_the_end_of_a_run_is_not_forgotten() -> None:
    async def one() -> None:
        reactor, due = Reactor(pumped=False), False
        reactor.turns += 1  # keeps the reactor from retiring between two turns

        async def first() -> None:
            while not due:
                await turn(reactor)

        # the signal that wakes `first` is written, and perhaps not read yet
        async def second() -> None:
            nonlocal due
            due = True
            reactor.notifier.signal()
            await turn(reactor)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            reactor.notifier.signal()
            nursery.start_soon(second)

    async def main() -> None:
        current_reactor()  # make the reactor of this run
        for _ in range(20):  # trio shuffles the order of tasks
            with trio.fail_after(60):
                await one()

    trio.run(main)


# -- what a loop leaves behind


def closed_with_a_pending_await(be: aggml.Backend, future: aggml.Future[Any]) -> weakref.ref[Any]:
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        await future

    task = loop.create_task(wait())
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    assert future.what in repr(future)
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined] # what this test is about
    loop.close()
    return weakref.ref(loop)


def test_a_loop_closed_with_a_pending_await_is_collected(be: aggml.Backend) -> None:
    """Reactor, waiters and loop are collected, their descriptors closed; the work never ends."""
    gc.collect()
    before = [r for r in gc.get_objects() if isinstance(r, Reactor)]
    with be.stream.hold():
        future = be.stream.mark()
        loops = [closed_with_a_pending_await(be, future) for _ in range(20)]
        gc.collect()
        assert [loop() for loop in loops] == [None] * 20
        after = [r for r in gc.get_objects() if isinstance(r, Reactor)]
        assert len(after) <= len(before)
    assert future.wait(60)


def test_a_closed_loop_gives_its_descriptor_back_at_once(be: aggml.Backend) -> None:
    loop = asyncio.new_event_loop()
    seen: list[weakref.ref[Reactor]] = []

    async def wait() -> None:
        with anyio.move_on_after(0.001):
            await future
        seen.append(weakref.ref(current_reactor()))

    with be.stream.hold():
        future = be.stream.mark()
        loop.run_until_complete(wait())
        gc.disable()
        try:
            loop.close()
            assert seen[0]() is None
        finally:
            gc.enable()


# -- Ctrl-C between the waiters of one turn


@contextmanager
def interrupted(k: int, where: set[str]) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt at the k-th line that runs of the named functions of the reactor."""
    left, hit = k, []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.endswith(("reactor.py", "waits.py", "completions.py", "future.py")):
            return None
        if code.co_name not in where:
            return None
        if event in ("line", "call"):
            left -= 1
            if left == 0:
                hit.append(f"{code.co_name}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield hit
    finally:
        sys.settrace(None)


def test_ctrl_c_in_a_turn_loses_no_waiter(be: aggml.Backend) -> None:
    """Interrupt at each line in turn: every other waiter is woken when the loop goes on."""
    places = 0
    for k in range(1, 400):
        loop = asyncio.new_event_loop()
        got: list[str] = []

        async def client(name: str, future: aggml.Future[None], got: list[str] = got) -> None:
            await future
            got.append(name)

        async def several(futures: list[aggml.Future[None]], got: list[str] = got) -> None:
            got.append(f"all {len([f async for f in aggml.as_completed(futures)])}")

        async def start(got: list[str] = got, loop: Any = loop) -> list[asyncio.Task[None]]:
            futures = [be.stream.mark() for _ in range(3)]
            futures[1].add_done_callback(lambda _: got.append("called"))
            return [
                *(loop.create_task(client(str(i), f)) for i, f in enumerate(futures)),
                loop.create_task(several(futures)),
            ]

        with be.stream.hold():
            tasks = loop.run_until_complete(start())
            for _ in range(4):
                loop.run_until_complete(asyncio.sleep(0))
        assert be.synchronize().wait(60)
        with interrupted(k, {"wake", "_call", "arrive", "call"}) as hit:
            try:
                loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks), 30))
            except KeyboardInterrupt:
                assert hit
        loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks), 30))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert {"0", "1", "2", "all 3"} <= set(got), (hit, got)
        # A callback of the user runs at most once: if it was interrupted, it is not run again.
        assert got.count("called") <= 1, hit
        assert "called" in got or hit[0].startswith("call:"), (hit, got)
        if not hit:
            break
        places += 1
    else:
        pytest.fail("the last interrupt still hit something: raise the limit of this loop")
    assert places > 10


def test_ctrl_c_while_arming_hides_nobody(be: aggml.Backend) -> None:
    """A waiter that was armed after the interrupted one is woken all the same."""
    for k in range(1, 60):
        loop = asyncio.new_event_loop()

        async def wait(future: aggml.Future[None]) -> str:
            await future
            return "woken"

        with be.stream.hold():
            first, second = be.stream.mark(), be.stream.mark()
            hidden = loop.create_task(wait(first))
            with interrupted(k, {"arm"}) as hit:
                for _ in range(3):
                    try:
                        loop.run_until_complete(asyncio.sleep(0))
                    except KeyboardInterrupt:
                        assert hit
            behind = loop.create_task(wait(second))
            for _ in range(3):
                loop.run_until_complete(asyncio.sleep(0))
        assert loop.run_until_complete(asyncio.wait_for(behind, 30)) == "woken"
        if hit:
            assert isinstance(hidden.exception(), KeyboardInterrupt)
        else:
            assert loop.run_until_complete(hidden) == "woken"
        loop.close()
        if not hit:
            break
    else:
        pytest.fail("the last interrupt still hit something: raise the limit of this loop")
